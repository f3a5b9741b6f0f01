"""Record batches of an index: plans of packs, checked before anything is read by them."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import FILLER, Column
from ..errors import FormatError
from ..index_table import IndexTable
from ..views import list_view
from .packs import PacksPlan, PlannedPacks, StoredRows
from .runs import Copy, Pointers, copy_runs
from .token_store import Located, WindowRows
from .trees import TreeIndex

_Int64 = NDArray[np.int64]


class IndexBatch(PlannedPacks):
    """The packs of one record batch of an index output.

    Raises FormatError if the batch is no plan of packs over these documents.

    batch: of a shard.
    rows: documents of its window.
    columns: of the manifest, with packprep's names.
    where, first_pack: file and number of the first pack, for messages.
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
        self._where, self._first_pack = where, first_pack
        plan = self._plan(batch, table)
        super().__init__(plan, rows.at, columns, (table.bos_id, table.pad_id), copy)
        if not rows.total:
            raise FormatError(f"{where} has packs, and its window has no documents")
        if self._trees is not None:
            self._check_trees(self._trees, rows.total)
        documents, starts = self._documents
        bad = (
            (documents < FILLER)
            | (documents >= rows.total)
            | (starts < 0)
            | (self.lengths < 1)
            | (self._count < 0)
            | (self.real > self.lengths)
            | (self.filler & (self._count > 0))
        )
        if "front" in plan.columns:
            bad |= (plan.columns["front"] < 0) | (plan.columns["hole"] < 0)
        self._check(bad, "it is no segment of a document")
        sizes, tokens = np.diff(self.offsets), np.diff(self.starts[self.offsets])
        for wrong, what in (
            (sizes < 1, "it has no segment"),
            (tokens > max_length, f"it has more than {max_length} tokens"),
        ):
            if wrong.any():
                raise self._bad(int(np.flatnonzero(wrong)[0]), what)
        self.runs("tokens")

    def _plan(self, batch: pa.RecordBatch, table: IndexTable) -> PacksPlan:
        views = {
            column.name: list_view(batch, column.name, self._where) for column in table.columns
        }
        offsets: dict[str, _Int64] = {}
        for column in table.columns:
            of_column = views[column.name].offsets.astype(np.int64)
            of_kind = offsets.setdefault(column.kind, of_column - of_column[0])
            if not np.array_equal(of_column - of_column[0], of_kind):
                raise self._bad(0, f"its columns have different numbers of {column.kind}s")
        return PacksPlan(
            columns={name: view.flat for name, view in views.items()},
            offsets=offsets["segment"],
            row_offsets=offsets.get("row"),
        )

    def _bad(self, pack: int, what: str) -> FormatError:
        """pack: counted from the first of the batch."""
        where = f"{self._where} pack {self._first_pack + pack}"
        return FormatError(f"{where}: {what}; restore the file or build again")

    def _check(
        self, bad: NDArray[np.bool_], what: str, kind: str = "segment", firsts: Any = None
    ) -> None:
        """bad: mask of the segments, or of other parts of packs. firsts: the first of each pack."""
        if bad.any():
            firsts = self.offsets if firsts is None else firsts
            place = int(np.flatnonzero(bad)[0])
            pack = int(np.searchsorted(firsts, place, side="right")) - 1
            raise self._bad(pack, f"{kind} {place - int(firsts[pack])}: {what}")

    def _check_trees(self, trees: TreeIndex, documents: int) -> None:
        bad = trees.bad_rows | (trees.columns["row_store_rows"] >= documents)
        self._check(bad, "it is no row of its trees", "row", trees.row_offsets)
        self._check(trees.bad_segments, "it is no segment of a tree")

    def _begins(self, rows: StoredRows, name: str, starts: _Int64) -> Pointers:
        """See `PlannedPacks`; all values that are read are in their documents."""
        assert isinstance(rows, Located)
        lengths = rows.lengths("tokens")
        need = starts + self._count + self._flat.get("hole", 0)
        late = ~self.filler & (need > lengths) & (self._count > 0)
        self._check(late, "it ends after its document")
        if not np.array_equal(rows.lengths(name), lengths):
            raise FormatError(
                f"{self._where}: a document has other numbers of values in tokens and {name}; "
                "restore the token store or build again"
            )
        return super()._begins(rows, name, starts)
