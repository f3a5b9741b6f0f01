"""`--dry-run`: the output of the first 16 MB of each source, in a folder that is deleted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

from ..config.options import BuildConfig
from ..read.types import Split
from ..run.build import make
from ..run.job import Job, make_job, share_of_text
from ..schemas.manifest import Output
from ..support.progress import Progress


@contextmanager
def dry_run(config: BuildConfig, progress: Progress) -> Iterator[tuple[Output, float]]:
    """The output of a sample while the context lasts, and the share of the text that it has.

    A sample has one split, it begins with the sources, and no multiple is made of its packs. The
    share is 1 if rows are limited. Nothing is written where the build would write.
    """
    with TemporaryDirectory(prefix="packprep-", ignore_cleanup_errors=True) as folder:
        small = replace(config, output=f"{folder}/out", store=f"{folder}/store", overwrite=False)
        small = replace(small, holdout=None, multiple=1, max_tokens=None, after=None)
        job = make_job(small, progress, sample=True)
        sample = replace(job, splits=tuple(_first_splits(job)))
        yield make(sample, progress, time.monotonic()), share_of_text(sample, job)


def _first_splits(job: Job) -> Iterator[Split]:
    """The first split of each source that the user named, such as a folder."""
    seen: set[int] = set()
    for split in job.splits:
        entries = {job.sources[piece.source].entry for piece in split}
        if entries - seen:
            yield split
        seen |= entries
