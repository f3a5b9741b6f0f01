"""Columns of shards that hold trees: parents of segments, weights of labels, and the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import STANDARD_COLUMNS, Column
from packprep.support.arrays import Int64
from packprep.windows.documents import Documents
from packprep.windows.pairs import SPLIT
from packprep.windows.placement import SegmentRows, TreeRows
from packprep.windows.trees import Weights


def tree_columns(carried: Sequence[Column]) -> tuple[list[str], list[Column]]:
    """Names of the columns that trees need, and the carried columns, with a value for each row."""
    own = {column.name for column in carried}
    names = ["segment_parents", "label_weights", "row_ids", "row_starts"]
    names += ["row_turns"] if "turn_ids" in own else []
    names += ["row_sides"] if "pair_sides" in own else []
    names += ["row_segments", "row_ends", "row_trained", "row_label_starts"]
    return names, [
        Column(name=column.name, kind="row", dtype=column.dtype)
        if column.kind == "segment" and column.name not in STANDARD_COLUMNS
        else column
        for column in carried
    ]


@dataclass(frozen=True, kw_only=True)
class TreeColumns:
    """Values of the columns of one record batch.

    weights: see `Trees.weights`. document: [rows], index into the arrays of documents.
    """

    segments: SegmentRows
    rows: TreeRows
    documents: Documents
    weights: Weights
    document: NDArray[np.int32]

    @staticmethod
    def of(segments: SegmentRows, rows: TreeRows, documents: Documents) -> "TreeColumns":
        """Count the weights of the trees of these packs."""
        ends = np.cumsum(segments.padded)
        weights = rows.trees.weights(
            rows.number, rows.last, rows.segment, rows.parent, ends - segments.padded, int(ends[-1])
        )
        return TreeColumns(
            segments=segments,
            rows=rows,
            documents=documents,
            weights=weights,
            document=rows.trees.rows.document[rows.number],
        )

    def has(self, column: Column) -> bool:
        """True if `values` gives this column."""
        return column.kind == "row" or column.name in ("segment_parents", "label_weights")

    def values(self, name: str) -> NDArray[Any]:
        """The values of all packs, concatenated."""
        rows, first = self.rows, self.segments.offsets[:-1]  # first segment of each pack
        match name:
            case "segment_parents":
                before = np.repeat(first, np.diff(self.segments.offsets))
                return np.where(rows.parent >= 0, rows.parent - before, -1)
            case "label_weights":
                return self.weights.of_tokens
            case "row_ids":
                return self.documents.id[self.document]
            case "row_starts":
                return rows.trees.rows.start[rows.number]
            case "row_turns":
                return self.documents.values["turn_ids"][self.document]
            case "row_sides":
                split = self.documents.values[SPLIT][self.document]
                return rows.trees.rows.start[rows.number] >= split
            case "row_segments":
                return rows.last - self._of_pack(first)
            case "row_ends":
                ends = np.cumsum(self.segments.padded)
                return ends[rows.last] - self._of_pack((ends - self.segments.padded)[first])
            case "row_trained":
                return self.weights.trained
            case "row_label_starts":
                return self.weights.begin
        return self.documents.values[name][self.document]

    def _of_pack(self, values: Int64) -> Int64:
        """The value of each row's pack, [rows]; values: [packs]."""
        return np.repeat(values, np.diff(self.rows.offsets))
