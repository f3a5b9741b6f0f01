import io
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.inspect.histograms import Counts
from packprep.reports.charts import (
    Axis,
    Bin,
    Histogram,
    amounts,
    drawing,
    histogram,
    pack_bars,
    percents,
    text_bars,
)
from packprep.reports.flows import Link, flow


def counts(values: Sequence[int]) -> Counts:
    return Counts(*np.unique(np.array(values, np.int64), return_counts=True))


def shown(axis: Axis, values: Sequence[int], room: int = 0) -> Histogram:
    return histogram(
        counts(values), axis, title="Values", note="", of="packs", unit="tokens", room=room
    )


def drawn_amounts(values: Sequence[int]) -> Histogram:
    return shown(amounts(counts(values)), values)


def test_small_numbers_have_a_bar_each_over_the_range_they_have() -> None:
    found = drawn_amounts([5, 5, 6, 9])
    assert found.bins == [Bin("5", 2), Bin("6", 1), Bin("7", 0), Bin("8", 0), Bin("9", 1)]
    assert found.ticks == [(0.5, "5"), (1.5, "6"), (2.5, "7"), (3.5, "8"), (4.5, "9")]
    assert (found.marks, found.most, found.unit) == ({"median": 0.5}, 2, "tokens")
    drawn = drawing(found)
    assert [round(bar.height, 1) for bar in drawn.bars] == [132.0, 66.0, 0.0, 0.0, 66.0]
    assert [bar.x for bar in drawn.bars] == [0.5, 72.5, 144.5, 216.5, 288.5]
    assert all(bar.y + bar.height == drawn.floor for bar in drawn.bars)


def test_bars_of_text_are_as_long_as_their_share_of_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bins = [Bin("1", 1000), Bin("10 to 11", 1), Bin("12", 0)]
    one = Histogram("t", "", "packs", "tokens", bins, [], {})
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert text_bars(one) == [
        "       1  1,000  " + "█" * 40,
        "10 to 11      1  █",
        "      12      0",
    ]
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert text_bars(one)[1] == "10 to 11      1  #"


def texts(axis: Axis) -> str:
    """The texts under an axis."""
    return " ".join(text for _, text in axis.ticks)


def test_the_axis_of_lengths_begins_near_the_shortest_and_doubles_only_where_it_must() -> None:
    even = amounts(counts(range(45, 437)))
    assert (even.labels[0], even.labels[-1], even.scale) == ("40 to 59", "420 to 439", "")
    assert texts(even) == "100 200 300 400"
    doubling = amounts(counts([90] * 50 + [200] * 50 + [50_000]))
    assert (doubling.labels[0], doubling.labels[-1]) == ("64 to 90", "46,341 to 65,535")
    assert (doubling.scale, texts(doubling)) == (", log scale", "64 256 1,024 4,096 16,384 65,536")


def test_a_pack_is_marked_where_documents_are_longer() -> None:
    axis = amounts(counts([4, 8, 9]))
    assert shown(axis, [4, 8, 9], room=8).marks == {"median": 4.5, "a pack": 5.0}
    assert "a pack" not in shown(axis, [4, 8, 9], room=9).marks
    assert "a pack" not in shown(axis, [0, 9]).marks


VALUES = st.lists(st.one_of(st.integers(0, 60), st.integers(0, 10**6)), max_size=50)


@given(VALUES, st.integers(1, 10**6))
@example([609, 633], 1)  # one bin of a log scale that begins at no power of two
def test_every_value_is_in_one_bar_and_texts_under_the_axis_stay_inside_and_do_not_overlap(
    values: list[int], whole: int
) -> None:
    part = [min(value, whole) for value in values]
    for found in (drawn_amounts(values), shown(percents(counts(part), whole), part)):
        assert sum(each.count for each in found.bins) == len(values)
        assert len(found.bins) <= 25
        assert found.bins[-1].count > 0 or not values, "no empty bins behind the largest"
        drawn = drawing(found)
        assert all(
            bar.x >= 0 and bar.x + bar.width <= drawn.width and 0 <= bar.y <= drawn.floor
            for bar in drawn.bars
        )
        assert all((bar.height > 0) == (bar.bin.count > 0) for bar in drawn.bars)
        assert all(0 <= x <= drawn.width for x in drawn.marks.values())
        assert all(0 <= x <= drawn.width for x, _, _ in drawn.ticks)
        under = [text for _, text in found.ticks]
        assert 1 <= len(under) <= 8
        assert len(set(under)) == len(under)
        notations = {re.sub(r"\d", "9", re.sub(r"^<?[\d,]+", "9", text)) for text in under}
        assert len(notations) == 1, "digits grouped by commas, the same decimals, the same sign"
        assert all(
            b - a >= 3 * (len(one) + len(other))
            for (_, a, one), (_, b, other) in pairwise(drawn.ticks)
        )
        assert all(
            3 * len(text) <= middle <= 360 - 3 * len(text) for _, middle, text in drawn.ticks
        )


Piece = tuple[int, str, str]
PACKS: dict[str, tuple[int, list[Piece], list[tuple[float, float, str, str]]]] = {
    "tiny ones are drawn as one": (
        1000,
        [(500, "c0", "w"), (1, "c1", "x"), (1, "c2", "y"), (498, "c3", "z")],
        [(0, 500, "c0", "w"), (500, 500, "c3", "3 documents, 500 tokens")],
    ),
    "side by side": (
        16,
        [(8, "c0", "x"), (4, "c1", "y"), (2, "filler", "padding")],
        [(0, 500, "c0", "x"), (500, 250, "c1", "y"), (750, 125, "filler", "padding")],
    ),
    "a document after narrow padding keeps its colour": (
        1000,
        [(500, "c0", "x"), (3, "filler", "padding"), (493, "c1", "y"), (4, "filler", "padding")],
        [(0, 500, "c0", "x"), (500, 496, "c1", "y"), (996, 4, "filler", "padding")],
    ),
}


@pytest.mark.parametrize("name", PACKS)
def test_segments_stand_side_by_side(name: str) -> None:
    room, parts, expected = PACKS[name]
    lengths, css, titles = (list(column) for column in zip(*parts, strict=True))
    pieces = pack_bars(lengths, css, titles, room)
    assert [(piece.x, piece.width, piece.css, piece.title) for piece in pieces] == expected


@given(st.lists(st.integers(1, 500), min_size=1, max_size=200), st.integers(0, 5000))
def test_the_picture_of_a_pack_has_no_holes(lengths: list[int], spare: int) -> None:
    room = sum(lengths) + spare
    drawn = pack_bars(lengths, ["c0"] * len(lengths), ["t"] * len(lengths), room)
    edges = [piece.x + piece.width for piece in drawn]
    assert all(abs(piece.x - edge) < 0.011 for piece, edge in zip(drawn[1:], edges, strict=False))
    assert abs(edges[-1] - 1000 * sum(lengths) / room) < 0.011
    assert len(drawn) <= 251


LINKS = [
    Link("a", "kept", 600, "c0", "kept"),
    Link("b", "kept", 300, "c1", "kept"),
    Link("b", "lost", 100, "c1", "lost"),
]


def test_bars_of_a_flow_are_as_high_as_they_have_tokens() -> None:
    drawn = flow(LINKS, 400)
    bars = {
        node.name: (node.tokens, node.share, round(node.height, 1), node.x) for node in drawn.nodes
    }
    assert bars == {
        "a": (600, 0.6, 156.0, 0),
        "b": (400, 0.4, 104.0, 0),
        "kept": (900, 0.9, 234.0, 390),
        "lost": (100, 0.1, 26.0, 390),
    }
    assert [ribbon.css for ribbon in drawn.ribbons] == ["c0 kept", "c1 kept", "c1 lost"]
    begins = [ribbon.path.split("C")[0] for ribbon in drawn.ribbons]
    assert begins == ["M10 2.0", "M10 166.0", "M10 244.0"], "each below the one before"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz"), st.integers(0, 10**13)),
        max_size=30,
    )
)
def test_labels_never_overlap_and_shares_of_each_side_make_one(
    parts: list[tuple[str, str, int]],
) -> None:
    drawn = flow(
        [Link(source, outcome, tokens, "c0", "kept") for source, outcome, tokens in parts], 356
    )
    for x in {node.x for node in drawn.nodes}:
        side = [node for node in drawn.nodes if node.x == x]
        assert abs(sum(node.share for node in side) - 1) < 1e-9
        labels = [node.label_y for node in side]
        assert all(after - before >= 32 for before, after in pairwise(labels)), "two lines of 16"
        assert all(node.y >= 0 and node.y + node.height <= drawn.height for node in side)
        assert all(node.label_y + 20 <= drawn.height for node in side)
