"""Shard files read once, several at a time, hashed and checked batch by batch.

Files are read, not mapped: a disk that fails is then an error, and does not kill the process.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import IOBase
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from packprep.schemas.batch_view import BatchView
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Finding, Findings
from packprep.schemas.storage.batches import stream_batches
from packprep.support.limits import usable_cores
from packprep.support.progress import Progress

Opened = Callable[[], BinaryIO]
"""Opens a file for reading from its start."""
OnRead = Callable[[int], None]
"""Called after each read with its number of bytes."""

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_BLOCK = 4 << 20
_File = TypeVar("_File")


def opener(path: Path) -> Opened:
    """Function that opens a local file."""
    return lambda: path.open("rb")


@dataclass
class Checked:
    """Result of reading one file. complete: it exists and could be read to its end."""

    findings: Findings = field(default_factory=Findings)
    digest: str | None = None
    bytes: int = 0
    packs: int = 0
    segments: int = 0
    tokens: int = 0
    complete: bool = True

    def count(self, view: BatchView) -> None:
        self.segments += len(view.starts)
        self.tokens += len(view.columns["tokens"])


def check_in_threads(
    check: Callable[[_File, OnRead], Checked],
    files: Sequence[_File],
    total: int,
    progress: Progress,
) -> list[Checked]:
    """Call check(file, on_read) for all files, on one thread per core, at most eight.

    Returns the results in order.
    """
    lock, done = threading.Lock(), 0

    def on_read(read: int) -> None:
        nonlocal done
        with lock:
            done += read
            progress.advance("verify", done / 1e6, total / 1e6, "MB")

    with ThreadPoolExecutor(min(usable_cores().value, 8)) as pool:
        return list(pool.map(lambda file: check(file, on_read), files))


def read_file(opened: Opened, name: str, checked: Checked, on_read: OnRead) -> None:
    """Read any file; put its digest and size in `checked`."""
    try:
        with opened() as raw:
            file = _Hashed(raw, on_read)
            checked.digest, _ = file.finish()
            checked.bytes = file.bytes
    except OSError as error:
        _cannot_be_read(name, checked, error)


def read_shard(
    opened: Opened,
    name: str,
    checked: Checked,
    on_read: OnRead,
    schema: Callable[[pa.Schema], None],
    take: Callable[[pa.RecordBatch], None],
) -> None:
    """Call `schema` with the schema of an Arrow stream and `take` with each record batch.

    Digest, size, packs and faults are put in `checked`. schema, take: raise FormatError if the
    rest of the file cannot be checked.
    """
    try:
        with opened() as raw:
            file = _Hashed(raw, on_read)
            stream = pa.PythonFile(cast("IOBase", file), mode="r")
            try:
                for batch in stream_batches(stream, name, schema):
                    take(batch)
                    checked.packs += len(batch)
            except FormatError as error:
                checked.findings.damaged(error, name)
                checked.complete = False
            checked.digest, rest = file.finish()
            checked.bytes = file.bytes
    except OSError as error:
        _cannot_be_read(name, checked, error)
        return
    if not checked.complete:
        return
    # A stream cut between two record batches looks complete but for this marker and the counts.
    if rest:
        what = f"{rest:,} bytes follow the end of the Arrow stream; expected none"
        checked.findings.add(Finding(kind="end of stream", file=name, what=what))
    elif file.last != _END_OF_STREAM:
        what = (
            f"it ends after {checked.packs} packs without the end marker of an Arrow stream: "
            "it was cut off"
        )
        checked.findings.add(Finding(kind="end of stream", file=name, what=what))


def _cannot_be_read(name: str, checked: Checked, error: OSError) -> None:
    checked.findings.add(
        Finding(kind="file", file=name, what=f"it cannot be read: {error.strerror}")
    )
    checked.complete = False


class _Hashed:
    """A file read once, hashed while Arrow reads it. last: the last 8 bytes."""

    def __init__(self, file: BinaryIO, on_read: OnRead) -> None:
        self._file = file
        self._on_read = on_read
        self._sha256 = hashlib.sha256()
        self.closed = False
        self.bytes = 0
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sha256.update(data)
        self.last = (self.last + data[-8:])[-8:]
        self.bytes += len(data)
        self._on_read(len(data))
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def finish(self) -> tuple[str, int]:
        """sha256 of the whole file, and the number of bytes that Arrow did not read."""
        before = self.bytes
        while self.read(_BLOCK):
            pass
        return self._sha256.hexdigest(), self.bytes - before
