"""Advice on packs that are not full: the cause that applies, and the cure."""

from typing import Any

import pytest

from packprep.reports.utilization import causes, fewest_tokens, outside_range, small_packs

PLAN: dict[str, Any] = {"packs": 10, "gap_share": 0.0, "max_length": 4096, "strategy": "greedy"}
BEST: dict[str, Any] = {"gap_share": 0.25, "strategy": "best_fit"}


@pytest.mark.parametrize(
    ("utilization", "changed", "reasons"),
    [
        (0.8, {}, []),
        (1.0, {"packs": 0}, []),
        (0.7, {"gap_share": 0.25}, ["strategy greedy makes 25% more packs", "choose best_fit"]),
        (0.7, BEST, ["strategy best_fit makes 25% more packs", "choose optimal"]),
        (
            0.5,
            {"max_segments_per_pack": 2, "grouped": True},
            ["a pack holds at most 2 documents", "documents of different groups share no pack"],
        ),
        (0.6, {}, ["few documents fit together into 4,096 tokens; compare other lengths"]),
        (0.1, {"packs": 1}, ["all documents fit one pack of 4,096 tokens; choose a smaller"]),
    ],
)
def test_the_cause_that_applies_is_named_with_its_cure(
    utilization: float, changed: dict[str, Any], reasons: list[str]
) -> None:
    found = "; ".join(causes(utilization, **PLAN | changed))
    assert (found == "") == (reasons == [])
    assert all(reason in found for reason in reasons), found


def test_min_pack_tokens_is_usual_from_a_64th_to_a_16th_of_max_length() -> None:
    assert (fewest_tokens(4096), fewest_tokens(8)) == ((64, 256), (1, 1))
    assert [outside_range(tokens, 4096) for tokens in (0, 64, 256)] == [None] * 3
    assert "packs that are nearly empty stay; 64 to 256" in str(outside_range(63, 4096))
    assert "useful text may be dropped" in str(outside_range(257, 4096))
    assert small_packs(2, 4096).startswith("2 packs have fewer than 64 tokens; --min-pack-tokens")
