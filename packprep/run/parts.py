"""`--part I/N`: one of N commands, which a scheduler runs in any order, twice or at once.

Part I does the tasks with number % N == I. It holds the lock of the output only while it begins and
while it signs; the part that finds all windows packed signs.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..config.checks import names_token_files
from ..config.options import BuildConfig
from ..read.sources import content_digest
from ..read.types import Source
from ..schemas.files import digest_of
from ..schemas.manifest import Output, open_output
from ..support.errors import ConfigError
from ..support.limits import keep, locked
from ..support.progress import Progress, Silent
from ..write.output import claim, publish
from . import local
from .build import is_finished, sign_off
from .job import stored_job
from .tasks import Work, todo


def pack_part(config: BuildConfig, *, progress: Progress | None = None) -> Output | None:
    """Do the windows of `config.part`, and sign if no window is left; None if others are open.

    Raises ConfigError, InputError or StoppedError.
    """
    if names_token_files(config.sources):
        raise ConfigError("--part packs a token store; make one of the files by packprep tokenize")
    began, progress = time.monotonic(), progress or Silent()
    job, output = stored_job(config), config.output
    work, what = Work(job), f"{output} is begun or signed"
    with locked(job.work.drafts, what, waits=True):
        is_made = is_finished(job, progress) or claim(output, job.facts, alone=False)
    if not is_made:
        try:
            local.pack(work, progress)
        except FileNotFoundError:
            if not is_finished(job, progress):  # else another part has done the rest, and signed
                raise
    with locked(job.work.drafts, what, waits=True):
        if not is_finished(job, Silent()):
            if not claim(output, job.facts, alone=False):
                if todo(work, "pack"):
                    return None
                sign_off(work, [began, began, began, time.monotonic()])
            publish(output)
    return open_output(output)


def kept_digests(folder: Path, sources: Sequence[Source]) -> list[str]:
    """Digests of sources, kept in a folder for other processes.

    Parts that begin together go through the sources in random orders, so that most are read once.
    """
    order = random.sample(range(len(sources)), len(sources))
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda number: _kept_digest(folder, sources[number]), order)
        return [digest for _, digest in sorted(zip(order, found, strict=True))]


def _kept_digest(folder: Path, source: Source) -> str:
    path = folder / digest_of([source.paths, source.state])
    if source.state and path.exists():  # a file at a URL may have changed: its state is not known
        return path.read_text()
    made = content_digest(source)
    keep(path, made.encode())
    return made
