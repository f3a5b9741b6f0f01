from pathlib import Path

import pytest

from packprep.reports.gate import NumberVerdict
from packprep.reports.gate_formats import append_github_summary, as_json, markdown, rows


def verdict(name: str, baseline: float | None, value: float, allowed: str) -> NumberVerdict:
    passed = baseline == value
    return NumberVerdict(name=name, baseline=baseline, value=value, allowed=allowed, passed=passed)


VERDICTS = [
    verdict("utilization", 0.9, 0.8, "it may fall by 0.1 points"),
    verdict("max_length", 64, 64, "it may not change"),
    verdict("tokens_lost_share", None, 0.5, "the limit is at most 1%"),
]


def test_a_row_says_in_words_what_failed() -> None:
    assert rows(VERDICTS) == [
        ("FAILED", "utilization", "90%", "80%", "-10 points", "it may fall by 0.1 points"),
        ("ok", "max_length", "64", "64", "0", "it may not change"),
        ("FAILED", "tokens_lost_share", "", "50%", "", "the limit is at most 1%"),
    ]


def test_json_has_the_numbers_themselves() -> None:
    result = as_json(VERDICTS)
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


def test_a_bar_in_the_name_of_a_source_does_not_break_the_table() -> None:
    of_source = NumberVerdict(
        name="bos_rate", baseline=1.0, value=0.0, allowed="a|b", passed=False, sources=("x|y 0%",)
    )
    text = markdown("out", [of_source])
    assert "a\\|b" in text
    assert "x\\|y 0%" in text


def test_the_github_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    append_github_summary("nowhere")
    (tmp_path / "summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    append_github_summary("after\n")
    assert (tmp_path / "summary.md").read_text() == "before\nafter\n"
