import json
import re
from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Outputs one and two, which differ in strategy, and same, which equals one."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    for name, strategy in (("one", "best_fit"), ("two", "greedy"), ("same", "best_fit")):
        options = (
            "a.jsonl",
            "-o",
            name,
            "--tokenizer",
            "tok",
            "--max-length",
            64,
            "--strategy",
            strategy,
            "-q",
        )
        assert run("build", *options).code == 0
    return tmp_path


def test_options_and_numbers_that_differ_are_shown_with_better_or_worse(outputs: Path) -> None:
    result = run("compare", "one", "two")
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert ["strategy", "best_fit", "greedy"] in lines
    assert next(line for line in lines if line[:1] == ["utilization"])[-1] == "worse"
    assert next(line for line in lines if line[:1] == ["gap"])[-1] == "worse"
    assert not any(line[:1] == ["tokens.tokens_in"] for line in lines)
    assert "more numbers are equal; --all shows them" in result.out
    assert next(
        line[:1]
        for line in map(str.split, run("compare", "one", "two", "--all").out.splitlines())
        if line[:1] == ["tokens.tokens_in"]
    ) == ["tokens.tokens_in"]


def test_equal_outputs_are_reported_as_equal(outputs: Path) -> None:
    assert (
        "the data files of one and same are identical, byte for byte\n"
        in run("compare", "one", "same").out
    )
    lines = run("compare", "one", "one").out.splitlines()
    assert lines[0] == "the data files of one and one are identical, byte for byte"
    assert re.fullmatch(r"all \d+ numbers are equal", lines[1])


def test_reports_by_themselves_are_compared_too(outputs: Path) -> None:
    found = json.loads(run("compare", "one/report.json", "two/report.json", "--json").out)
    assert found["options"] == {}
    by_name = {figure["name"]: figure for figure in found["figures"]}
    assert by_name["utilization"]["judgement"] == "worse"
    assert (
        by_name["utilization"]["change"]
        == by_name["utilization"]["b"] - by_name["utilization"]["a"]
    )
    both = json.loads(run("compare", "one", "two", "--json").out)
    assert both["options"] == {"strategy": ["best_fit", "greedy"]}


def test_a_path_without_an_output_is_refused_in_one_sentence(outputs: Path) -> None:
    result = run("compare", "one", "gone")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "packprep: gone cannot be read: No such file or directory; "
        "expected a report.json or an output of packprep build\n"
    )
