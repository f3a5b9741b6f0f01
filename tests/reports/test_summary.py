"""Advice of the report page: what a build like this one could have, and its pages allow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.reports.facts import Facts, gather
from packprep.reports.summary import findings
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

_PAIRS = [{"chosen": text * 3, "rejected": text} for text in texts(40)]


def facts_of(folder: Path, rows: list[Any], **options: Any) -> Facts:
    """Facts of a build, with a plan of strategy balanced that needs one pack."""
    sources = [str(write_jsonl(folder / f"{name}.jsonl", rows)) for name in ("a", "b")]
    tokenizer = str(save_tokenizer(folder / "tok"))
    build(
        BuildConfig(
            sources=sources[: len(options.get("weights", "1").split(","))],
            output=str(folder / "out"),
            tokenizer=tokenizer,
            max_length=64,
            **options,
        )
    )
    facts = gather(folder / "out")
    ours = next(row for row in facts.outcomes if row.strategy == "best_fit")
    return replace(facts, outcomes=[ours, replace(ours, strategy="balanced", packs=1)])


def advice(facts: Facts) -> str:
    return " ".join(finding["text"] for finding in findings(facts))


@pytest.mark.parametrize(
    ("rows", "options", "allowed"),
    [
        (texts(40), {}, True),
        (texts(40), {"weights": "50,50"}, True),
        (texts(40), {"weights": "90,10", "max_epochs": 5.0}, False),
        (texts(40), {"phases": ({"tokens": "50%"}, {"tokens": "50%"})}, False),
    ],
)
def test_strategy_balanced_is_advised_only_where_it_keeps_the_promises_of_the_build(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], allowed: bool
) -> None:
    text = advice(facts_of(tmp_path, rows, **options))
    assert ("strategy balanced" in text) is allowed, text


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
    facts = facts_of(tmp_path, rows, overflow="truncate", **options)
    text = advice(facts)
    assert "cut off (longer than a pack)" in text
    assert ("Use --overflow split" in text) is allowed, text
