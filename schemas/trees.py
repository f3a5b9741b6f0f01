"""Checks of trees: parents of segments, positions that go on from them, weights, and rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch_view import BatchView
from .columns import FILLER, NO_LOSS
from .findings import Findings

Int64 = NDArray[np.int64]


def parents_in_batch(view: BatchView) -> Int64 | None:
    """Parent of each segment, counted over the batch, -1 for none; None without trees."""
    parents = view.columns.get("segment_parents")
    if parents is None:
        return None
    first = np.repeat(view.pack_segments[:-1], np.diff(view.pack_segments))
    return np.where(parents >= 0, parents + first, -1)


def path_starts(view: BatchView, parent: Int64) -> Int64:
    """Tokens before each segment on the path from its root, [segments].

    parent: [segments], smaller than the segment's own number, or -1.
    """
    lengths = view.ends - view.starts
    before, at = np.zeros(len(parent), np.int64), parent
    while len(rest := np.flatnonzero(at >= 0)):
        before[rest] += lengths[at[rest]]
        at = np.where(at >= 0, parent[at], -1)
    return before


def check_trees(view: BatchView, pack_rows: Int64, findings: Findings) -> Int64 | None:
    """Report wrong parents, weights and rows; return where positions of segments start.

    pack_rows: [packs + 1], the first row of each pack. None if parents are wrong, because nothing
    else of a tree can be checked then.
    """
    parent = parents_in_batch(view)
    if parent is None:
        return view.starts * 0
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
    _check_rows(view, parent, pack_rows, findings)
    return path_starts(view, parent)


def _check_rows(view: BatchView, parent: Int64, pack_rows: Int64, findings: Findings) -> None:
    """Check the table of rows, and the weights of labels against it."""
    columns = view.columns
    pack_of = np.repeat(np.arange(len(pack_rows) - 1), np.diff(pack_rows))
    segments = np.diff(view.pack_segments)[pack_of]
    last = columns["row_segments"].astype(np.int64)

    def report(rows: NDArray[np.bool_], values: NDArray[Any], what: str) -> bool:
        findings.many(
            "tree",
            np.flatnonzero(rows),
            lambda row: view.pack(
                int(pack_of[row]),
                "tree",
                f"row {row - pack_rows[pack_of[row]]}: {what.format(values[row])}",
            ),
        )
        return bool(rows.any())

    if report(
        (last < 0) | (last >= segments), last, "row_segments has {}; expected one of the pack"
    ):
        return
    last += view.pack_segments[pack_of]
    ends = (view.ends[last] - view.pack_tokens[pack_of]).astype(np.int64)
    report(columns["row_ends"] != ends, columns["row_ends"], "row_ends has {}; expected its end")
    through = np.bincount(last, minlength=len(parent))
    for segment in np.flatnonzero(parent >= 0)[::-1].tolist():
        through[parent[segment]] += through[segment]
    weights, labels = columns["label_weights"], columns["labels"]
    of_token = np.repeat(through, view.ends - view.starts)
    bad = (weights < 0) | (weights > of_token) | ((weights == 0) != (labels == NO_LOSS))
    first = view.starts[(parent < 0) & (weights[view.starts] > 0)]
    bad[first] = True
    findings.many(
        "tree",
        np.flatnonzero(bad),
        lambda token: view.token(
            token,
            "tree",
            f"label_weights has {weights[token]} with label {labels[token]}; expected 0 to the "
            f"{of_token[token]} rows of the segment, 0 where the label is {NO_LOSS} and only there, "
            "and 0 at a row's first token",
        ),
    )
    no_rows = (through == 0) & ~view.filler
    findings.many(
        "tree",
        np.flatnonzero(no_rows),
        lambda segment: view.segment(segment, "tree", "no row of the table has it; expected one"),
    )
    trained = np.bincount(pack_of, columns["row_trained"], len(pack_rows) - 1).astype(np.int64)
    sums = np.append(0, np.cumsum(weights, dtype=np.int64))[view.pack_tokens]
    expected = np.diff(sums)
    findings.many(
        "tree",
        np.flatnonzero(trained != expected),
        lambda pack: view.pack(
            pack,
            "tree",
            f"row_trained adds up to {trained[pack]}; expected the sum of label_weights, "
            f"{expected[pack]}",
        ),
    )
    ids = columns["row_ids"]
    report(ids <= FILLER, ids, "row_ids has {}; expected an input row")
