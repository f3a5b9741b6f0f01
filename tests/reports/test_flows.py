import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from packprep.reports.flows import Link, flow

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


def test_ribbons_leave_a_bar_below_each_other() -> None:
    starts = [re.match(r"M10 ([\d.]+)C", ribbon.path) for ribbon in flow(LINKS, 400).ribbons]
    begins = [float(start[1]) for start in starts if start]
    assert begins == [2.0, 166.0, 244.0]


def test_a_flow_of_nothing_is_empty() -> None:
    assert flow([], 400).height == flow([Link("a", "kept", 0, "c0", "kept")], 400).height == 0


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
