"""Packs of a finished output as the formats need them, a record batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from packprep.exports.unshared import Unshared, plain_columns
from packprep.schemas.batch_view import BatchView, batch_view
from packprep.schemas.columns import NO_LOSS, Column
from packprep.schemas.findings import StopAtFirst
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.schemas.names import column_view, stored_schema
from packprep.schemas.storage.reader import Reader
from packprep.schemas.validate import check_ids
from packprep.support.arrays import Bools, Int32, Int64, UInt16


@dataclass(frozen=True, eq=False)
class PackBatch:
    """Packs of a record batch.

    rows: all columns of the shard.
    view: the same as flat arrays.
    """

    rows: pa.RecordBatch
    view: BatchView

    @property
    def tokens(self) -> Int32 | UInt16:
        """[tokens], of the type in the shard."""
        return self.view.columns["tokens"]

    @property
    def packs(self) -> Int64:
        """[packs + 1], first token of each pack, and the end."""
        return self.view.pack_tokens

    @property
    def segments(self) -> Int64:
        """[packs + 1], first segment of each pack, and the end."""
        return self.view.pack_segments

    @property
    def cu_seqlens(self) -> Int32:
        """[segments + packs], of all packs; those of pack p begin at segments[p] + p."""
        return self.view.columns["cu_seqlens"]

    @cached_property
    def bounds(self) -> Int64:
        """[segments + 1], first token of each segment, and the end."""
        return np.append(self.view.starts, len(self.tokens))

    def _targets(self, values: Int32 | UInt16) -> Int32:
        targets = values.astype(np.int32)
        targets[self.view.starts] = NO_LOSS
        return targets

    @cached_property
    def labels(self) -> Int32:
        """[tokens], unshifted targets; -100 where there is no loss and on each first token."""
        return self._targets(self.view.columns.get("labels", self.tokens))

    @cached_property
    def trained(self) -> Bools:
        """[tokens], True where there is loss."""
        trained: Bools = self.labels != NO_LOSS
        return trained

    @property
    def has_untrained(self) -> bool:
        """True if a token other than the first of a segment has no loss or another target.

        Padding does not count: it is no token of a document.
        """
        if "labels" not in self.view.columns:
            return False
        differs = self.labels != self._targets(self.tokens)
        return bool(np.any(differs & self.real_tokens if self.pads else differs))

    @property
    def has_other_targets(self) -> bool:
        """True if a token's label is another id."""
        return "labels" in self.view.columns and bool(
            np.any((self.labels != self.tokens) & self.trained)
        )

    @cached_property
    def real_lengths(self) -> Int64:
        """[segments], number of tokens that are not padding; 0 for filler."""
        return np.where(self.view.filler, 0, self.view.real)

    @cached_property
    def pads(self) -> bool:
        """True if any token is padding."""
        return int(self.real_lengths.sum()) < len(self.tokens)

    @property
    def real_tokens(self) -> Bools:
        """[tokens], False for padding."""
        return self.position_ids() < np.repeat(self.real_lengths, np.diff(self.bounds))

    def position_ids(self) -> Int32:
        """[tokens], 0, 1, 2, ... in each segment."""
        starts = np.repeat(self.view.starts.astype(np.int32), np.diff(self.bounds))
        return np.arange(len(self.tokens), dtype=np.int32) - starts


def read_packs(reader: Reader, entry: FileEntry) -> Iterator[PackBatch]:
    """The packs of one shard, in order; of trees, their rows in packs of their own.

    FormatError if the boundaries of a pack or its ids are wrong, or anything of a tree, or if the
    shard has changed. What else the format promises was checked when it was written.
    """
    manifest = reader.manifest
    plain = Unshared(manifest, entry) if manifest.has_trees else None
    for batch in reader.read(entry, check="columns" if plain is None else None):
        rows, view = batch.rows, batch.view
        check_ids(view, manifest.vocab_size, StopAtFirst())
        if plain is not None:
            rows = plain.packs(view)
            view = _view(rows, plain_columns(manifest.columns), batch.where)
        if len(rows):
            yield PackBatch(rows, view)


def no_packs(manifest: Manifest) -> PackBatch:
    """A batch without packs, with the columns of an output."""
    columns = plain_columns(manifest.columns) if manifest.has_trees else manifest.columns
    rows = pa.RecordBatch.from_pylist([], stored_schema(columns, manifest.names))
    return pack_batch(rows, columns, "no packs")


def pack_batch(rows: pa.RecordBatch, columns: tuple[Column, ...], where: str) -> PackBatch:
    """Sound packs of these rows. where: their name in messages."""
    return PackBatch(rows, _view(rows, columns, where))


def _view(rows: pa.RecordBatch, columns: tuple[Column, ...], where: str) -> BatchView:
    return batch_view({c.name: column_view(rows, c.name, where) for c in columns}, where, 0)
