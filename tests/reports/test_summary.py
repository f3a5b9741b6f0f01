"""Advice of the report page: what a build like this one could have, and its pages allow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.reports.facts import gather
from packprep.reports.summary import findings
from packprep.reports.utilization import causes, fewest_tokens, outside_range, small_packs
from tests.helpers.corpus import build_options, texts
from tests.helpers.files import config
from tests.helpers.zoo import Zoo

_PAIRS = [{"chosen": text * 3, "rejected": text} for text in texts(40)]


def advice(output: Path) -> str:
    """Advice of an output for which strategy balanced would need one pack."""
    facts = gather(output)
    ours = next(row for row in facts.outcomes if row.strategy == "best_fit")
    better = [ours, replace(ours, strategy="balanced", figures={**ours.figures, "packs": 1})]
    return " ".join(finding["text"] for finding in findings(replace(facts, outcomes=better)))


@pytest.mark.parametrize(("name", "allowed"), [("text", True), ("mix", True), ("phases", False)])
def test_strategy_balanced_is_advised_only_where_it_keeps_the_promises_of_the_build(
    zoo: Zoo, name: str, allowed: bool
) -> None:
    assert ("strategy balanced" in advice(zoo[name])) is allowed


def test_strategy_balanced_is_not_advised_for_a_mix_that_repeats_a_source(tmp_path: Path) -> None:
    files = {"a.jsonl": texts(40), "b.jsonl": texts(40, seed=1)}
    build(config(**build_options(tmp_path, files, weights="90,10", max_epochs=5.0)))
    assert "strategy balanced" not in advice(tmp_path / "out")


@pytest.mark.parametrize(
    ("rows", "options", "allowed"),
    [
        (texts(40), {}, True),
        (texts(40), {"overflow": "truncate:left"}, True),
        (_PAIRS, {"pair_columns": "chosen,rejected"}, False),
    ],
)
def test_overflow_split_is_advised_only_where_it_is_allowed(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], allowed: bool
) -> None:
    options |= {"overflow": "truncate", "max_length": 64}
    build(config(**build_options(tmp_path, {"a.jsonl": rows}, **options)))
    text = advice(tmp_path / "out")
    assert "cut off (longer than a pack)" in text
    assert ("Use --overflow split" in text) is allowed, text


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
