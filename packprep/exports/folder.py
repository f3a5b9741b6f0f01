"""The directory that an export is written in, and what of it is finished.

OUT.incomplete, beside OUT. Its progress.json is rewritten after each shard of the source: the
files that are complete, and size and digest of those that still grow. Whatever is newer than
progress.json is deleted or cut off when the export is resumed. A growing file that differs from its
digest makes the export begin again.

Files are hashed with xxh3 (128 bits), which shows damage and costs a tenth of sha256's time.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packprep.exports.packs import PackBatch
from packprep.output.hashed_file import HashedFile
from packprep.schemas.canonical import canonical_json, digest_of, parse_json
from packprep.schemas.files import inside
from packprep.schemas.storage.export_manifest import Receipt
from packprep.schemas.storage.writing import sync_directory, write_file

PROGRESS = "progress.json"
_BLOCK = 4 << 20


class ExportFile(HashedFile):
    """A file that is being written, hashed on the way."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open a file. size: bytes of it that an earlier run finished; the rest is cut off."""
        file = path.open("r+b" if size else "wb")
        super().__init__(file, _hash_of(file, size), begun=size)
        file.truncate(size)

    def write_array_header(self, length: int) -> None:
        """Write the header of a NumPy file of int64."""
        header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self, header)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and make it survive a power failure."""
        if not self.closed:
            self.sync()
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        with suppress(OSError):  # of a full disk, which was reported when it was written
            self._file.close()
        self.closed = True

    @property
    def receipt(self) -> Receipt:
        return {"bytes": self.bytes, "xxh3_128": self.digest()}


def _hash_of(file: Any, size: int) -> Any:
    """xxh3 of the next bytes of a file."""
    digest = xxhash.xxh3_128()
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest


@dataclass
class ExportProgress:
    """Content of progress.json.

    made_from: digest of all that decides the bytes. shards: number of the source that are finished.
    splits: that are finished. counts: for the manifest of the export, by split. growing, complete:
    receipts of files, by name.
    """

    made_from: str
    shards: int = 0
    splits: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    growing: dict[str, Receipt] = field(default_factory=dict)
    complete: dict[str, Receipt] = field(default_factory=dict)


class ExportFolder:
    """Directory of an unfinished export."""

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        """Claim the directory. facts: all that decides the bytes.

        Work of an earlier run with the same facts is kept, everything else is deleted.
        """
        self.path = path
        self._growing: dict[str, ExportFile] = {}
        self._unneeded: list[str] = []
        self.done = self._load(digest_of(facts))
        path.mkdir(parents=True, exist_ok=True)
        for file in sorted(path.rglob("*"), reverse=True):
            name = file.relative_to(path).as_posix()
            if file.is_dir():
                if not any(file.iterdir()):
                    file.rmdir()
            elif name not in (PROGRESS, *self.done.complete, *self.done.growing):
                file.unlink()
        self.record()

    def _load(self, made_from: str) -> ExportProgress:
        """Progress of an earlier run, if all its files are as it says."""
        try:
            done = ExportProgress(**parse_json((self.path / PROGRESS).read_bytes()))
            if (
                done.made_from == made_from
                and all(self._begins_with(name, each) for name, each in done.growing.items())
                and all(self._size(name) == each["bytes"] for name, each in done.complete.items())
            ):
                return done
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            pass
        return ExportProgress(made_from)

    def _begins_with(self, name: str, receipt: Receipt) -> bool:
        """True if a file begins with the bytes of its receipt; the rest is written again."""
        if self._size(name) < receipt["bytes"]:
            return False
        with inside(self.path, name).open("rb", buffering=0) as file:
            digest: str = _hash_of(file, receipt["bytes"]).hexdigest()
        return digest == str(receipt["xxh3_128"])

    def _size(self, name: str) -> int:
        path = inside(self.path, name)
        return path.stat().st_size if path.is_file() else -1

    def counted(self, split: str, batches: Iterable[PackBatch]) -> Iterator[PackBatch]:
        """The batches, counted for the manifest of the export.

        tokens: without padding; padding: tokens that a format may leave out.
        """
        names = ("packs", "segments", "tokens", "padding")
        counts = self.done.counts.setdefault(split, dict.fromkeys(names, 0))
        for batch in batches:
            counts["packs"] += len(batch.packs) - 1
            counts["segments"] += len(batch.bounds) - 1
            counts["tokens"] += (real := int(batch.real_lengths.sum()))
            counts["padding"] += len(batch.tokens) - real
            yield batch

    def grow(self, name: str) -> ExportFile:
        """A file that grows from shard to shard, and is complete when the export is."""
        if name not in self._growing:
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = self.done.growing.get(name)
            self._growing[name] = ExportFile(path, int(begun["bytes"]) if begun else 0)
        return self._growing[name]

    @contextmanager
    def new(self, name: str) -> Iterator[ExportFile]:
        """A file that is complete at the end of the block."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = ExportFile(path)
        try:
            yield file
        except BaseException:
            file.abandon()
            raise
        file.close()
        self.done.complete[name] = file.receipt

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        with self.new(name) as file:
            file.write(content)

    def adopt(self, *names: str) -> None:
        """Take in small files that were written here by other means."""
        for name in names:
            content = (self.path / name).read_bytes()
            digest = xxhash.xxh3_128(content).hexdigest()
            self.done.complete[name] = {"bytes": len(content), "xxh3_128": digest}

    def drop(self, name: str) -> None:
        """Leave out a file that was only needed on the way; it is deleted later."""
        self._growing.pop(name).abandon()
        self.done.growing.pop(name, None)
        self._unneeded.append(name)

    def finish_shard(self) -> None:
        """Record that another shard of the source is finished."""
        for file in self._growing.values():
            file.sync()
        self.done.shards += 1
        self.record()

    def finish_split(self, split: str) -> None:
        """Close the files of a split, and record that it is finished."""
        for name, file in self._growing.items():
            file.close()
            self.done.complete[name] = file.receipt
        self._growing, self.done.growing = {}, {}
        for folder in {path.parent for path in map(self.path.joinpath, self.done.complete)}:
            sync_directory(folder)
        self.done.splits.append(split)
        self.record()
        while self._unneeded:
            (self.path / self._unneeded.pop()).unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open after an interruption."""
        for file in self._growing.values():
            file.abandon()

    def record(self) -> None:
        """Write progress.json."""
        self.done.growing |= {name: file.receipt for name, file in self._growing.items()}
        write_file(self.path / PROGRESS, canonical_json(asdict(self.done)))
