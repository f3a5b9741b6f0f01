"""`--dry-run`: the output of the first 16 MB of each source, in a folder that is deleted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

from ..config.options import BuildConfig
from ..read.reading import SPLIT_BYTES
from ..read.types import Piece, Split
from ..schemas.manifest import Output
from ..support.progress import Progress
from .build import make
from .job import Job, make_job, text_bytes


@contextmanager
def dry_run(config: BuildConfig, progress: Progress) -> Iterator[tuple[Output, float]]:
    """The output of a sample while the context lasts, and the share of the text that it has.

    A sample has one split, and no multiple is made of its packs. The share is 1 if rows are
    limited. Nothing is written where the build would write.
    """
    with TemporaryDirectory(prefix="packprep-", ignore_cleanup_errors=True) as folder:
        small = replace(config, output=f"{folder}/out", store=f"{folder}/store", overwrite=False)
        small = replace(small, holdout=None, multiple=1, max_tokens=None)
        job = make_job(small, progress, sample=True)
        sample = replace(job, splits=tuple(first_splits(job)))
        yield make(sample, progress, time.monotonic()), share_of_text(sample, job)


def first_splits(job: Job) -> Iterator[Split]:
    """The first split of each source that the user named, such as a folder."""
    seen: set[int] = set()
    for split in job.splits:
        entries = {job.sources[piece.source].entry for piece in split}
        if entries - seen:
            yield split
        seen |= entries


def share_of_text(sample: Job, job: Job) -> float:
    """Share of the text of a job that a sample reads: of a split, at most its first 16 MB."""
    if job.limits:
        return 1.0
    sizes = [sum(_text_of(piece, job) for piece in split) for split in sample.splits]
    read = sum(min(size, SPLIT_BYTES) for size in sizes)
    return read / sum(map(text_bytes, job.sources))


def _text_of(piece: Piece, job: Job) -> int:
    """Bytes of text of a piece: 16 MB, if the source has more pieces after it."""
    whole = text_bytes(job.sources[piece.source])
    if piece.end >= 0:
        return SPLIT_BYTES
    return whole % SPLIT_BYTES if piece.begin else whole
