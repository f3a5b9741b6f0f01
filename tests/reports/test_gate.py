from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep.reports.figures import figures
from packprep.reports.gate import NumberVerdict, check_figures, not_in_baseline, read_baseline
from packprep.reports.gate_formats import append_github_summary, as_json, markdown
from packprep.support.errors import ConfigError, InputError
from tests.helpers.errors import refused

REPORT: Any = {
    "report_version": 1,
    "documents": {"in": 100, "skipped": {}, "dropped": {}, "cut_characters": 0},
    "tokens": {"tokens_in": 1000, "truncated": 10, "dropped": {"too_long": 5}},
    "tokens_lost": 15,
    "tokens_lost_share": 0.015,
    "max_length": 64,
    "packs": 20,
    "utilization": 0.9,
    "bos_rate": 1.0,
    "eos_rate": 0.0,
    "gap_share": 0.01,
    "bias": -0.5,
    "straggler": 1.1,
    "straggler_ranks": 8,
    "tokens_per_second": 1000.0,
    "sources": [
        {"name": "a", "tokens": {"truncated": 2}, "bos_rate": 1.0},
        {"name": "b", "tokens": {"truncated": 8}},
    ],
}
BASELINE = figures(REPORT)


def changed(**numbers: Any) -> Any:
    """The report with other numbers; __ replaces a dot."""
    report = deepcopy(REPORT)
    for name, value in numbers.items():
        table = report
        *path, last = name.split("__")
        for key in path:
            table = table[key]
        table[last] = value
    return report


def failed(report: Any, *tolerances: str, baseline: dict[str, float] = BASELINE) -> dict[str, str]:
    """The sentences of the numbers that failed, by name."""
    return {
        verdict.name: verdict.sentence
        for verdict in check_figures(report, baseline, tolerances)
        if not verdict.passed
    }


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"utilization": 0.8989}, "utilization"),
        ({"tokens__truncated": 11}, "tokens.truncated"),
        ({"tokens__dropped__too_long": 6}, "tokens.dropped.too_long"),
        ({"tokens__dropped__overflow": 1}, "tokens.dropped.overflow"),
        ({"documents__skipped__null": 1}, "documents.skipped.null"),
        ({"documents__cut_characters": 1}, "documents.cut_characters"),
        ({"bos_rate": 0.99}, "bos_rate"),
        ({"eos_rate": 0.01}, "eos_rate"),
        ({"gap_share": 0.0111}, "gap_share"),
        ({"straggler": 1.1501}, "straggler"),
        ({"max_length": 128}, "max_length"),
        ({"straggler_ranks": 16}, "straggler_ranks"),
        # Better, within the tolerance, or not checked.
        ({"utilization": 0.899}, None),
        ({"utilization": 1.0}, None),
        ({"tokens__truncated": 0}, None),
        ({"tokens__dropped": {}}, None),
        ({"gap_share": 0.011}, None),
        ({"straggler": 1.15}, None),
        ({"packs": 99}, None),
    ],
)
def test_a_number_that_gets_worse_fails_alone(numbers: dict[str, Any], name: str | None) -> None:
    assert list(failed(changed(**numbers))) == ([] if name is None else [name])


ALLOWED = {
    "utilization": (
        (0.85, "0.001", "was 90% and is 85%, a change of -5 points; it may fall by 0.1 points"),
        (0.85, "-0.04", "it may fall by 4 points"),
        (0.85, "-5%", "it may fall by 5% of the baseline"),
        (0.85, "0", "it may not fall"),
        (0.85, "-0.05", None),
        (0.85, "0.05", None),  # without a sign: how much worse it may get
        (0.85, "-6%", None),
    ),
    "straggler": ((2.0, "0.05", "was 1.1 and is 2, a change of +0.9; it may rise by 0.05"),),
    # Not checked without a tolerance; no rule says which direction is better.
    "packs": ((23, "2", "was 20 and is 23"), (17, "2", "was 20 and is 17"), (18, "2", None)),
    "tokens_lost": ((20, "+4", "was 15 and is 20"), (20, "+5", None)),
    # Compared by its distance from 0.
    "bias": (
        (0.6, "0", "it may not move away from 0"),
        (-0.6, "0.05", "it may move away from 0 by 0.05"),
        (0.5, "0", None),
    ),
    "tokens_per_second": (
        (799.0, "-20%", "it may fall by 20% of the baseline"),
        (800.0, "-20%", None),
    ),
}


@pytest.mark.parametrize(
    ("name", "now", "tolerance", "sentence"),
    [(name, *case) for name, cases in ALLOWED.items() for case in cases],
)
def test_a_tolerance_replaces_the_default_and_is_in_the_sentence(
    name: str, now: float, tolerance: str, sentence: str | None
) -> None:
    sentences = failed(changed(**{name: now}), f"{name}={tolerance}")
    assert [*sentences] == ([] if sentence is None else [name])
    assert sentence is None or sentences[name].endswith(sentence) or sentence in sentences[name]


def test_the_sentence_names_the_sources_a_failure_comes_from_worst_first() -> None:
    sentence = failed(changed(tokens__truncated=11))["tokens.truncated"]
    assert sentence.endswith("it may not rise (b 8, a 2)")
    report = changed(bos_rate=0.5)
    report["sources"] = [{"name": f"s{number}", "bos_rate": number / 4} for number in range(5)]
    assert failed(report)["bos_rate"].endswith("(s0 0%, s1 25%, s2 50%, and 1 more sources)")


def test_a_limit_on_loss_says_how_many_tokens_a_mix_did_not_draw() -> None:
    report = changed(tokens__dropped={"not_drawn": 1_500})
    [verdict] = check_figures(report, {}, max_loss=0.01)
    assert "at most 1%; this counts 1,500 tokens that the mix did not draw" in verdict.sentence


def test_a_tolerance_for_a_table_is_for_each_reason_and_one_for_a_reason_wins() -> None:
    report = changed(tokens__dropped={"too_long": 8, "overflow": 3})
    assert failed(report, "tokens_dropped=+3") == {}
    both = failed(report, "tokens.dropped.overflow=+2", "tokens.dropped=+3")
    assert list(both) == ["tokens.dropped.overflow"]


@pytest.mark.parametrize(
    ("tolerance", "message"),
    [
        ("utilization", "has no =, expected NAME=CHANGE"),
        ("utilization=", "allows '', expected a number"),
        ("utilization=some", "allows 'some', expected a number"),
        ("utilization=nan", "allows 'nan', expected a number"),
        ("utilization=+0.1", "utilization gets worse when it falls; write utilization=-0.1"),
        ("straggler=-0.1", r"straggler gets worse when it rises; write straggler=\+0.1"),
        ("utilisation=1", "has no number 'utilisation'; did you mean 'utilization'"),
        ("tokens.drop=1", r"has no number 'tokens.drop'; did you mean"),
        ("tokens_per_second=-100", "tokens_per_second depends on the machine; give a share"),
    ],
)
def test_a_tolerance_that_cannot_be_meant_is_a_sentence(tolerance: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_figures(REPORT, BASELINE, [tolerance])


def test_limits_need_no_baseline() -> None:
    low, lost = check_figures(REPORT, {}, min_utilization=0.95, max_loss=0.01)
    assert (low.passed, lost.passed) == (False, False)
    assert low.sentence == "utilization is 90%; the limit is at least 95%"
    assert lost.sentence == "tokens_lost_share is 1.5%; the limit is at most 1%"
    at_limits = check_figures(REPORT, {}, min_utilization=0.9, max_loss=0.015)
    assert all(verdict.passed for verdict in at_limits)


def test_a_number_that_the_report_has_no_longer_fails() -> None:
    report = changed()
    del report["bos_rate"]
    assert failed(report) == {
        "bos_rate": "bos_rate was 100% in the baseline and is not in the report"
    }


def test_a_number_that_an_older_baseline_lacks_is_named_and_not_held() -> None:
    older = {name: value for name, value in BASELINE.items() if name != "bos_rate"}
    assert failed(changed(bos_rate=0.0), baseline=older) == {}
    assert not_in_baseline(REPORT, older) == ["bos_rate"]
    with refused(ConfigError, "no bos_rate", "update_baseline"):
        check_figures(REPORT, older, ["bos_rate=0"])


def test_a_misspelt_number_in_the_baseline_is_refused() -> None:
    with refused(ConfigError, "'utilisation'", "did you mean 'utilization'?"):
        check_figures(REPORT, {"utilisation": 0.9})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; write it with --update-baseline"),
        ("nonsense", "is not JSON"),
        ("{}", "has no numbers; expected a baseline"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "b.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_baseline(tmp_path / "b.json")


def test_shares_of_a_mix_may_not_move_and_its_sources_not_become_scarce() -> None:
    source = {"name": "a", "share": 0.5, "epochs": 0.3, "trained_tokens": 100}
    moved = source | {"share": 0.49}

    def mixed(of_mix: dict[str, Any], of_phase: dict[str, Any]) -> Any:
        return REPORT | {
            "mix": {"sources": [of_mix]},
            "phases": [{"sources": [{key: of_phase[key] for key in ("name", "share")}]}],
        }

    sentences = failed(mixed(moved, moved), baseline=figures(mixed(source, source)))
    assert sentences == {
        f"{table}.sources.0.share": f"{table}.sources.0.share was 50% and is 49%, a change of -1 "
        "points; it may change by 0.5 points (a)"
        for table in ("mix", "phases.0")
    }
    more = mixed(source | {"epochs": 0.9, "trained_tokens": 300}, source)
    assert failed(more, baseline=figures(mixed(source, source))) == {}
    scarce = mixed(source | {"epochs": 1.5, "trained_tokens": 90}, source)
    sentences = failed(scarce, baseline=figures(mixed(source, source)))
    assert {*sentences} == {"mix.sources.0.trained_tokens", "mix.sources.0.epochs"}
    assert "; above 1 it may rise by 0.01 (" in sentences["mix.sources.0.epochs"]


def verdict(name: str, baseline: float | None, value: float, allowed: str) -> NumberVerdict:
    passed = baseline == value
    return NumberVerdict(name=name, baseline=baseline, value=value, allowed=allowed, passed=passed)


VERDICTS = [
    verdict("utilization", 0.9, 0.8, "it may fall by 0.1 points"),
    verdict("max_length", 64, 64, "it may not change"),
    verdict("tokens_lost_share", None, 0.5, "the limit is at most 1%"),
]


def test_json_has_the_numbers_themselves() -> None:
    result: Any = as_json(VERDICTS)
    assert result["passed"] is False
    numbers = {"baseline": 64, "value": 64, "change": 0}
    words = {"name": "max_length", "allowed": "it may not change", "sources": []}
    assert result["figures"][1] == {**numbers, **words, "passed": True}
    assert [figure["change"] for figure in result["figures"][::2]] == [pytest.approx(-0.1), None]
    assert as_json(VERDICTS[1:2])["passed"] is True


def test_markdown_begins_with_what_failed() -> None:
    lines = markdown("out", VERDICTS).splitlines()
    assert lines[0] == "### packprep check: 2 of 3 numbers failed"
    assert lines[2] == "`out`"
    assert lines[4:6] == [f"- :x: {VERDICTS[0].sentence}", f"- :x: {VERDICTS[2].sentence}"]
    assert "| :white_check_mark: | `max_length` | 64 | 64 | 0 | it may not change |" in lines
    assert "all 1 numbers passed" in markdown("out", VERDICTS[1:2])
    bars = replace(VERDICTS[0], allowed="a|b", sources=("x|y 0%",))
    assert all(words in markdown("out", [bars]) for words in ("a\\|b", "x\\|y 0%"))


def test_the_github_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    append_github_summary("nowhere")
    (tmp_path / "summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    append_github_summary("after\n")
    assert (tmp_path / "summary.md").read_text() == "before\nafter\n"
