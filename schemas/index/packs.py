"""One record batch of an index output: the columns of its packs, gathered from token files.

The small columns are made at once, with a few numpy passes. Values per token are copied when they
are asked for, by numpy or by a compiled function of the caller.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import FILLER, NO_LOSS, Column, shard_schema
from ..errors import FormatError
from ..index_table import IndexTable
from ..names import Names, list_array, stored_batch
from ..views import ListView, list_view
from .runs import Copy, TokenRuns, copy_runs
from .token_file import TokenPlaces
from .token_store import Located, WindowRows
from .trees import TreeIndex

_Int64 = NDArray[np.int64]


class IndexBatch:
    """The packs of one record batch of an index output.

    batch: of a shard. rows: documents of its window. columns: of the manifest, with packprep's
    names. where, first_pack: file and number of the first pack, for messages.

    offsets: int64 [packs + 1], first segment of each pack. starts: int64 [segments + 1], first
    token of each segment in the batch, and the end. Raises FormatError if the batch is no plan of
    packs over these documents.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        rows: WindowRows,
        columns: tuple[Column, ...],
        table: IndexTable,
        max_length: int,
        where: str,
        first_pack: int = 0,
        copy: Copy = copy_runs,
    ) -> None:
        self._columns, self._table, self._where, self._copy = columns, table, where, copy
        self._first_pack = first_pack
        views = {column.name: list_view(batch, column.name, where) for column in table.columns}
        flat = {name: view.flat for name, view in views.items()}
        offsets: dict[str, _Int64] = {}
        for column in table.columns:
            of_column = views[column.name].offsets.astype(np.int64)
            of_kind = offsets.setdefault(column.kind, of_column - of_column[0])
            if not np.array_equal(of_column - of_column[0], of_kind):
                raise self._bad(0, f"its columns have different numbers of {column.kind}s")
        self.offsets = offsets["segment"]
        self.lengths = flat["lengths"].astype(np.int64)
        self._trees: TreeIndex | None = None
        if "segment_parents" in flat:
            self._trees = TreeIndex(flat, self.offsets, offsets["row"], self.lengths, rows.total)
            self._check_trees(self._trees)
            store_rows, self._document_starts = self._trees.of_first_rows()
        else:
            store_rows, self._document_starts = flat["store_rows"], flat["document_starts"]
        self.filler = store_rows < 0
        self.bos = flat["bos"] != 0 if "bos" in flat else np.zeros(len(store_rows), np.bool_)
        self.real = (
            flat["segment_lengths"].astype(np.int64)
            if "segment_lengths" in flat
            else np.where(self.filler, 0, self.lengths)
        )
        self._repeated = flat.get("repeated")
        front, hole = flat.get("front"), flat.get("hole")
        count = self.real - self.bos
        bad = (
            (store_rows < FILLER)
            | (store_rows >= rows.total)
            | (self._document_starts < 0)
            | (self.lengths < 1)
            | (count < 0)
            | (self.real > self.lengths)
            | (self.filler & (count > 0))
        )
        if front is not None and hole is not None:
            bad |= (front < 0) | (hole < 0)
        self._check(bad, "it is no segment of a document")
        sizes = np.diff(self.offsets)
        self.starts = np.append(0, np.cumsum(self.lengths))
        tokens = np.diff(self.starts[self.offsets])
        for wrong, what in (
            (sizes < 1, "it has no segment"),
            (tokens > max_length, f"it has more than {max_length} tokens"),
        ):
            if wrong.any():
                raise self._bad(int(np.flatnonzero(wrong)[0]), what)
        self._rows = rows
        self._located = rows.locate(np.where(self.filler, 0, store_rows)) if rows.total else None
        self._front = None if front is None else np.minimum(front, count).astype(np.int64)
        self._hole = None if hole is None else hole.astype(np.int64)
        self._count = count
        self._runs: dict[str, TokenRuns] = {}
        self._check_ends(self._document_starts, self._tokens)

    def _bad(self, pack: int, what: str) -> FormatError:
        """pack: counted from the first of the batch."""
        where = f"{self._where} pack {self._first_pack + pack}"
        return FormatError(f"{where}: {what}; restore the file or build again")

    def _check(self, bad: NDArray[np.bool_], what: str) -> None:
        if bad.any():
            segment = int(np.flatnonzero(bad)[0])
            pack = int(np.searchsorted(self.offsets, segment, side="right")) - 1
            number = segment - int(self.offsets[pack])
            raise self._bad(pack, f"segment {number}: {what}")

    def _check_trees(self, trees: TreeIndex) -> None:
        self._check(trees.bad_segments, "it is no segment of a tree")
        if trees.bad_rows.any():
            row = int(np.flatnonzero(trees.bad_rows)[0])
            pack = int(np.searchsorted(trees.row_offsets, row, side="right")) - 1
            number = row - int(trees.row_offsets[pack])
            raise self._bad(pack, f"row {number}: it is no row of its trees")

    def _check_ends(self, starts: _Int64, tokens: tuple[TokenPlaces, Any]) -> None:
        """starts: first token of each segment in its document, [segments]."""
        need = starts + self._count + (0 if self._hole is None else self._hole)
        late = ~self.filler & (need > tokens[0].length) & (self._count > 0)
        self._check(late, "it ends after its document")

    @cached_property
    def _tokens(self) -> Any:
        return self._lists("tokens", self._located)

    def _lists(self, name: str, located: Located | None) -> Any:
        """Places of a column with a value per token; of filler, anywhere."""
        if located is None:
            raise FormatError(f"{self._where} has packs, and its window has no documents")
        return self._rows.lists(located, name)

    def runs(self, name: str) -> TokenRuns:
        """TokenRuns of a column of the token files."""
        if name not in self._runs:
            located, starts, of_tokens = self._located, self._document_starts, self._tokens
            assert located is not None
            if self._trees is not None and name == "labels":
                documents, starts = self._trees.of_label_rows()
                located = self._rows.locate(np.maximum(documents, 0))
                of_tokens = self._lists("tokens", located)
                self._check_ends(starts, of_tokens)
            places, dtype = of_tokens if name == "tokens" else self._lists(name, located)
            if name != "tokens" and not np.array_equal(places.length, of_tokens[0].length):
                raise FormatError(
                    f"{self._where}: a document has other numbers of values in tokens and {name}; "
                    "restore the token store or build again"
                )
            begin = places.position + starts
            file, count, bos, padded = located.file, self._count, self.bos, self.lengths
            if self._front is not None and self._hole is not None:
                # TokenRuns 2i and 2i + 1 are segment i: before the hole with its BOS, and the rest.
                front = self._front
                begin = _pairs(begin, begin + front + self._hole)
                padded = _pairs(front + bos, padded - front - bos)
                count = _pairs(front, count - front)
                file, bos = np.repeat(file, 2), _pairs(bos, np.zeros_like(bos))
            views = self._rows.views(located, dtype)
            self._runs[name] = TokenRuns(views, file, begin, count, bos, padded)
        return self._runs[name]

    def fill(self, name: str, first: int, last: int, out: NDArray[Any]) -> None:
        """Write a column with a value per token, of segments first..last - 1.

        out: [tokens], of any type that has its values.
        """
        match name:
            case "tokens":
                self._fill(name, first, last, self._table.bos_id, self._table.pad_id, out)
            case "position_ids":
                lengths = self.lengths[first:last]
                ends = np.cumsum(lengths)
                starts = ends - lengths
                if self._trees is not None:
                    starts = starts - self._trees.before[first:last]
                out[:] = np.arange(len(out)) - np.repeat(starts, lengths)
            case "labels":
                self._fill_labels(first, last, out)
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
        if self._front is not None:
            first, last = 2 * first, 2 * last
        self._copy(runs, first, last, before, after, out)

    @cached_property
    def _has_labels(self) -> bool:
        assert self._located is not None
        return self._rows.has(self._located, "labels")

    @cached_property
    def _heads(self) -> tuple[_Int64, NDArray[np.intp], NDArray[np.intp]]:
        """First tokens of each segment without a label, and the segments with more than one.

        Also the segments that end in padding.
        """
        head = np.ones(len(self.lengths), np.int64)
        if self._repeated is not None:
            head = np.maximum(head, self.bos + self._repeated.astype(np.int64))
        head = np.minimum(head, self.lengths)
        return head, np.flatnonzero(head > 1), np.flatnonzero(self.real < self.lengths)

    def _fill_stored_labels(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Write the labels of the token files, or the tokens."""
        if not self._has_labels:
            self.fill("tokens", first, last, out)
        elif self.runs("labels").dtype == np.int8:
            self.fill("tokens", first, last, out)
            mask = np.empty(len(out), np.int8)
            self._fill("labels", first, last, 0, 0, mask)
            out[mask == 0] = NO_LOSS
        else:
            self._fill("labels", first, last, NO_LOSS, NO_LOSS, out)

    def _fill_labels(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Write labels, and none where a build has none."""
        if self._trees is not None:
            self._fill_tree_labels(self._trees, first, last, out)
            return
        self._fill_stored_labels(first, last, out)
        starts = self.starts[first : last + 1] - self.starts[first]
        out[starts[:-1]] = NO_LOSS
        head, longer, padded = self._heads
        for segment in longer[slice(*np.searchsorted(longer, (first, last)))].tolist():
            start = starts[segment - first]
            out[start : start + head[segment]] = NO_LOSS
        for segment in padded[slice(*np.searchsorted(padded, (first, last)))].tolist():
            start, end = starts[segment - first : segment - first + 2]
            out[start + self.real[segment] : end] = NO_LOSS

    def _fill_tree_labels(
        self, trees: TreeIndex, first: int, last: int, out: NDArray[Any]
    ) -> _Int64:
        """Write labels of trees, and return the number of rows that train each token, [tokens]."""
        self._fill_stored_labels(first, last, out)
        rows = trees.rows_begun(first, last)
        out[rows == 0] = NO_LOSS
        rows[out == NO_LOSS] = 0
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
        assert self._located is not None
        rows, located, dtype = self._rows, self._located, column.numpy_dtype
        values: NDArray[Any]
        match column.name:
            case "cu_seqlens":
                return self._cu_seqlens()
            case "document_ids" | "pair_ids":
                values = np.where(self.filler, FILLER, rows.document_ids(located))
            case "document_starts":
                values = self._document_starts
            case "segment_lengths":
                values = self.real
            case "segment_parents" if self._trees is not None:
                values = self._trees.columns["segment_parents"]
            case "turn_ids":
                values = np.where(self.filler, FILLER, rows.numbers(located, "turn_ids", dtype))
            case "pair_sides":
                split = rows.numbers(located, "pair_split", np.dtype(np.int64))
                values = np.where(self.filler, FILLER, self._document_starts >= split)
            case name:
                values = np.where(self.filler, 0, rows.numbers(located, name, dtype))
        return np.ascontiguousarray(values.astype(dtype, copy=False))

    def _row_values(self, column: Column) -> NDArray[Any]:
        """Values of a column per row of the trees."""
        trees, rows, dtype = self._trees, self._rows, column.numpy_dtype
        assert trees is not None
        located = rows.locate(trees.columns["row_store_rows"])
        values: NDArray[Any]
        match column.name:
            case "row_ids":
                values = rows.document_ids(located)
            case "row_turns":
                values = rows.numbers(located, "turn_ids", dtype)
            case "row_sides":
                split = rows.numbers(located, "pair_split", np.dtype(np.int64))
                values = trees.columns["row_starts"] >= split
            case "row_ends":
                of_pack = self.starts[self.offsets[:-1]]
                values = self.starts[trees.last + 1]
                values = values - np.repeat(of_pack, np.diff(trees.row_offsets))
            case name if name in trees.columns:
                values = trees.columns[name]
            case name:
                values = rows.numbers(located, name, dtype)
        return np.ascontiguousarray(values.astype(dtype, copy=False))

    def _cu_seqlens(self) -> NDArray[np.int32]:
        sizes = np.diff(self.offsets)
        packs = np.arange(len(sizes))
        values = np.zeros(len(self.lengths) + len(sizes), np.int32)
        places = np.arange(len(self.lengths)) + np.repeat(packs, sizes) + 1
        values[places] = self.starts[1:] - np.repeat(self.starts[self.offsets[:-1]], sizes)
        return values

    def record_batch(self, names: Names, *, tokens: bool = True) -> pa.RecordBatch:
        """The packs as a build without an index writes them, in this spelling.

        tokens: False to leave 0 in columns with a value per token, except labels and their weights.
        """
        arrays = []
        for column in self._columns:
            if column.kind == "token":
                values = np.zeros(int(self.starts[-1]), column.numpy_dtype)
                if tokens or column.name in ("labels", "label_weights"):
                    self.fill(column.name, 0, len(self.lengths), values)
                view = ListView(self._list_offsets(column), values)
            else:
                view = self.views[column.name]
            arrays.append(list_array(view))
        return stored_batch(pa.record_batch(arrays, schema=shard_schema(self._columns)), names)


def _pairs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Values of both in turn."""
    return np.stack([one, other], axis=1).ravel()
