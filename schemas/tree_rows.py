"""Checks of the rows of trees: their places, their labels, and the columns that follow from them.

A row trains the labels on its path from `row_label_starts` on. So `row_trained` and `label_weights`
follow from the labels, and the documents of a segment from the first row that has it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch_view import BatchView
from .columns import FILLER, NO_LOSS
from .findings import Findings
from .pairs import unpaired

_Int64 = NDArray[np.int64]

OF_ROWS = {
    "document_ids": "row_ids",
    "document_starts": "row_starts",
    "turn_ids": "row_turns",
    "pair_ids": "row_ids",
    "pair_sides": "row_sides",
}
"""Column of the rows that takes the place of a column of segments, if rows are segments."""


def check_rows(
    view: BatchView,
    before: _Int64,
    path: tuple[_Int64, _Int64],
    last: _Int64,
    findings: Findings,
) -> None:
    """Check the table of rows, the labels and their weights against it.

    before: [segments], tokens before each on its path. path: rows and their segments, see
    `row_paths`. last: [rows], the segment at which each ends, counted over the batch.
    """
    rows = _Rows(view, last, findings)
    columns, lengths = view.columns, view.ends - view.starts
    if rows.report(rows.moves_back, "row_segments", "expected the order of the segments"):
        return
    ends = view.ends[last] - view.pack_tokens[rows.pack]
    rows.report(columns["row_ends"] != ends, "row_ends", "expected its end")
    rows.report(columns["row_ids"] <= FILLER, "row_ids", "expected an input row")
    if (sides := columns.get("row_sides")) is not None:
        rows.report((sides < 0) | (sides > 1), "row_sides", "expected 0 or 1")
        alone = unpaired(rows.pack, columns["row_ids"], sides)
        rows.report(alone, "row_sides", "expected a row of the other side in this pack")
    through = np.bincount(path[1], minlength=len(before))
    findings.many(
        "tree",
        np.flatnonzero((through == 0) & ~view.filler),
        lambda segment: view.segment(segment, "tree", "no row of the table has it; expected one"),
    )
    _check_first_rows(view, before, last, through > 0, findings)
    begins = columns["row_label_starts"].astype(np.int64)
    outside = (begins < 1) | (begins > before[last] + lengths[last])
    what = "expected 1 to the tokens of the row"
    if not rows.report(outside, "row_label_starts", what):
        _check_labels(view, before, path, begins, rows)


class _Rows:
    """Rows of a batch, to report those with a wrong value. pack: [rows], of each."""

    def __init__(self, view: BatchView, last: _Int64, findings: Findings) -> None:
        assert view.pack_rows is not None
        self.view, self.findings = view, findings
        self.pack = np.repeat(np.arange(len(view.pack_rows) - 1), np.diff(view.pack_rows))
        self.moves_back = np.append(False, np.diff(last) < 0)[: len(last)]

    def report(self, wrong: NDArray[np.bool_], column: str, expected: str) -> bool:
        """Report rows with a wrong value; True if there are any."""
        view, values = self.view, self.view.columns[column]
        assert view.pack_rows is not None
        firsts = view.pack_rows

        def finding(row: int) -> Any:
            pack = int(self.pack[row])
            what = f"row {row - firsts[pack]}: {column} has {values[row]}; {expected}"
            return view.pack(pack, "tree", what)

        self.findings.many("tree", np.flatnonzero(wrong), finding)
        return bool(wrong.any())


def _check_first_rows(
    view: BatchView,
    before: _Int64,
    last: _Int64,
    has_rows: NDArray[np.bool_],
    findings: Findings,
) -> None:
    """Check that the columns of segments are those of the first row that has each."""
    segments = np.flatnonzero(has_rows & ~view.filler)
    first = np.searchsorted(last, segments)
    for name, of_row in OF_ROWS.items():
        if name not in view.columns or of_row not in view.columns:
            continue
        expected = view.columns[of_row][first].astype(np.int64)
        if name == "document_starts":
            expected += before[segments]
        values = view.columns[name][segments]

        def finding(
            at: int, name: str = name, values: Any = values, expected: Any = expected
        ) -> Any:
            what = f"{name} has {values[at]}; expected {expected[at]}, of the first row that has it"
            return view.segment(int(segments[at]), "tree", what)

        findings.many("tree", np.flatnonzero(values != expected), finding)


def _check_labels(
    view: BatchView, before: _Int64, path: tuple[_Int64, _Int64], begins: _Int64, rows: _Rows
) -> None:
    """Check weights, trained tokens and first labels of rows. begins: [rows], row_label_starts."""
    row, segment = path
    weights, labels = view.columns["label_weights"], view.columns["labels"]
    is_label = labels != NO_LOSS
    place = np.maximum(begins[row] - before[segment], 0)  # in the segment, or after it
    starts, ends = view.starts[segment], view.ends[segment]
    first = np.minimum(starts + place, ends)
    counts = np.append(0, np.cumsum(is_label))
    trained = np.bincount(row, counts[ends] - counts[first], len(begins)).astype(np.int64)
    wrong = view.columns["row_trained"] != trained
    rows.report(wrong, "row_trained", "expected its labels from row_label_starts on")
    here = np.flatnonzero((first < ends) & (begins[row] >= before[segment]))
    late = np.zeros(len(begins), np.bool_)
    late[row[here]] = ~is_label[first[here]]
    rows.report(late, "row_label_starts", "expected the place of a label")
    steps = np.bincount(first, minlength=len(labels) + 1)
    steps -= np.bincount(ends, minlength=len(labels) + 1)
    begun = np.cumsum(steps[:-1])
    bad = (weights != np.where(is_label, begun, 0)) | (is_label & (begun == 0))
    rows.findings.many(
        "tree",
        np.flatnonzero(bad),
        lambda token: view.token(
            token,
            "tree",
            f"label_weights has {weights[token]} and the label is {labels[token]}; expected the "
            f"{begun[token]} rows whose labels have begun, and 0 where the label is {NO_LOSS}",
        ),
    )
