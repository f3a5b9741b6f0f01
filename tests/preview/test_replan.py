from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.config.options import STRATEGY_NAMES
from packprep.inspect.report_file import read_report
from packprep.preview.replan import replan
from tests.helpers.corpus import build_options, texts, write_jsonl


def long(case: tuple[Any, ...]) -> Any:
    return pytest.param(*case, marks=pytest.mark.long)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of a build of 200 documents into packs of 64, in several units.

    One window unless a test says so.
    """
    return build_options(tmp_path, {"a.jsonl": texts(200)}, unit_size=4_000)


WINDOWS = {"window": 16_000, "holdout": 0.2}
STRIDE = {"stride": 8, "continuation_bos": True, "max_segments_per_pack": 3}
STRIDE |= {"pad_segment_to_multiple": 8}
FEW = [("greedy", {}), ("balanced", {}), ("wrapped", WINDOWS), ("best_fit", STRIDE)]
ALL = [(name, more) for more in ({}, WINDOWS) for name in STRATEGY_NAMES]


@pytest.mark.parametrize(("strategy", "more"), [*FEW, *map(long, ALL)])
def test_the_strategy_of_the_build_gives_the_figures_of_its_report(
    options: dict[str, Any], strategy: Any, more: dict[str, Any]
) -> None:
    if strategy == "balanced":  # packs one window
        more = more | {"window": 4_000_000_000}
    build(BuildConfig(**options | more, strategy=strategy))
    report = dict(read_report(Path(options["output"])))
    outcomes = {outcome.strategy: outcome for outcome in replan(Path(options["output"]))}
    for name in ("packs", "bound", "gap", "utilization", "bias", "straggler"):
        found = getattr(outcomes[strategy], name)
        assert found == pytest.approx(report[name], rel=1e-12), name
    assert ("balanced" in outcomes) == (more.get("window") != 16_000)
    # It can hold neither a number of segments nor padding.
    assert ("wrapped" in outcomes) == ("stride" not in more)


def test_what_other_strategies_say_does_not_depend_on_the_one_that_was_built(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build(BuildConfig(**options, strategy="wrapped"))
    build(BuildConfig(**options | {"output": str(tmp_path / "other")}, strategy="greedy"))
    assert replan(tmp_path / "out") == replan(tmp_path / "other")
    assert [outcome.strategy for outcome in replan(tmp_path / "out")] == list(STRATEGY_NAMES)


def test_cut_counts_documents_that_are_in_more_than_one_piece(options: dict[str, Any]) -> None:
    write_jsonl(Path(options["sources"][0]), ["word " * 200, "one", "two"])
    build(BuildConfig(**options))
    found = replan(Path(options["output"]), ("best_fit", "wrapped"))
    outcomes = {outcome.strategy: outcome for outcome in found}
    assert outcomes["best_fit"].cut == 1
    assert outcomes["wrapped"].cut >= 1


def test_balanced_is_left_out_where_it_takes_minutes_unless_it_was_built(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BuildConfig(**options))
    build(BuildConfig(**options | {"output": str(tmp_path / "even")}, strategy="balanced"))
    monkeypatch.setattr("packprep.preview.replan._MOST_EVENED", 100)
    outputs = (tmp_path / "out", tmp_path / "even")
    names = [{outcome.strategy for outcome in replan(output)} for output in outputs]
    assert names == [set(STRATEGY_NAMES) - {"balanced"}, set(STRATEGY_NAMES)]


def test_pairs_cut_in_the_middle_are_planned_as_long_as_they_were_kept(
    options: dict[str, Any],
) -> None:
    words = texts(40)
    rows = [{"chosen": f"{a} a", "rejected": f"{b} b"} for a, b in pairwise(words)]
    write_jsonl(Path(options["sources"][0]), rows)
    build(BuildConfig(**options, pair_columns=("chosen", "rejected"), overflow="truncate"))
    (outcome,) = replan(Path(options["output"]), ("greedy",))
    assert (outcome.cut, outcome.tokens_lost) == (0, 0)
