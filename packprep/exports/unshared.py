"""Rows of trees as documents that share nothing, in packs of their own: `export --unshared`.

Each row is its whole path, with its own labels. Rows are more tokens than their trees, so the rows
of a record batch are packed again, by strategy stream in the order of the rows; filler is left out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.packing.api import pack_lengths
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import STANDARD_COLUMNS, Column, shard_schema
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.schemas.names import list_array
from packprep.schemas.trees import (
    OF_ROWS,
    parents_in_batch,
    path_starts,
    path_tokens,
    row_labels,
)
from packprep.schemas.views import ListView
from packprep.support.arrays import Int64

_OF_TREES = ("segment_parents", "label_weights")


def plain_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns after rows have become segments. columns: of an output with trees."""
    return tuple(
        replace(column, kind="segment") if column.kind == "row" else column
        for column in columns
        if column.name not in _OF_TREES
        and (column.kind != "row" or column.name not in STANDARD_COLUMNS)
    )


class Unshared:
    """Packs the rows of an output with trees.

    Rows keep what the build promised for its packs: max_length, max_segments_per_pack, the sides of
    a pair together, and groups of --group-column apart.
    """

    def __init__(self, manifest: Manifest, entry: FileEntry) -> None:
        """entry: the shard that is read."""
        self._plain = plain_columns(manifest.columns)
        self._max_length = manifest.longest(entry)
        options = manifest.data["inputs"].get("options", {})
        # Groups are not in the shards, but a pack has rows of one group only. Outputs that were
        # merged have the options that all of them share.
        self._apart = "group_column" not in options or options["group_column"] is not None
        self._most_segments: int | None = options.get("max_segments_per_pack")
        self._pairs = any(column.name == "row_sides" for column in manifest.columns)

    def packs(self, view: BatchView) -> pa.RecordBatch:
        """Packs of the rows of a sound record batch."""
        parents = parents_in_batch(view)
        assert parents is not None
        assert view.pack_rows is not None
        pack_of = np.repeat(np.arange(len(view.pack_rows) - 1), np.diff(view.pack_rows))
        last = view.columns["row_segments"] + view.pack_segments[pack_of]
        lengths = view.ends - view.starts
        of_rows = (path_starts(parents, lengths) + lengths)[last]
        order, packs = self._planned(of_rows, view.columns["row_ids"], pack_of)
        table = _Rows(view, parents, last[order], order)
        arrays = []
        for column in self._plain:
            offsets = packs
            if column.kind == "token":
                offsets = table.bounds[packs]
            elif column.kind == "boundary":
                offsets = packs + np.arange(len(packs))
            values = table.values(column, packs).astype(column.numpy_dtype, copy=False)
            arrays.append(list_array(ListView(offsets.astype(np.int32), values)))
        return pa.record_batch(arrays, schema=shard_schema(self._plain))

    def _planned(self, lengths: Int64, ids: Int64, pack_of: Int64) -> tuple[Int64, Int64]:
        """Rows in the order of their packs, [rows], and the first row of each pack, [packs + 1].

        lengths, ids, pack_of: [rows], tokens, input row, and pack of the trees.
        """
        rows, atoms = np.arange(len(lengths)), None
        if self._pairs:  # sides of a pair are in one pack, but perhaps not neighbours
            _, first, which = np.unique(ids, return_index=True, return_inverse=True)
            rows = np.argsort(first[which], kind="stable")
            atoms = first[which][rows]
        plan = pack_lengths(
            lengths[rows],
            self._max_length,
            "stream",
            order="input",
            max_segments_per_pack=self._most_segments,
            groups=pack_of[rows] if self._apart else None,
            atoms=atoms,
        )
        return rows[plan.order], plan.offsets


class _Rows:
    """Rows of a record batch in an order of their own.

    last: [rows], the segment at which each ends.
    order: [rows], number of each in the batch. bounds: [rows + 1], first token of each row, and the
    end.
    """

    def __init__(self, view: BatchView, parents: Int64, last: Int64, order: Int64) -> None:
        self._columns, self._order = view.columns, order
        boundaries = np.append(view.starts, view.pack_tokens[-1])
        self._tokens, self.bounds = path_tokens(parents, boundaries, last)

    def values(self, column: Column, packs: Int64) -> NDArray[Any]:
        """Values of a column. packs: [packs + 1], the first row of each pack, and the end."""
        bounds, name = self.bounds, column.name
        if name == "cu_seqlens":
            sizes = np.diff(packs)
            ends = np.insert(bounds[1:], packs[:-1], bounds[packs[:-1]])
            return ends - np.repeat(bounds[packs[:-1]], sizes + 1)
        if name == "position_ids":
            return np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))
        if name == "labels":
            begins = self._columns["row_label_starts"][self._order]
            return row_labels(self._columns[name], self._tokens, bounds, begins)
        if column.kind == "token":
            return self._columns[name][self._tokens]
        return self._columns[OF_ROWS.get(name, name)][self._order]
