"""Shard files read once, from begin to end, several at a time.

Hashed on the way, their record batches handed on.

Files are read, not mapped: a disk that fails is then an error, and not the end of the process.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from packprep.schemas.batch_view import BatchView
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Finding, Findings
from packprep.support.progress import Progress

# What Arrow raises for a damaged file; a length that was hit by a flipped bit asks for more memory
# than there is.
UNREADABLE = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError)
Opened = Callable[[], BinaryIO]
"""Opens a file to be read from its beginning."""
Told = Callable[[int], None]
"""Called with the number of bytes that were read since."""

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_BLOCK = 4 << 20
_File = TypeVar("_File")


def opener(path: Path) -> Opened:
    """Opens a file of this machine."""
    return lambda: path.open("rb")


@dataclass
class Checked:
    """Result of reading one file.

    whole: it was there and could be read to its end.
    """

    findings: Findings = field(default_factory=Findings)
    digest: str | None = None
    bytes: int = 0
    packs: int = 0
    segments: int = 0
    tokens: int = 0
    whole: bool = True

    def count(self, view: BatchView) -> None:
        self.segments += len(view.starts)
        self.tokens += len(view.columns["tokens"])


def check_in_threads(
    check: Callable[[_File, Told], Checked], files: Sequence[_File], total: int, progress: Progress
) -> list[Checked]:
    """check(file, told) of all files, as many at a time as there are cores, eight at most.

    Results in order.
    """
    lock, done = threading.Lock(), 0

    def told(read: int) -> None:
        nonlocal done
        with lock:
            done += read
            progress.advance("verify", done / 1e6, total / 1e6, "MB")

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        return list(pool.map(lambda file: check(file, told), files))


def read_file(opened: Opened, name: str, checked: Checked, told: Told) -> None:
    """Digest and size of any file go to `checked`."""
    try:
        with opened() as raw:
            file = _Hashed(raw, told)
            checked.digest, _ = file.finish()
            checked.bytes = file.bytes
    except OSError as error:
        _cannot_be_read(name, checked, error)


def read_shard(
    opened: Opened,
    name: str,
    checked: Checked,
    told: Told,
    schema: Callable[[pa.Schema], None],
    take: Callable[[pa.RecordBatch], None],
) -> None:
    """Give `schema` and every record batch of an Arrow stream.

    Digest, size, packs and a missing end go to `checked`.

    schema, take: raise FormatError for a file of which nothing more can be said.
    """
    try:
        with opened() as raw:
            file = _Hashed(raw, told)
            _read_stream(file, name, checked, schema, take)
            checked.digest, rest = file.finish()
            checked.bytes = file.bytes
    except OSError as error:
        _cannot_be_read(name, checked, error)
        return
    if not checked.whole:
        return
    # A stream cut between two record batches reads like a shorter one: only this marker and the
    # counts tell.
    if rest:
        what = f"{rest:,} bytes follow the end of the Arrow stream; expected none"
        checked.findings.add(Finding(kind="end of stream", file=name, what=what))
    elif file.last != _END_OF_STREAM:
        what = (
            f"it ends after {checked.packs} packs without the end marker of an Arrow stream: "
            "it "
            "was cut off"
        )
        checked.findings.add(Finding(kind="end of stream", file=name, what=what))


def _read_stream(
    file: "_Hashed",
    name: str,
    checked: Checked,
    schema: Callable[[pa.Schema], None],
    take: Callable[[pa.RecordBatch], None],
) -> None:
    try:
        with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as stream:
            schema(stream.schema)
            for batch in stream:
                take(batch)
                checked.packs += len(batch)
    except FormatError as error:
        checked.findings.damaged(error, name)
        checked.whole = False
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        what = f"it is no whole Arrow stream after {checked.packs} packs: {reason}"
        checked.findings.add(Finding(kind="damaged", file=name, what=what))
        checked.whole = False


def _cannot_be_read(name: str, checked: Checked, error: OSError) -> None:
    checked.findings.add(
        Finding(kind="file", file=name, what=f"it cannot be read: {error.strerror}")
    )
    checked.whole = False


class _Hashed:
    """A file read once; hashes what goes by and remembers the last bytes.

    Arrow reads through it.
    """

    def __init__(self, file: BinaryIO, told: Told) -> None:
        self._file = file
        self._told = told
        self._sha256 = hashlib.sha256()
        self.closed = False
        self.bytes = 0
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sha256.update(data)
        self.last = (self.last + data[-8:])[-8:]
        self.bytes += len(data)
        self._told(len(data))
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def finish(self) -> tuple[str, int]:
        """sha256 of the whole file, and how many bytes of it nobody had read."""
        before = self.bytes
        while self.read(_BLOCK):
            pass
        return self._sha256.hexdigest(), self.bytes - before
