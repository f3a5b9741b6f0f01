from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.reports.replan import replan
from tests.helpers.corpus import build_options, texts, write_jsonl


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of a build of 200 documents into packs of 64, in several units.

    One window unless a test says so.
    """
    return build_options(tmp_path, {"a.jsonl": texts(200)}, unit_size=4_000)


STRIDE = {"stride": 8, "continuation_bos": True, "max_segments_per_pack": 3}
STRIDE |= {"pad_segment_to_multiple": 8}


def test_what_other_strategies_say_does_not_depend_on_the_one_that_was_built(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for balanced, which is left out where it takes minutes unless it was built."""
    build(BuildConfig(**options, strategy="wrapped"))
    build(BuildConfig(**options | {"output": str(tmp_path / "even")}, strategy="balanced"))
    outcomes = replan(tmp_path / "out")
    assert outcomes == replan(tmp_path / "even")
    assert [outcome.strategy for outcome in outcomes] == list(STRATEGY_NAMES)
    monkeypatch.setattr("packprep.reports.replan._MOST_EVENED", 100)
    assert replan(tmp_path / "out") == [each for each in outcomes if each.strategy != "balanced"]
    assert replan(tmp_path / "even") == outcomes


def test_pieces_of_a_document_are_one_cut_and_pairs_are_planned_as_long_as_they_were_kept(
    options: dict[str, Any],
) -> None:
    path, output = Path(options["sources"][0]), Path(options["output"])
    write_jsonl(path, ["word " * 200, "one", "two"])
    build(BuildConfig(**options))
    best_fit, wrapped = replan(output, ("best_fit", "wrapped"))
    assert best_fit.cut == 1 <= wrapped.cut
    rows = [{"chosen": f"{a} a", "rejected": f"{b} b"} for a, b in pairwise(texts(40))]
    write_jsonl(path, rows)
    pairs: Any = {"pair_columns": ("chosen", "rejected"), "overflow": "truncate"}
    build(BuildConfig(**options, **pairs, overwrite=True))
    (outcome,) = replan(output, ("greedy",))
    assert (outcome.cut, outcome.figures["tokens_lost"]) == (0, 0)
