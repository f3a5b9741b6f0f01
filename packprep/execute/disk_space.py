"""Disk space: the forecast before a build starts, and the message when it runs out."""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packprep.execute.job import Job
from packprep.schemas.columns import columns_of_type
from packprep.schemas.names import needed_columns
from packprep.support.errors import StoppedError

FULL = (errno.ENOSPC, errno.EDQUOT)
# Text in a byte of a file: compressed text is mostly three to five times its size.
_TEXT_PER_BYTE = {"": 1.0, "gz": 4.0, "zst": 4.0}
_TOKENS_PER_BYTE = 0.35  # without a sample: more than English has with any common vocabulary
_REPORTED_FROM = 1_000_000_000
_LEAST_MISSING = 1_000_000  # receipts, and the unused end of the last block of every file
_SPARE = 1.05  # of all predictions: receipts, and the framing of Arrow
_CERTAIN_SHARE = 0.7  # a build stops only if even this share of the prediction is too much


def predicted_tokens(job: Job, per_byte: float | None) -> int:
    """Tokens of a build, predicted from the sizes of its files.

    per_byte: tokens per byte of text, from a sample.
    """
    per_byte = per_byte or _TOKENS_PER_BYTE
    text = sum(
        source.bytes * (source.format.text_per_byte or _TEXT_PER_BYTE[source.compression])
        for source in job.sources
    )
    most = job.config.max_tokens
    return round(
        text * per_byte
        if most is None
        else min(text * per_byte, most + job.config.unit_size * per_byte)
    )


@dataclass(frozen=True)
class DiskUse:
    """A directory that a build writes to.

    needed: most bytes that it has there at a time.
    option: of the build, that chooses it.
    """

    directory: Path
    needed: int
    option: str

    @property
    def left(self) -> int:
        """Bytes that are not written yet."""
        return max(0, self.needed - written_bytes(self.directory))

    @property
    def free(self) -> int:
        """Free bytes on its disk."""
        folders = (self.directory, *self.directory.absolute().parents)
        return room_at(next(folder for folder in folders if folder.exists()))


def disk_uses(job: Job, tokens: int) -> list[DiskUse]:
    """Directories of a build with this many tokens: its own, and the token store."""
    own = "-o" if job.shards.directory is not None else "--work-dir"
    found = [DiskUse(job.staging, needed_bytes(job, tokens), own)]
    if job.config.keep_tokens:
        stored = round(_SPARE * tokens * job.tokenizer.id_type.itemsize)
        found.append(DiskUse(job.tokens, stored, "--keep-tokens"))
    return found


def needed_bytes(job: Job, tokens: int) -> int:
    """Most bytes that a build has in its directory: token files, and shards if they are local."""
    needed = needed_columns(job.config.names)
    types = columns_of_type(job.tokenizer.shard_type(job.config.token_type), job.config.max_length)
    # Columns by segment are small beside these.
    stored = {"tokens", *needed, *({"position_ids"} & {*job.config.columns})}
    in_shards = sum(types[name].numpy_dtype.itemsize for name in stored)
    in_shards *= job.config.epochs * (job.shards.directory is not None)
    in_shards *= job.packs and job.config.materialize == "shards"
    in_files = 0 if job.config.keep_tokens else job.tokenizer.id_type.itemsize
    return round(_SPARE * tokens * (in_shards + in_files))


def room_at(path: Path) -> int:
    """Free bytes for this user on the file system of an existing directory."""
    return shutil.disk_usage(path).free


def written_bytes(directory: Path) -> int:
    """Bytes of all files under a directory; files that disappear meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total


def check_room(job: Job, tokens: int) -> str | None:
    """Message about the disk space; None if there is plenty.

    StoppedError if there is clearly too little for this many tokens. Nothing is predicted of a
    build that reads only some rows: the sizes of its files say nothing.
    """
    readings = [job.config.limit, *(source.reading.get("limit") for source in job.sources)]
    if any(limit is not None for limit in readings):
        return None
    forecasts = []
    for place in disk_uses(job, tokens):
        left, free = place.left, place.free
        forecast = (
            f"about {size_text(left)} will be written to {place.directory}, which has "
            f"{size_text(free)} free"
        )
        if _CERTAIN_SHARE * left > free:
            raise StoppedError(
                f"{forecast}; free {size_text(left - free)} more, or choose another {place.option}"
            )
        if left > min(_REPORTED_FROM, free // 10):
            forecasts.append(forecast)
    return "; ".join(forecasts) or None


def full(error: OSError, job: Job, tokens: int) -> StoppedError:
    """Error for a full disk: the path, and how much space is missing there.

    tokens: of the whole build, predicted or known.
    """
    path = Path(error.filename) if isinstance(error.filename, str) else job.staging
    own, *stores = disk_uses(job, tokens)
    place = next((store for store in stores if path.is_relative_to(store.directory.parent)), own)
    free = place.free
    missing = max(place.left - free, _LEAST_MISSING)
    return StoppedError(
        f"{path}: no space left on the disk: {size_text(free)} are free and about "
        f"{size_text(missing)} more are needed; free that much space, then run the same command"
    )


def size_text(size: int) -> str:
    """1.2 GB, 3.4 MB or 5.6 kB."""
    unit, name = next(
        ((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB")) if size >= unit), (1e3, "kB")
    )
    return f"{size / unit:,.1f} {name}"
