"""Checks of trees: parents of segments, positions that go on from them, weights, and rows.

A row trains the labels on its path from `row_label_starts` on. So `row_trained` and `label_weights`
follow from the labels, and the documents of a segment from the first row that has it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch_view import BatchView
from .columns import FILLER, NO_LOSS, Column
from .findings import Findings
from .views import ranges_at

_Int64 = NDArray[np.int64]


def parents_in_batch(view: BatchView) -> _Int64 | None:
    """Parent of each segment, counted over the batch, -1 for none; None without trees."""
    parents = view.columns.get("segment_parents")
    if parents is None:
        return None
    first = np.repeat(view.pack_segments[:-1], np.diff(view.pack_segments))
    return np.where(parents >= 0, parents + first, -1)


def path_starts(parents: _Int64, lengths: _Int64) -> _Int64:
    """Tokens before each segment on the path from its root, [segments].

    parents: [segments], smaller than the segment's own number, or -1. lengths: their tokens.
    """
    before: _Int64 = np.append(lengths, 0).take(np.append(parents, -1))
    for above in leaps(parents):
        before = before + before.take(above)
    return before[:-1]


def path_ends(parents: _Int64) -> _Int64:
    """The segment after the last whose path goes through each one, [segments].

    parents: see `path_starts`; segments are in depth-first order.
    """
    ends = np.arange(1, len(parents) + 2)
    for above in leaps(parents):
        np.maximum.at(ends, above, ends.copy())
    return ends[:-1]


def leaps(parents: _Int64) -> Iterator[_Int64]:
    """The segments 1, 2, 4, ... steps above each one, -1 for none, until there are no more.

    [segments + 1]: the last entry is that of -1.
    """
    above = np.append(parents, -1)
    while (above >= 0).any():
        yield above
        above = above.take(above)


def row_paths(parent: _Int64, last: _Int64) -> tuple[_Int64, _Int64]:
    """Segments on the path of each row, from its root on: (row, segment), both [pairs].

    parent: [segments], -1 at a root. last: [rows], the segment at which each row ends.
    """
    levels, sizes = list[tuple[_Int64, _Int64]](), np.zeros(len(last), np.int64)
    row, at = np.arange(len(last)), last
    while len(row):
        levels.append((row, at))
        sizes[row] += 1
        inside = parent[at] >= 0
        row, at = row[inside], parent[at[inside]]
    ends = np.cumsum(sizes)
    segments = np.empty(int(sizes.sum()), np.int64)
    for level, (row, at) in enumerate(levels, 1):
        segments[ends[row] - level] = at
    return np.repeat(np.arange(len(last)), sizes), segments


def path_tokens(parent: _Int64, boundaries: _Int64, last: _Int64) -> tuple[_Int64, _Int64]:
    """Position of each token of each row, and the boundaries of the rows, [rows + 1].

    parent: [segments], -1 at a root. boundaries: [segments + 1]. last: [rows], the segment at which
    each ends.
    """
    row, segment = row_paths(parent, last)
    lengths = np.diff(boundaries)[segment]
    sizes = np.bincount(row, lengths, len(last)).astype(np.int64)
    return ranges_at(boundaries[segment], lengths), np.append(0, np.cumsum(sizes))


def row_labels(
    labels: NDArray[Any], tokens: _Int64, rows: _Int64, label_starts: NDArray[Any]
) -> NDArray[Any]:
    """Labels of the rows: those of the trees, from the first label of each row on.

    labels: [tokens], unshifted. tokens, rows: see `path_tokens`.
    """
    lengths = np.diff(rows)
    place = np.arange(len(tokens)) - np.repeat(rows[:-1], lengths)
    own = labels[tokens]
    own[place < np.repeat(label_starts, lengths)] = NO_LOSS
    return own


OF_ROWS = {
    "document_ids": "row_ids",
    "document_starts": "row_starts",
    "turn_ids": "row_turns",
    "pair_ids": "row_ids",
    "pair_sides": "row_sides",
}
"""Column of the rows that takes the place of a column of segments, if rows are segments."""


def last_segments(view: BatchView) -> _Int64:
    """Segment at which each row ends, counted over the batch, [rows]."""
    assert view.pack_rows is not None
    first = np.repeat(view.pack_segments[:-1], np.diff(view.pack_rows))
    ends: _Int64 = view.columns["row_segments"] + first
    return ends


def segment_documents(view: BatchView) -> NDArray[np.int64]:
    """Input row of each segment, -1 for filler: that of the first row through it, [segments]."""
    if (stored := view.columns.get("document_ids")) is not None:
        return stored
    # Rows are in the order of their ends, and depth first: so the first that ends at a segment or
    # after it goes through it.
    row = np.searchsorted(last_segments(view), np.arange(len(view.starts)))
    ids = np.append(view.columns["row_ids"], FILLER)[row]
    return np.where(view.filler, FILLER, ids)


def rows_view(view: BatchView, carried: Sequence[Column] = ()) -> BatchView:
    """The same packs with a segment for each row, as if no prefix were shared.

    document_ids and document_starts are always among its columns. Each segment is numbered by that
    at which the row ends. Filler stays. Labels are those of the row. carried: other columns of
    tokens and rows to keep.
    """
    parent, last = parents_in_batch(view), last_segments(view)
    assert parent is not None
    filler = np.flatnonzero(view.filler)
    order = np.argsort(np.append(last, filler), kind="stable")
    ends = np.append(last, filler)[order]  # fillers are behind all rows of their packs
    tokens, boundaries = path_tokens(parent, np.append(view.starts, view.pack_tokens[-1:]), ends)
    names = ["tokens", *(column.name for column in carried if column.kind == "token")]
    columns = {name: view.columns[name][tokens] for name in names}
    begins = np.append(view.columns["row_label_starts"], np.zeros(len(filler), np.int32))[order]
    columns["labels"] = row_labels(view.columns["labels"], tokens, boundaries, begins)
    for column in carried:
        if column.kind == "row":
            values = view.columns[column.name]
            columns[column.name] = np.append(values, np.zeros(len(filler), values.dtype))[order]
    for name in dict.fromkeys([*view.columns, "document_ids", "document_starts"]):
        if (of_row := OF_ROWS.get(name)) in view.columns:
            fill = np.full(len(filler), 0 if name == "document_starts" else FILLER)
            columns[name] = np.append(view.columns[str(of_row)], fill)[order]
    pack_segments = np.searchsorted(ends, view.pack_segments)
    packs = np.repeat(np.arange(len(pack_segments) - 1), np.diff(pack_segments))
    return BatchView(
        where=view.where,
        first_pack=view.first_pack,
        columns=columns,
        pack_tokens=boundaries[pack_segments],
        pack_segments=pack_segments,
        starts=boundaries[:-1],
        ends=boundaries[1:],
        numbers=ends - view.pack_segments[packs],
    )


def check_trees(view: BatchView, findings: Findings) -> _Int64 | None:
    """Report wrong parents, weights and rows; return the position at which each segment starts.

    Returns None if parents are wrong, because nothing else of a tree can be checked then.
    """
    parent = parents_in_batch(view)
    if parent is None:
        return np.zeros(len(view.starts), np.int64)
    numbers = np.arange(len(parent))
    first = np.repeat(view.pack_segments[:-1], np.diff(view.pack_segments))
    parents = view.columns["segment_parents"]

    def report(segments: NDArray[np.bool_], what: str) -> bool:
        findings.many(
            "tree",
            np.flatnonzero(segments),
            lambda segment: view.segment(segment, "tree", what.format(parents[segment])),
        )
        return bool(segments.any())

    wrong = (parents < -1) | (parents >= numbers - first)
    if report(wrong, "segment_parents has {}; expected -1 or an earlier segment of the pack"):
        return None
    # In depth-first order, a segment's parent is on the path to the segment before it.
    at = numbers - 1
    while (above := (at > parent) & (parent >= 0)).any():
        at = np.where(above, parent[at], at)
    if report((parent >= 0) & (at != parent), "parent {} is not on the path to the segment before"):
        return None
    report(view.filler & (parent >= 0), "filler has parent {}; expected -1")
    before = path_starts(parent, view.ends - view.starts)
    if view.pack_rows is not None and not _rows_are_outside(view, view.pack_rows, findings):
        last = last_segments(view).astype(np.int64)
        _check_rows(view, before, row_paths(parent, last), last, findings)
    return before


def _rows_are_outside(view: BatchView, pack_rows: _Int64, findings: Findings) -> bool:
    """Report rows that end at no segment of their pack."""
    ends = view.columns["row_segments"]
    pack_of = np.repeat(np.arange(len(pack_rows) - 1), np.diff(pack_rows))
    outside = (ends < 0) | (ends >= np.diff(view.pack_segments)[pack_of])
    findings.many(
        "tree",
        np.flatnonzero(outside),
        lambda row: view.pack(
            int(pack_of[row]),
            "tree",
            f"row {row - pack_rows[pack_of[row]]}: row_segments has {ends[row]}; expected one of "
            "the pack",
        ),
    )
    return bool(outside.any())


def _check_rows(
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


def unpaired(packs: NDArray[Any], ids: NDArray[Any], sides: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the segments, or rows, whose pair has not as many first as second sides in its pack.

    packs, ids, sides: of each. A mix may have several copies of a pair.
    Example: packs=[0, 0, 1, 1], ids=[7, 7, 8, 8], sides=[0, 1, 1, 1] -> [False, False, True, True]
    """
    alone = np.zeros(len(ids), np.bool_)
    if not len(ids):
        return alone
    order = np.lexsort((ids, packs))
    new = (np.diff(ids[order]) != 0) | (np.diff(packs[order]) != 0)
    firsts = np.append(0, np.flatnonzero(new) + 1)
    signs = np.where(sides[order] == 0, 1, -1)
    wrong = np.add.reduceat(signs, firsts) != 0
    alone[order] = np.repeat(wrong, np.diff(np.append(firsts, len(ids))))
    return alone
