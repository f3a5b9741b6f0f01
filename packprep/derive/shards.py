"""One path from the packs of outputs to shards: as they are cut, or cut again.

A shard whose bytes do not change is linked, or copied if the file system has no links; every other
one is checked and written. Each byte that is read is compared with its digest before anything is
signed. A written shard has a receipt, so that a stopped command resumes. Memory: a few record
batches, and the length of every pack if shards are cut again.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from packprep.derive.parts import OutputPart
from packprep.output.shard_writer import (
    BATCH_TOKENS,
    ShardFile,
    column_bytes,
    read_shard_receipt,
    receipt_like,
    write_batches,
)
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.manifest import FileEntry
from packprep.schemas.names import stored_schema
from packprep.schemas.storage.places import Directory, Files
from packprep.schemas.storage.writing import write_file
from packprep.sources.units import ranges

Written = Callable[[int], None]
"""f(packs): called after each shard."""


def splits_of(parts: Sequence[OutputPart]) -> list[str]:
    return list(dict.fromkeys(split for part in parts for split in part.manifest.splits))


def packs_of_shards(parts: Sequence[OutputPart], shard_size: int | None) -> list[int | None]:
    """Number of packs of each shard that is written."""
    counts: list[int | None] = []
    for split in splits_of(parts):
        for epoch in range(parts[0].manifest.epochs):
            sources = _entries(parts, split, epoch)
            if shard_size is None:
                counts += [entry.packs for _, entry in sources]
            else:
                sizes = np.concatenate([part.sizes(entry)[0] for part, entry in sources])
                counts += [last - first for first, last in ranges(sizes, shard_size)]
    return counts


def _entries(
    parts: Sequence[OutputPart], split: str, epoch: int
) -> list[tuple[OutputPart, FileEntry]]:
    """Shards of one split and epoch, part by part."""
    return [(part, entry) for part in parts for entry in part.manifest.shards(split, epoch)]


def link_file(source: Path, path: Path) -> None:
    """Link a file, or copy it on another disk or a file system without links."""
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


@dataclass(frozen=True)
class ShardMaker:
    """Maker of the shards of a result in its staging directory."""

    staging: Path
    written: Written

    @property
    def _files(self) -> Files:
        return Directory(self.staging / "shards")

    def make(self, parts: Sequence[OutputPart], shard_size: int | None) -> list[ShardFile]:
        """Write the shards of all splits. shard_size: bytes, about; None keeps shards as cut."""
        for folder in ("shards", "receipts"):
            (self.staging / folder).mkdir(exist_ok=True)
        shards: list[ShardFile] = []
        for split in splits_of(parts):
            made = (
                self._kept(parts, split)
                if shard_size is None
                else self._cut_again(parts, split, shard_size)
            )
            for shard in made:
                shards.append(shard)
                self.written(shard.packs)
        return shards

    def _kept(self, parts: Sequence[OutputPart], split: str) -> Iterator[ShardFile]:
        """Shards as they are cut now."""
        number = 0
        for epoch in range(parts[0].manifest.epochs):
            for part in parts:
                for entry in part.source.ahead(part.manifest.shards(split, epoch)):
                    name = f"{split}-{number:05d}.arrow"
                    number += 1
                    if part.renumbered or part.changes_form:
                        receipt = self.staging / "receipts" / f"{name}.json"
                        made_from = digest_of(
                            [entry.sha256, part.shift, part.made.names, part.made.is_index]
                        )
                        shard = read_shard_receipt(receipt, made_from)
                        if shard is None or not shard.intact(self._files):
                            size, sha256 = self._rewrite(part, entry, name)
                            shard = receipt_like(entry, name, split, size, sha256)
                            facts = asdict(shard) | {"made_from": made_from}
                            write_file(receipt, canonical_json(facts))
                    else:
                        linked = self.staging / "shards" / name
                        linked.unlink(missing_ok=True)  # half a copy of a killed command
                        link_file(part.source.file(entry), linked)
                        shard = receipt_like(entry, name, split, entry.bytes, entry.sha256)
                    yield replace(shard, window=part.window_of(entry))

    def _rewrite(self, part: OutputPart, entry: FileEntry, name: str) -> tuple[int, str]:
        """Write the packs of a shard as a shard of the result; its bytes and sha256."""
        made = part.made
        token_columns = [column for column in made.columns if column.kind == "token"]
        content = column_bytes(token_columns, entry.tokens, 0, 0)  # nearly all bytes
        schema = stored_schema(made.columns, made.names)
        return write_batches(self._files, name, part.batches(entry), schema, content)

    def _cut_again(
        self, parts: Sequence[OutputPart], split: str, shard_size: int
    ) -> Iterator[ShardFile]:
        """Shards of another size, cut as a build cuts them."""
        made = parts[0].made
        schema = stored_schema(made.columns, made.names)
        for epoch in range(made.epochs):
            sources = _entries(parts, split, epoch)
            sizes, lengths = (
                np.concatenate(column)
                for column in zip(*(part.sizes(entry) for part, entry in sources), strict=True)
            )
            rows = _Rows(_batches(parts, split, epoch))
            for number, (first, last) in enumerate(ranges(sizes, shard_size)):
                name = f"{split}-{epoch:03d}-{number:05d}.arrow"
                cuts = ranges(lengths[first:last], BATCH_TOKENS, at_most=True)
                batches = (rows.take(end - start) for start, end in cuts)
                size, sha256 = write_batches(self._files, name, batches, schema)
                yield ShardFile(
                    name=name,
                    split=split,
                    bytes=size,
                    sha256=sha256,
                    packs=last - first,
                    segments=0,
                    tokens=int(lengths[first:last].sum()),
                    run=epoch if made.epochs > 1 else None,
                )
            rows.end()


def _batches(parts: Sequence[OutputPart], split: str, epoch: int) -> Iterator[pa.RecordBatch]:
    """Record batches of the shards of a split and epoch, part by part."""
    for part in parts:
        for entry in part.source.ahead(part.manifest.shards(split, epoch)):
            yield from part.batches(entry)


class _Rows:
    """A stream of record batches from which any number of rows is taken as one batch."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch:
        slices: list[pa.RecordBatch] = []
        while rows:
            batch = self._rest if self._rest is not None else next(self._batches)
            slices.append(batch.slice(0, rows))
            self._rest = batch.slice(rows) if rows < len(batch) else None
            rows -= len(slices[-1])
        # A single slice is copied too: Arrow would write some bytes past its end.
        joined: pa.RecordBatch = pa.concat_batches(slices)  # type: ignore[attr-defined] # not in the stubs
        return joined

    def end(self) -> None:
        """Read to the end, where the last shard is compared."""
        assert next(self._batches, None) is None
