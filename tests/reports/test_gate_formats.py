from pathlib import Path
from xml.etree import ElementTree

import pytest

from packprep.reports.gate import NumberVerdict
from packprep.reports.gate_formats import (
    append_github_summary,
    as_json,
    markdown,
    rows,
    write_junit,
)

VERDICTS = [
    NumberVerdict(
        name="utilization",
        baseline=0.9,
        value=0.8,
        allowed="it may fall by 0.1 points",
        passed=False,
    ),
    NumberVerdict(
        name="max_length", baseline=64, value=64, allowed="it may not change", passed=True
    ),
    NumberVerdict(
        name="tokens_lost_share",
        baseline=None,
        value=0.5,
        allowed="the limit is at most 1%",
        passed=False,
    ),
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
    assert result["figures"][1] == {
        "name": "max_length",
        "baseline": 64,
        "value": 64,
        "change": 0,
        "allowed": "it may not change",
        "passed": True,
        "sources": [],
    }
    assert as_json(VERDICTS[1:2])["passed"] is True


def test_markdown_begins_with_what_failed() -> None:
    lines = markdown("out", VERDICTS).splitlines()
    assert lines[:6] == [
        "### packprep check: 2 of 3 numbers failed",
        "",
        "`out`",
        "",
        f"- :x: {VERDICTS[0].sentence}",
        f"- :x: {VERDICTS[2].sentence}",
    ]
    assert "| :white_check_mark: | `max_length` | 64 | 64 | 0 | it may not change |" in lines
    assert "all 1 numbers passed" in markdown("out", VERDICTS[1:2])


def test_a_bar_in_the_name_of_a_source_does_not_break_the_table() -> None:
    verdict = NumberVerdict(
        name="bos_rate", baseline=1.0, value=0.0, allowed="a|b", passed=False, sources=("x|y 0%",)
    )
    text = markdown("out", [verdict])
    assert "a\\|b" in text
    assert "x\\|y 0%" in text


def test_junit_has_a_case_for_each_number_and_a_failure_for_each_that_failed(
    tmp_path: Path,
) -> None:
    write_junit(tmp_path / "j.xml", 'out "<&>', VERDICTS)
    suites = ElementTree.parse(tmp_path / "j.xml").getroot()
    [suite] = suites
    assert suite.attrib == {"name": 'out "<&>', "tests": "3", "failures": "2", "errors": "0"}
    assert [case.get("name") for case in suite] == [
        "utilization",
        "max_length",
        "tokens_lost_share",
    ]
    failures = [case.find("failure") for case in suite]
    assert [failure is not None for failure in failures] == [True, False, True]
    assert failures[0] is not None
    assert failures[0].get("message") == VERDICTS[0].sentence


def test_the_github_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    append_github_summary("nowhere")
    (tmp_path / "summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    append_github_summary("after\n")
    assert (tmp_path / "summary.md").read_text() == "before\nafter\n"
    assert [path.name for path in tmp_path.iterdir()] == ["summary.md"]
