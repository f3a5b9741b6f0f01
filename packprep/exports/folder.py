"""The directory that an export is written in, and what of it is finished.

OUT.incomplete, beside OUT. Its progress.json is rewritten after each shard of the source: the
files that are complete, and size and digest of those that still grow. Whatever is newer than
progress.json is deleted or cut off when the export is resumed. A growing file that differs from its
digest makes the export begin again.

Files are hashed with xxh3 (128 bits), which shows damage and costs a tenth of sha256's time.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packprep.exports.packs import PackBatch
from packprep.output.hashed_file import HashedFile
from packprep.schemas.canonical import canonical_json, digest_of, parse_json
from packprep.schemas.files import inside
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
    def receipt(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "xxh3_128": self.digest()}


def _hash_of(file: Any, size: int) -> Any:
    """xxh3 of the next bytes of a file."""
    digest = xxhash.xxh3_128()
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest


class ExportFolder:
    """Directory of an unfinished export."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        """Claim the directory. facts: all that decides the bytes.

        Work of an earlier run with the same facts is kept, everything else is deleted.
        """
        self.path = path
        self._made_from = digest_of(facts)
        self._growing: dict[str, ExportFile] = {}
        self.complete: dict[str, dict[str, Any]] = {}
        self.shards = 0  # of the source, that are finished
        self.splits: list[str] = []  # that are finished
        self.counts: dict[str, dict[str, int]] = {}
        self._unneeded: list[str] = []
        self._receipts = self._load()
        for file in sorted(path.rglob("*"), reverse=True):
            name = file.relative_to(path).as_posix()
            if file.is_dir():
                if not any(file.iterdir()):
                    file.rmdir()
            elif name not in (PROGRESS, *self.complete, *self._receipts):
                file.unlink()
        self.record()

    def _load(self) -> dict[str, dict[str, Any]]:
        """Receipts of the files that were growing. Deletes what cannot be resumed."""
        try:
            progress = parse_json((self.path / PROGRESS).read_bytes())
            growing: dict[str, dict[str, Any]] = progress["growing"]
            complete: dict[str, dict[str, Any]] = progress["complete"]
            kept = (
                progress["made_from"] == self._made_from
                and all(self._begins_with(name, receipt) for name, receipt in growing.items())
                and all(self._size(name) == each["bytes"] for name, each in complete.items())
            )
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            kept = False
        if not kept:
            self.path.mkdir(parents=True, exist_ok=True)
            return {}
        self.complete, self.shards = complete, progress["shards"]
        self.splits, self.counts = progress["splits"], progress["counts"]
        return growing

    def _begins_with(self, name: str, receipt: dict[str, Any]) -> bool:
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
        counts = self.counts.setdefault(
            split, {"packs": 0, "segments": 0, "tokens": 0, "padding": 0}
        )
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
            size = self._receipts.pop(name)["bytes"] if name in self._receipts else 0
            self._growing[name] = ExportFile(path, size)
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
        self.complete[name] = file.receipt

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        with self.new(name) as file:
            file.write(content)

    def adopt(self, *names: str) -> None:
        """Take in small files that were written here by other means."""
        for name in names:
            content = (self.path / name).read_bytes()
            digest = xxhash.xxh3_128(content).hexdigest()
            self.complete[name] = {"bytes": len(content), "xxh3_128": digest}

    def drop(self, name: str) -> None:
        """Leave out a file that was only needed on the way; it is deleted later."""
        self._growing.pop(name).abandon()
        self._unneeded.append(name)

    def finish_shard(self) -> None:
        """Record that another shard of the source is finished."""
        for file in self._growing.values():
            file.sync()
        self.shards += 1
        self.record()

    def finish_split(self, split: str) -> None:
        """Close the files of a split, and record that it is finished."""
        for name, file in self._growing.items():
            file.close()
            self.complete[name] = file.receipt
        self._growing = {}
        for folder in {path.parent for path in map(self.path.joinpath, self.complete)}:
            sync_directory(folder)
        self.splits.append(split)
        self.record()
        while self._unneeded:
            (self.path / self._unneeded.pop()).unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open after an interruption."""
        for file in self._growing.values():
            file.abandon()

    def record(self) -> None:
        """Write progress.json."""
        growing = {name: file.receipt for name, file in self._growing.items()}
        progress = {
            "made_from": self._made_from,
            "shards": self.shards,
            "splits": self.splits,
            "counts": self.counts,
            "growing": self._receipts | growing,
            "complete": self.complete,
        }
        write_file(self.path / PROGRESS, canonical_json(progress))
