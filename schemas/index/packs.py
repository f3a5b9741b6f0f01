"""From the plan of packs to their columns, gathered from token files.

All packs are made here: shards, packs of an index, and what the loader reads of one. The small
columns are made at once, with a few numpy passes. Values per token are copied when they are asked
for, by numpy or by a compiled function of the caller.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import FILLER, NO_LOSS, Column, shard_schema
from ..names import Names, list_array, stored_batch
from ..views import ListView, ranges_at
from .runs import Copy, Pointers, Runs, copy_runs
from .trees import TreeIndex

_Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PacksPlan:
    """Plan of consecutive packs, in the columns of an index; `schemas/README.md` describes them.

    columns: by name, the values of all packs, of any integers; `store_rows` are numbers of any
        collection of documents.
    offsets: int64 [packs + 1], first segment of each pack.
    row_offsets: int64 [packs + 1], first row of each; None without trees.
    """

    columns: Mapping[str, NDArray[Any]]
    offsets: _Int64
    row_offsets: _Int64 | None = None


class StoredRows(Protocol):
    """Some documents of a collection, each as often as it is asked for, and their values."""

    def has(self, name: str) -> bool:
        """True if there are values of this name."""
        ...

    def pointers(self, name: str) -> Pointers:
        """The first value of each document in a column with a value per token, [documents]."""
        ...

    def numbers(self, name: str) -> NDArray[Any]:
        """Values of a column with a value per document, [documents]."""
        ...

    @property
    def document_ids(self) -> _Int64:
        """Input row of each document, [documents]."""
        ...


class PlannedPacks:
    """The packs of a plan, and their columns.

    at: f(numbers of documents) -> those documents.
    columns: to make, with packprep's names.
    ids: of BOS and of padding.

    offsets: int64 [packs + 1], first segment of each pack.
    starts: int64 [segments + 1], first token of each segment in the batch, and the end.
    """

    def __init__(
        self,
        plan: PacksPlan,
        at: Callable[[NDArray[Any]], StoredRows],
        columns: Sequence[Column],
        ids: tuple[int, int],
        copy: Copy = copy_runs,
    ) -> None:
        self._at, self._columns, self._ids, self._copy = at, columns, ids, copy
        flat, self.offsets = plan.columns, plan.offsets
        self.lengths = flat["lengths"].astype(np.int64, copy=False)
        self.starts = np.append(0, np.cumsum(self.lengths))
        self._trees: TreeIndex | None = None
        if plan.row_offsets is not None:
            self._trees = TreeIndex(flat, self.offsets, plan.row_offsets, self.lengths)
        self._flat = flat
        self.filler = self._trees.filler if self._trees is not None else flat["store_rows"] < 0
        self._has_filler = bool(self.filler.any())
        bos, real = flat.get("bos"), flat.get("segment_lengths")
        self.bos = np.zeros(len(self.lengths), np.bool_) if bos is None else bos.astype(np.bool_)
        self.real = self._or_filler(self.lengths, 0) if real is None else real
        self._count = self.real.astype(np.int64, copy=False) - self.bos
        self._runs: dict[str, Runs] = {}
        self._made: dict[str, NDArray[Any]] = {}  # columns of all packs that others are made of

    def _or_filler(self, values: NDArray[Any], of_filler: int) -> NDArray[Any]:
        """The values, [segments], with another value at filler."""
        return np.where(self.filler, of_filler, values) if self._has_filler else values

    @cached_property
    def _documents(self) -> tuple[_Int64, NDArray[Any]]:
        """Document of each segment, below 0 for filler, and its first token there."""
        if self._trees is not None:
            return self._trees.of_first_rows()
        return self._flat["store_rows"], self._flat["document_starts"]

    @cached_property
    def _rows(self) -> StoredRows:
        """Document of each segment; of filler, any."""
        return self._at(self._or_filler(self._documents[0], 0))

    @cached_property
    def _tree_rows(self) -> StoredRows:
        """Document of each row of the trees."""
        return self._at(self._flat["row_store_rows"])

    def forget(self) -> None:
        """Free where documents are; a column that needs it again looks it up again."""
        self.__dict__.pop("_rows", None)

    def _begins(self, rows: StoredRows, name: str, starts: _Int64) -> Pointers:
        """The value `starts` of each document, [segments]."""
        return rows.pointers(name).shifted(slice(None), starts)

    def runs(self, name: str) -> Runs:
        """Runs of a column with a value per token."""
        if name not in self._runs:
            self._runs[name] = self._positions if name == "position_ids" else self._stored(name)
        return self._runs[name]

    def _stored(self, name: str) -> Runs:
        """Runs of a column of the token files."""
        rows, starts = self._rows, self._documents[1].astype(np.int64, copy=False)
        if self._trees is not None and name == "labels":
            documents, starts = self._trees.of_label_rows()
            rows = self._at(np.maximum(documents, 0))
        values = self._begins(rows, name, starts)
        if "front" not in self._flat:
            return Runs(values, self._count, self.bos, self.lengths)
        # Runs 2i and 2i + 1 are segment i: before the hole with its BOS, and the rest.
        front, bos = np.minimum(self._flat["front"], self._count).astype(np.int64), self.bos
        segment = np.repeat(np.arange(len(front)), 2)
        return Runs(
            values.shifted(segment, _pairs(np.zeros_like(front), front + self._flat["hole"])),
            _pairs(front, self._count - front),
            _pairs(bos, np.zeros_like(bos)),
            _pairs(front + bos, self.lengths - front - bos),
        )

    @property
    def _positions(self) -> Runs:
        """Runs of 0, 1, 2, ..., or of what follows the tokens before a segment on its path."""
        before = np.zeros_like(self.lengths) if self._trees is None else self._trees.before
        most = int((before + self.lengths).max(initial=0))
        dtype = next(each.numpy_dtype for each in self._columns if each.name == "position_ids")
        values = Pointers.into(np.arange(most, dtype=dtype), before)
        return Runs(values, self.lengths, np.zeros_like(self.bos), self.lengths)

    def fill(self, name: str, first: int, last: int, out: NDArray[Any]) -> None:
        """Write a column with a value per token, of segments first..last - 1.

        out: [tokens], of any type that has its values.
        """
        match name:
            case "tokens":
                self._fill_tokens(first, last, out)
            case "labels":
                self._fill_labels(first, last, out)
            case "label_weights" if name in self._made:
                out[:] = self._made[name]
            case "label_weights":
                assert self._trees is not None
                labels = np.empty(len(out), np.int32)
                out[:] = self._fill_tree_labels(self._trees, first, last, labels)
            case _:
                self._fill(name, first, last, 0, 0, out)

    def _fill(
        self, name: str, first: int, last: int, before: int, after: int, out: NDArray[Any]
    ) -> None:
        runs = self.runs(name)
        each = 2 if len(runs.count) > len(self.lengths) else 1
        self._copy(runs, each * first, each * last, before, after, out)

    def _fill_tokens(self, first: int, last: int, out: NDArray[Any]) -> None:
        if "tokens" in self._made:
            out[:] = self._made["tokens"]
        else:
            self._fill("tokens", first, last, *self._ids, out)

    @cached_property
    def _has_labels(self) -> bool:
        return self._rows.has("labels")

    @cached_property
    def _heads(self) -> tuple[_Int64, NDArray[np.intp], NDArray[np.intp]]:
        """First tokens of each segment without a label, and the segments with more than one.

        Also the segments that end in padding.
        """
        head = np.ones(len(self.lengths), np.int64)
        if "repeated" in self._flat:
            head = np.maximum(head, self.bos + self._flat["repeated"].astype(np.int64))
        head = np.minimum(head, self.lengths)
        return head, np.flatnonzero(head > 1), np.flatnonzero(self.real < self.lengths)

    def _fill_stored_labels(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Write the labels of the token files, or the tokens."""
        if not self._has_labels:
            self._fill_tokens(first, last, out)
        elif self.runs("labels").values.dtype == np.int8:
            self._fill_tokens(first, last, out)
            mask = np.empty(len(out), np.int8)
            self._fill("labels", first, last, 0, 0, mask)
            _keep_labels(mask != 0, out)
        else:
            self._fill("labels", first, last, NO_LOSS, NO_LOSS, out)

    def _fill_labels(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Write labels, and none where a pack has none.

        These tokens have none: the first of each segment, an extra BOS, those that an earlier piece
        has too, and padding.
        """
        if self._trees is not None:
            self._fill_tree_labels(self._trees, first, last, out)
            return
        self._fill_stored_labels(first, last, out)
        begin = self.starts[first]
        out[self.starts[first:last] - begin] = NO_LOSS
        head, longer, padded = self._heads
        if len(some := _between(longer, first, last)):
            out[ranges_at(self.starts[some] - begin, head[some])] = NO_LOSS
        if len(some := _between(padded, first, last)):
            real = self.real[some]
            out[ranges_at(self.starts[some] - begin + real, self.lengths[some] - real)] = NO_LOSS

    def _fill_tree_labels(
        self, trees: TreeIndex, first: int, last: int, out: NDArray[Any]
    ) -> NDArray[np.int32]:
        """Write labels of trees, and return the number of rows that train each token, [tokens]."""
        self._fill_stored_labels(first, last, out)
        rows = trees.rows_begun(first, last)
        _keep_labels(rows > 0, out)
        rows *= out != NO_LOSS
        return rows

    @cached_property
    def views(self) -> dict[str, ListView]:
        """Columns with a value per segment, boundary or row, by packprep's names."""
        return {
            column.name: ListView(self._list_offsets(column), self._values(column))
            for column in self._columns
            if column.kind != "token"
        }

    def _list_offsets(self, column: Column) -> NDArray[np.int32]:
        match column.kind:
            case "token":
                offsets = self.starts[self.offsets]
            case "segment":
                offsets = self.offsets
            case "row":
                assert self._trees is not None
                offsets = self._trees.row_offsets
            case _:
                offsets = self.offsets + np.arange(len(self.offsets))
        return offsets.astype(np.int32)

    def _values(self, column: Column) -> NDArray[Any]:
        """Values of a column per segment, boundary or row."""
        if column.kind == "row":
            return self._row_values(column)
        rows, starts, dtype = self._rows, self._documents[1], column.numpy_dtype
        values: NDArray[Any]
        match column.name:
            case "cu_seqlens":
                return self._cu_seqlens()
            case "document_ids" | "pair_ids":
                values = self._or_filler(rows.document_ids, FILLER)
            case "document_starts":
                values = starts
            case "segment_lengths":
                values = self.real
            case "segment_parents" if self._trees is not None:
                values = self._trees.columns["segment_parents"]
            case "turn_ids":
                values = self._or_filler(rows.numbers("turn_ids"), FILLER)
            case "pair_sides":
                second = starts >= rows.numbers("pair_split")
                values = self._or_filler(second.astype(dtype), FILLER)
            case name:
                values = self._or_filler(rows.numbers(name), 0)
        return np.ascontiguousarray(values.astype(dtype, copy=False))

    def _row_values(self, column: Column) -> NDArray[Any]:
        """Values of a column per row of the trees."""
        trees, rows, dtype = self._trees, self._tree_rows, column.numpy_dtype
        assert trees is not None
        values: NDArray[Any]
        match column.name:
            case "row_ids":
                values = rows.document_ids
            case "row_turns":
                values = rows.numbers("turn_ids")
            case "row_sides":
                values = trees.columns["row_starts"] >= rows.numbers("pair_split")
            case "row_ends":
                of_pack = self.starts[self.offsets[:-1]]
                values = self.starts[trees.last + 1]
                values = values - np.repeat(of_pack, np.diff(trees.row_offsets))
            case name if name in trees.columns:
                values = trees.columns[name]
            case name:
                values = rows.numbers(name)
        return np.ascontiguousarray(values.astype(dtype, copy=False))

    def _cu_seqlens(self) -> NDArray[np.int32]:
        sizes = np.diff(self.offsets)
        packs = np.arange(len(sizes))
        values = np.zeros(len(self.lengths) + len(sizes), np.int32)
        places = np.arange(len(self.lengths)) + np.repeat(packs, sizes) + 1
        values[places] = self.starts[1:] - np.repeat(self.starts[self.offsets[:-1]], sizes)
        return values

    def _fill_all(self, name: str, out: NDArray[Any]) -> None:
        """Fill a column of all packs, and keep what other columns are made of."""
        if name == "labels" and self._trees is not None:
            weights = self._fill_tree_labels(self._trees, 0, len(self.lengths), out)
            self._made["label_weights"] = weights
        else:
            self.fill(name, 0, len(self.lengths), out)
        if name == "tokens":
            self._made[name] = out

    def record_batch(self, names: Names, needed: Collection[str] | None = None) -> pa.RecordBatch:
        """The packs in the columns of a file, in this spelling.

        needed: other columns with a value per token are left 0; None for all.
        """
        arrays = []
        for column in self._columns:
            if column.kind == "token":
                is_filled = needed is None or column.name in needed
                make = np.empty if is_filled else np.zeros
                values = make(int(self.starts[-1]), column.numpy_dtype)
                if is_filled:
                    self._fill_all(column.name, values)
                view = ListView(self._list_offsets(column), values)
            else:
                view = self.views[column.name]
            arrays.append(list_array(view))
        self._made = {}
        return stored_batch(pa.record_batch(arrays, schema=shard_schema(self._columns)), names)


def _keep_labels(kept: NDArray[np.bool_], labels: NDArray[Any]) -> None:
    """Write NO_LOSS over the other labels; an index by masks would take six times as long."""
    labels -= NO_LOSS
    labels *= kept
    labels += NO_LOSS


def _between(numbers: NDArray[np.intp], first: int, last: int) -> NDArray[np.intp]:
    """Those of ascending numbers that are in first..last - 1."""
    return numbers[slice(*np.searchsorted(numbers, (first, last)))]


def _pairs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Values of both in turn."""
    return np.stack([one, other], axis=1).ravel()
