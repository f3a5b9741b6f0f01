"""From the plan of packs to their columns: the only place where packs are made.

The writer, a plan output, the loader and every tool call `pack_columns`. The small columns are a
few numpy passes. Values per token are copied from the mapped token files in runs that are
consecutive there and in a pack, by numpy or by a compiled loop that the caller passes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Int64
from .columns import FILLER, NO_LOSS, OF_FILLER, WHOLE, Column, plan_columns
from .tokens import Documents, Pointers
from .views import ListView, list_array


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Consecutive packs of a plan: pack p is segments offsets[p]..offsets[p + 1] - 1.

    columns, [segments] each: `document` (index into the documents; -1 is filler), `start` (first
    token in the document), `count` (tokens of the document), `bos` (an extra BOS goes before),
    `length` (tokens in the pack: count + bos + padding), and where needed `repeated` (tokens at the
    beginning that an earlier piece trains), `front` and `hole` (of truncate:balanced: tokens before
    a hole, and tokens missing there). offsets: int64 [packs + 1].
    """

    columns: Mapping[str, NDArray[Any]]
    offsets: Int64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What all shards of an output share.

    columns: to make, in their order. bos_id: of an extra BOS. pad_id: of padding and filler.
    """

    columns: tuple[Column, ...]
    max_length: int
    vocab_size: int
    bos_id: int
    pad_id: int


@dataclass(frozen=True, eq=False)
class Runs:
    """Values that are consecutive in memory and in a pack, [runs] each.

    values: where they begin. count: their number. bos: one more value goes before them. padded: all
    values in the pack; after those in memory comes padding. mask: int8, as many as the values;
    padding takes the place of those where it is 0. head: values at the beginning, at most `padded`,
    whose place padding takes.
    """

    values: Pointers
    count: Int64
    bos: NDArray[np.bool_]
    padded: Int64
    mask: Pointers | None = None
    head: Int64 | None = None


Copy = Callable[[Runs, int, int, NDArray[Any]], None]
"""f(runs, before, after, out): copy all runs into `out`, [sum(padded)].

before: value of an extra BOS. after: value of padding.
"""


def copy_runs(runs: Runs, before: int, after: int, out: NDArray[Any]) -> None:
    """See `Copy`; about a microsecond a run."""
    none, cursor = np.zeros_like(runs.count), 0
    values, index = runs.values.spanned(runs.count)
    kept, places = (values, none) if runs.mask is None else runs.mask.spanned(runs.count)
    head = none if runs.head is None else runs.head
    columns = (index, runs.count, runs.bos, runs.padded, places, head)
    for begin, count, bos, padded, mask, first in zip(*(c.tolist() for c in columns), strict=True):
        place, end = cursor + bos, cursor + padded
        if bos:
            out[cursor] = before
        out[place : place + count] = values[begin : begin + count]
        if runs.mask is not None:
            out[place : place + count][kept[mask : mask + count] == 0] = after
        if place + count < end:
            out[place + count : end] = after
        if first:
            out[cursor : cursor + first] = after
        cursor = end


def pack_columns(
    table: Table, documents: Documents, layout: Layout, copy: Copy = copy_runs
) -> pa.RecordBatch:
    """The packs of a table, a row each, in the columns of the layout.

    copy: copies runs of values. These tokens have no label: the first of a segment, an extra BOS,
    repeated ones, padding.
    """
    return TablePacks(table, documents, layout).batch(copy)


def plan_batch(table: Table, places: Int64, columns: Sequence[Column]) -> pa.RecordBatch:
    """The packs of a table as a shard of a plan has them.

    places: of the documents. columns: of the packs.
    """
    document, arrays = table.columns["document"], dict[str, Any]()
    values = {**table.columns, "document": np.where(document < 0, FILLER, places[document])}
    for each in plan_columns(columns):
        of_column = values.get(each.name, np.zeros_like(document)).astype(each.dtype)
        arrays[each.name] = list_array(ListView(table.offsets.astype(np.int32), of_column))
    return pa.record_batch(list(arrays.values()), names=list(arrays))


class TablePacks:
    """Columns of the packs of a table.

    length: tokens of each segment, [segments]. starts: its first token in the batch, and the end,
    int64 [segments + 1].
    """

    def __init__(self, table: Table, documents: Documents, layout: Layout) -> None:
        self.table, self.documents, self.layout = table, documents, layout
        self.pairs = any(column.standard == "pair_sides" for column in layout.columns)
        self.length = table.columns["length"].astype(np.int64)
        self.starts = np.append(0, np.cumsum(self.length))
        self.filler = table.columns["document"] < 0
        self.document = np.maximum(table.columns["document"], 0)  # of filler, any

    def batch(self, copy: Copy = copy_runs) -> pa.RecordBatch:
        """See `pack_columns`."""
        lists = [list_array(self.view(column, copy)) for column in self.layout.columns]
        return pa.record_batch(lists, names=[column.name for column in self.layout.columns])

    def view(self, column: Column, copy: Copy = copy_runs) -> ListView:
        """A column of all packs."""
        if column.kind != "token":
            values = np.ascontiguousarray(self.values(column), column.dtype)
            return ListView(self.offsets(column), values)
        values = np.empty(int(self.starts[-1]), column.dtype)
        ids = (self.layout.bos_id, self.layout.pad_id)
        ends = {"labels": (NO_LOSS, NO_LOSS), "tokens": ids}
        copy(self.runs(column), *ends.get(column.standard, (0, 0)), values)
        return ListView(self.offsets(column), values)

    def offsets(self, column: Column) -> NDArray[np.int32]:
        """List offsets of a column, [packs + 1]."""
        offsets = self.table.offsets
        if column.kind == "token":
            offsets = self.starts[offsets]
        elif column.kind == "boundary":
            offsets = offsets + np.arange(len(offsets))
        return offsets.astype(np.int32)

    def runs(self, column: Column) -> Runs:
        """Runs of a column with a value per token."""
        aligned, name = self.documents.aligned, column.standard
        if name == "position_ids":
            rising = np.arange(int(self.length.max(initial=0)), dtype=column.dtype)
            values = Pointers.into(rising, np.zeros_like(self.length))
            return Runs(values, self.length, np.zeros(len(self.length), np.bool_), self.length)
        if name != "labels":
            return self._stored(self.documents.tokens if name == "tokens" else aligned[name])
        # Labels are those of the token files, or the tokens, all or by a mask.
        bos, repeated = (self.table.columns.get(n, 0) for n in ("bos", "repeated"))
        head = np.minimum(np.maximum(bos + repeated, 1), self.length)
        runs = self._stored(aligned.get("labels", self.documents.tokens), head)
        if "labels" not in aligned and "mask" in aligned:
            runs = replace(runs, mask=self._stored(aligned["mask"]).values)
        return runs

    def _stored(self, of_documents: Pointers, head: Int64 | None = None) -> Runs:
        """Runs of a column of the token files. of_documents: first value of each document."""
        columns = self.table.columns
        count, bos = columns["count"].astype(np.int64), columns["bos"].astype(np.bool_)
        values = of_documents[self.document].shifted(columns["start"])
        if "front" not in columns:
            return Runs(values, count, bos, self.length, head=head)
        # Runs 2i and 2i + 1 are segment i: before the hole, with its BOS, and after it.
        front = np.minimum(columns["front"], count).astype(np.int64)
        after = values.shifted(front + columns["hole"])
        first = front + bos
        if head is not None:
            head = _in_turn(np.minimum(head, first), np.maximum(head - first, 0))
        return Runs(
            replace(values, address=_in_turn(values.address, after.address)),
            _in_turn(front, count - front),
            _in_turn(bos, np.zeros_like(bos)),
            _in_turn(first, self.length - first),
            head=head,
        )

    def values(self, column: Column) -> NDArray[Any]:
        """Values of a column per segment or boundary."""
        columns, documents, name = self.table.columns, self.documents, column.standard
        values: NDArray[Any]
        match name:
            case "seq_lengths":
                return self.length
            case "cu_seqlens":
                first = self.table.offsets[:-1]
                before = np.repeat(self.starts[first], np.diff(self.table.offsets))
                return np.insert(self.starts[1:] - before, first, 0)
            case "segment_lengths":
                values = columns["count"] + columns["bos"]
            case "document_ids" | "pair_ids":
                values = documents.id[self.document]
            case "document_starts":
                values = columns["start"]
                if self.pairs:  # the second side begins after the first, the document before it
                    before = np.append(0, documents.length)[:-1]
                    values = values + np.where(documents.part == 1, before, 0)[self.document]
            case "turn_ids" if self.pairs:
                values = np.full(len(self.document), WHOLE)
            case "pair_sides" | "turn_ids":
                values = documents.part[self.document]
            case _:
                values = documents.values[name][self.document]
        return np.where(self.filler, OF_FILLER.get(name, 0), values)


def _in_turn(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Values of both in turn: [1, 2], [3, 4] -> [1, 3, 2, 4]."""
    return np.stack([one, other], axis=1).ravel()
