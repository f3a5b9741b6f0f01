import re
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.charts import Link, flow, histogram, pieces
from packprep.histograms import Counts, linear_edges, log_edges

LINKS = [
    Link("a", "kept", 600, "c0", "kept"),
    Link("b", "kept", 300, "c1", "kept"),
    Link("b", "lost", 100, "c1", "lost"),
]


def test_bars_of_a_flow_are_as_high_as_they_have_tokens() -> None:
    drawn = flow(LINKS, 400)
    bars = {node.name: (node.tokens, node.share, round(node.height, 1), node.x) for node in drawn.nodes}
    assert bars == {
        "a": (600, 0.6, 156.0, 0), "b": (400, 0.4, 104.0, 0),
        "kept": (900, 0.9, 234.0, 390), "lost": (100, 0.1, 26.0, 390),
    }  # fmt: skip
    assert [ribbon.css for ribbon in drawn.ribbons] == ["c0 kept", "c1 kept", "c1 lost"]


def test_ribbons_leave_a_bar_below_each_other() -> None:
    begins = [float(re.match(r"M10 ([\d.]+)C", ribbon.path)[1]) for ribbon in flow(LINKS, 400).ribbons]  # type: ignore[index]
    assert begins == [2.0, 166.0, 244.0]


def test_a_flow_of_nothing_is_empty() -> None:
    assert flow([], 400).height == flow([Link("a", "kept", 0, "c0", "kept")], 400).height == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz"), st.integers(0, 10**13)), max_size=30))
def test_labels_never_overlap_and_shares_of_each_side_make_one(parts: list[tuple[str, str, int]]) -> None:
    drawn = flow([Link(source, outcome, tokens, "c0", "kept") for source, outcome, tokens in parts], 356)
    for x in {node.x for node in drawn.nodes}:
        side = [node for node in drawn.nodes if node.x == x]
        assert abs(sum(node.share for node in side) - 1) < 1e-9
        labels = [node.label_y for node in side]
        assert all(after - before >= 32 for before, after in pairwise(labels)), "two lines of 16"
        assert all(node.y >= 0 and node.y + node.height <= drawn.height for node in side)
        assert all(node.label_y + 20 <= drawn.height for node in side)


def counts(values: list[int]) -> Counts:
    return Counts(*np.unique(values, return_counts=True))


def test_a_histogram_has_a_bar_per_bin_and_leaves_out_empty_ends() -> None:
    drawn = histogram(counts([5, 5, 6, 9]), linear_edges(20, 21), width=100, height=60)
    assert [(bar.first, bar.last, bar.count) for bar in drawn.bars] == [
        (5, 5, 2),
        (6, 6, 1),
        (7, 7, 0),
        (8, 8, 0),
        (9, 9, 1),
    ]
    assert [round(bar.height, 1) for bar in drawn.bars] == [22.0, 11.0, 0.0, 0.0, 11.0]
    assert drawn.bars[0].y + drawn.bars[0].height == drawn.floor
    assert (drawn.most, drawn.p50) == (2, 0.0)
    whole = histogram(counts([5, 5, 6, 9]), linear_edges(20, 21), whole=True)
    assert (len(whole.bars), whole.ticks[0][1], whole.ticks[-1][1]) == (21, 0, 20)


def test_a_histogram_of_nothing_can_be_drawn() -> None:
    assert [bar.count for bar in histogram(counts([]), log_edges(0)).bars] == [0]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_every_value_is_in_one_bar_and_bars_stay_inside(values: list[int]) -> None:
    for edges in (log_edges(max(values)), linear_edges(max(values), 20)):
        drawn = histogram(counts(values), edges)
        assert sum(bar.count for bar in drawn.bars) == len(values)
        assert all(bar.x >= 0 and bar.x + bar.width <= drawn.width and 0 <= bar.y <= drawn.floor for bar in drawn.bars)
        assert all((bar.height > 0) == (bar.count > 0) for bar in drawn.bars)
        assert 0 <= drawn.p50 <= drawn.width
        assert all(0 <= x <= drawn.width for x, _ in drawn.ticks)


def test_segments_stand_side_by_side_and_tiny_ones_are_drawn_as_one() -> None:
    drawn = pieces([500, 1, 1, 498], ["c0", "c1", "c2", "c3"], ["w", "x", "y", "z"], 1000)
    assert [(piece.x, piece.width, piece.css) for piece in drawn] == [(0, 500, "c0"), (500, 500, "c3")]
    assert [piece.title for piece in drawn] == ["w", "3 documents, 500 tokens"]
    drawn = pieces([8, 4, 2], ["c0", "c1", "filler"], ["x", "y", "padding"], 16)
    assert [(piece.x, piece.width, piece.css) for piece in drawn] == [
        (0, 500, "c0"),
        (500, 250, "c1"),
        (750, 125, "filler"),
    ]


def test_a_document_behind_narrow_padding_keeps_its_colour() -> None:
    parts = [(500, "c0", "x"), (3, "filler", "padding"), (493, "c1", "y"), (4, "filler", "padding")]
    lengths, css, titles = (list(column) for column in zip(*parts, strict=True))
    assert [(piece.x, piece.width, piece.css, piece.title) for piece in pieces(lengths, css, titles, 1000)] == [
        (0, 500, "c0", "x"),
        (500, 496, "c1", "y"),
        (996, 4, "filler", "padding"),
    ]
    narrow = pieces([3, 1, 3, 1, 3, 1] * 100, ["c0", "filler"] * 300, ["x", "padding"] * 300, 3000)
    assert {piece.css for piece in narrow} == {"c0"} and len(narrow) <= 251
    assert narrow[0].title == "3 documents, 9 tokens"


@given(st.lists(st.integers(1, 500), min_size=1, max_size=200), st.integers(0, 5000))
def test_the_picture_of_a_pack_has_no_holes(lengths: list[int], spare: int) -> None:
    room = sum(lengths) + spare
    drawn = pieces(lengths, ["c0"] * len(lengths), ["t"] * len(lengths), room)
    edges = [piece.x + piece.width for piece in drawn]
    assert all(abs(piece.x - edge) < 0.011 for piece, edge in zip(drawn[1:], edges, strict=False))
    assert abs(edges[-1] - 1000 * sum(lengths) / room) < 0.011
    assert len(drawn) <= 251
