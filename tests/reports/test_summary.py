"""Advice of the report page: what a build like this one could have, and its pages allow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.reports.facts import gather
from packprep.reports.summary import findings
from tests.helpers.corpus import build_options, texts
from tests.helpers.files import config
from tests.helpers.zoo import Zoo

_PAIRS = [{"chosen": text * 3, "rejected": text} for text in texts(40)]


def advice(output: Path) -> str:
    """Advice of an output for which strategy balanced would need one pack."""
    facts = gather(output)
    ours = next(row for row in facts.outcomes if row.strategy == "best_fit")
    better = [ours, replace(ours, strategy="balanced", packs=1)]
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
        (texts(40), {"truncation_side": "left"}, True),
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
