"""Tries of rows against a twin of nested dicts."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas.index.runs import Pointers
from packprep.trees.cut_trees import cut_oversized, node_ends
from packprep.trees.merge import merge_prefixes
from packprep.trees.nodes import tree_nodes
from tests.trees import reference as twin

Rows = list[list[int]]
_row = st.lists(st.integers(0, 2), min_size=1, max_size=12)
# Half of the rows go on from another one, so that deep trees are common.
_rows = st.lists(st.tuples(_row, st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=9)


def rows_of(drawn: list[tuple[list[int], int, int]]) -> Rows:
    rows: Rows = []
    for tail, of, kept in drawn:
        rows.append((rows[of % len(rows)][:kept] if rows and of % 2 else []) + tail)
    return rows


def pointers(rows: list[list[int]], dtype: type) -> Pointers:
    values: np.ndarray = np.array([token for row in rows for token in row], dtype)
    starts = np.cumsum([0, *map(len, rows)])[:-1]
    return Pointers.into(values, starts)


def lengths_of(rows: Rows) -> np.ndarray:
    return np.array([len(row) for row in rows], np.int32)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@given(groups=st.lists(_rows.map(rows_of), min_size=1, max_size=4))
def test_order_and_shared_are_those_of_the_twin(groups: list[Rows], dtype: type) -> None:
    rows = [row for group in groups for row in group]
    firsts = np.cumsum([0, *map(len, groups)])
    order, shared = merge_prefixes(pointers(rows, dtype), lengths_of(rows), firsts)
    expected_order, expected_shared = [], []
    for first, group in zip(firsts, groups, strict=False):
        in_order = twin.depth_first(twin.trie(group))
        expected_order += [int(first) + row for row in in_order]
        expected_shared += twin.shared_tokens(group, in_order)
    assert order.tolist() == expected_order
    assert shared.tolist() == expected_shared


@given(rows=_rows.map(rows_of), data=st.data())
def test_tokens_are_shared_only_where_other_columns_are_equal(
    rows: Rows, data: st.DataObject
) -> None:
    weights = [[data.draw(st.integers(0, 1)) for _ in row] for row in rows]
    both = [
        [token * 2 + weight for token, weight in zip(row, line, strict=True)]
        for row, line in zip(rows, weights, strict=True)
    ]
    group = np.array([0, len(rows)])
    merged = merge_prefixes(
        pointers(rows, np.int32), lengths_of(rows), group, [pointers(weights, np.float64)]
    )
    expected = merge_prefixes(pointers(both, np.int32), lengths_of(rows), group)
    assert [a.tolist() for a in merged] == [a.tolist() for a in expected]


def parts_of(rows: Rows, cut: list[int]) -> list[Rows]:
    """Rows of each tree; rows and shared tokens are in depth-first order."""
    begins = [number for number, common in enumerate(cut) if common == 0]
    return [rows[begin:end] for begin, end in pairwise([*begins, len(rows)])]


@given(rows=_rows.map(rows_of), spare=st.integers(0, 20), nodes=st.integers(1, 9))
def test_cuts_repeat_the_fewest_tokens(rows: Rows, spare: int, nodes: int) -> None:
    order = twin.depth_first(twin.trie(rows))
    shared = twin.shared_tokens(rows, order)
    ordered = [rows[row] for row in order]
    lengths = lengths_of(ordered).astype(np.int64)
    most = max(map(len, rows)) + spare
    for most_nodes in (nodes, None):
        cut = cut_oversized(lengths, np.array(shared), most, most_nodes)
        assert all(new in (0, old) for new, old in zip(cut.tolist(), shared, strict=True))
        for part in parts_of(ordered, cut.tolist()):
            assert twin.count_tokens(part) <= most
            assert most_nodes is None or twin.count_nodes(part) <= most_nodes
        repeated = sum(shared) - int(cut.sum())
        assert repeated == twin.best_cut(ordered, shared, most, most_nodes or 2 * len(rows))
        if most_nodes is None:
            assert repeated <= twin.greedy_cut(lengths.tolist(), shared, most)


@given(rows=_rows.map(rows_of))
def test_nodes_end_where_rows_end_or_part(rows: Rows) -> None:
    order = twin.depth_first(twin.trie(rows))
    lengths = lengths_of([rows[row] for row in order]).astype(np.int64)
    shared = np.array(twin.shared_tokens(rows, order))
    parts, ends = node_ends(lengths, shared)
    assert ((parts == -1) == (shared == 0)).all()
    numbers = {*parts.tolist(), *ends.tolist()} - {-1}
    assert numbers == {*range(len(tree_nodes(lengths, shared)))}
    assert len(numbers) == twin.count_nodes(rows)


@given(rows=_rows.map(rows_of), spare=st.integers(0, 20))
def test_every_row_is_the_path_to_its_last_node(rows: Rows, spare: int) -> None:
    order = twin.depth_first(twin.trie(rows))
    shared = np.array(twin.shared_tokens(rows, order))
    lengths = np.array([len(rows[row]) for row in order])
    shared = cut_oversized(lengths, shared, int(lengths.max()) + spare)
    nodes = tree_nodes(lengths, shared)
    runs = [
        rows[order[row]][start:end]
        for row, start, end in zip(nodes.row, nodes.start, nodes.end, strict=True)
    ]
    assert sum(map(len, runs)) == int((lengths - shared).sum())
    assert all(runs)
    assert (nodes.parent < np.arange(len(nodes))).all()
    parents = nodes.parent[nodes.parent >= 0]
    assert (nodes.start[nodes.parent >= 0] == nodes.end[parents]).all()
    assert (nodes.start[nodes.parent < 0] == 0).all()
    for number, row in enumerate(order):
        path: list[list[int]] = []
        node = int(nodes.last[number])
        while node >= 0:
            path.insert(0, runs[node])
            node = int(nodes.parent[node])
        assert list(chain.from_iterable(path)) == rows[row]
