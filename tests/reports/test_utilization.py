"""Advice on packs that are not full: the cause that applies, and the cure."""

from typing import Any

from packprep.reports.utilization import causes, fewest_tokens, outside_range, small_packs

PLAN: dict[str, Any] = {"packs": 10, "gap_share": 0.0, "max_length": 4096, "strategy": "greedy"}


def test_full_packs_need_no_advice() -> None:
    assert causes(0.8, **PLAN) == []
    assert causes(1.0, **PLAN | {"packs": 0}) == []


def test_a_strategy_that_leaves_room_is_named_first_and_another_one_is_advised() -> None:
    [reason] = causes(0.7, **PLAN | {"gap_share": 0.25})
    assert reason == "strategy greedy makes 25% more packs than are needed; choose best_fit"
    [reason] = causes(0.7, **PLAN | {"gap_share": 0.25, "strategy": "best_fit"})
    assert reason.endswith("choose optimal")


def test_limits_of_packs_are_causes_that_can_be_lifted() -> None:
    reasons = causes(0.5, **PLAN, max_segments_per_pack=2, grouped=True)
    assert [reason.split(";")[0] for reason in reasons] == [
        "a pack holds at most 2 documents",
        "documents of different groups share no pack",
    ]


def test_documents_that_fit_badly_need_another_length() -> None:
    [reason] = causes(0.6, **PLAN)
    assert reason.startswith("few documents fit together into 4,096 tokens; compare other lengths")
    [reason] = causes(0.1, **PLAN | {"packs": 1})
    assert reason == "all documents fit one pack of 4,096 tokens; choose a smaller max_length"


def test_min_pack_tokens_is_usual_from_a_64th_to_a_16th_of_max_length() -> None:
    assert (fewest_tokens(4096), fewest_tokens(8)) == ((64, 256), (1, 1))
    assert [outside_range(tokens, 4096) for tokens in (0, 64, 256)] == [None] * 3
    assert "packs that are nearly empty stay; 64 to 256" in str(outside_range(63, 4096))
    assert "useful text may be dropped" in str(outside_range(257, 4096))
    assert small_packs(2, 4096) == (
        "2 packs have fewer than 64 tokens; --min-pack-tokens drops such packs, and 64 to 256 "
        "(max_length/64 to /16) is usual"
    )
