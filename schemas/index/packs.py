"""From the plan of packs to their columns, gathered from token files.

All packs are made here: shards, packs of an index, and what the loader reads of one. The small
columns are made at once, with a few numpy passes. Values per token are copied when they are asked
for, by numpy or by a compiled function of the caller.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import FILLER, NO_LOSS, Column
from ..names import Names, list_array, stored_batch
from ..views import ListView, in_turn
from .runs import Copy, Pointers, Runs, copy_runs
from .trees import TreeIndex

_Int64 = NDArray[np.int64]
_NOTHING: Mapping[str, NDArray[Any]] = {}


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
            self._trees = TreeIndex(flat, self.offsets, plan.row_offsets, self.starts)
        self._flat = flat
        self.filler = self._trees.filler if self._trees is not None else flat["store_rows"] < 0
        self._has_filler = bool(self.filler.any())
        bos, real = flat.get("bos"), flat.get("segment_lengths")
        self.bos = np.zeros(len(self.lengths), np.bool_) if bos is None else bos.astype(np.bool_)
        self.real = self._or_filler(self.lengths, 0) if real is None else real
        self._count = self.real.astype(np.int64, copy=False) - self.bos
        self._runs: dict[str, Runs] = {}

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
        return rows.pointers(name).shifted(slice(None), starts.astype(np.int64, copy=False))

    def runs(self, name: str) -> Runs:
        """Runs of a column with a value per token."""
        if name not in self._runs:
            match name:
                case "position_ids":
                    self._runs[name] = self._positions
                case "labels":
                    self._runs[name] = self._labels
                case _:
                    values = self._begins(self._rows, name, self._documents[1])
                    self._runs[name] = self._stored(values)
        return self._runs[name]

    def _stored(self, values: Pointers) -> Runs:
        """Runs of a column of the token files. values: the first of each segment."""
        if self._holes is None:
            return Runs(values, self._count, self.bos, self.lengths)
        # Runs 2i and 2i + 1 are segment i: before the hole with its BOS, and the rest.
        (front, _), bos = self._holes, self.bos
        return Runs(
            self._in_runs(values),
            in_turn(front, self._count - front),
            in_turn(bos, np.zeros_like(bos)),
            in_turn(front + bos, self.lengths - front - bos),
        )

    @cached_property
    def _holes(self) -> tuple[_Int64, _Int64] | None:
        """Tokens before the hole in each segment, and those missing there; None without holes."""
        if "front" not in self._flat:
            return None
        front = np.minimum(self._flat["front"], self._count).astype(np.int64)
        return front, self._flat["hole"].astype(np.int64)

    def _in_runs(self, values: Pointers) -> Pointers:
        """The first value of each run, from that of each segment."""
        if self._holes is None:
            return values
        front, hole = self._holes
        segment = np.repeat(np.arange(len(front)), 2)
        return values.shifted(segment, in_turn(np.zeros_like(front), front + hole))

    @property
    def _labels(self) -> Runs:
        """Runs of labels: of the token files, or the tokens, all or by a mask.

        These tokens have none: the first of each segment, an extra BOS, those that an earlier piece
        has too, and padding. In trees, those before the first label of any row.
        """
        runs, rows, starts, head = self.runs("tokens"), self._rows, self._documents[1], self._head
        if self._trees is not None:
            documents, starts, head = self._trees.of_label_rows()
            rows = self._at(np.maximum(documents, 0))
        if self._holes is not None:
            first = np.minimum(head, runs.padded[::2])
            head = in_turn(first, head - first)
        if not rows.has("labels"):
            return replace(runs, head=head)
        labels = self._in_runs(self._begins(rows, "labels", starts))
        if labels.dtype == np.int8:
            return replace(runs, mask=labels, head=head)
        return replace(runs, values=labels, head=head)

    @property
    def _head(self) -> _Int64:
        """First tokens of each segment without a label, [segments]."""
        head = np.ones(len(self.lengths), np.int64)
        if "repeated" in self._flat:
            head = np.maximum(head, self.bos + self._flat["repeated"].astype(np.int64))
        return np.minimum(head, self.lengths)

    @property
    def _positions(self) -> Runs:
        """Runs of 0, 1, 2, ..., or of what follows the tokens before a segment on its path."""
        before = np.zeros_like(self.lengths) if self._trees is None else self._trees.before
        most = int((before + self.lengths).max(initial=0))
        dtype = next(each.numpy_dtype for each in self._columns if each.name == "position_ids")
        values = Pointers.into(np.arange(most, dtype=dtype), before)
        return Runs(values, self.lengths, np.zeros_like(self.bos), self.lengths)

    def fill(
        self,
        name: str,
        first: int,
        last: int,
        out: NDArray[Any],
        made: Mapping[str, NDArray[Any]] = _NOTHING,
    ) -> None:
        """Write a column with a value per token, of segments first..last - 1.

        out: [tokens], of any type that has its values. made: columns of all segments, to copy from.
        """
        if name == "label_weights":
            self._fill_weights(first, last, out, made.get("labels"))
            return
        before, after = {"tokens": self._ids, "labels": (NO_LOSS, NO_LOSS)}.get(name, (0, 0))
        runs = self.runs(name)
        if name == "labels" and "tokens" in made and runs.values is self.runs("tokens").values:
            # They are one after another there, and in the cache.
            firsts = np.cumsum(runs.padded) - runs.padded + runs.bos
            runs = replace(runs, values=Pointers.into(made["tokens"], firsts))
        each = 2 if len(runs.count) > len(self.lengths) else 1
        self._copy(runs, each * first, each * last, before, after, out)

    def _fill_weights(
        self, first: int, last: int, out: NDArray[Any], labels: NDArray[Any] | None
    ) -> None:
        """Write the number of rows that train each token."""
        assert self._trees is not None
        if labels is None:
            labels = np.empty(len(out), np.int32)
            self.fill("labels", first, last, labels)
        np.multiply(self._trees.rows_begun(first, last), labels != NO_LOSS, out=out)

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

    def record_batch(self, names: Names, needed: Collection[str] | None = None) -> pa.RecordBatch:
        """The packs in the columns of a file, in this spelling.

        needed: other columns with a value per token are left 0; None for all.
        """
        arrays, made = list[Any](), dict[str, NDArray[Any]]()
        for column in self._columns:
            if column.kind == "token":
                is_filled = needed is None or column.name in needed
                make = np.empty if is_filled else np.zeros
                values = make(int(self.starts[-1]), column.numpy_dtype)
                if is_filled:
                    self.fill(column.name, 0, len(self.lengths), values, made)
                    made[column.name] = values
                view = ListView(self._list_offsets(column), values)
            else:
                view = self.views[column.name]
            arrays.append(list_array(view))
        batch = pa.record_batch(arrays, names=[column.name for column in self._columns])
        return stored_batch(batch, names)
