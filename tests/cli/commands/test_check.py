"""The CI gate: regressions planted on purpose, and the workflow that docs/ci-gate.md shows."""

import json
import re
from pathlib import Path

import pytest
import yaml

from packprep.inspect.report_file import read_report
from packprep.reports.figures import figures
from packprep.reports.gate import read_baseline
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 200 documents, a tokenizer, the output `good` and its baseline."""
    folder = tmp_path_factory.mktemp("gate")
    write_jsonl(folder / "a.jsonl", texts(120))
    write_jsonl(folder / "b.jsonl", texts(80, 1))
    save_tokenizer(folder / "tok")
    made = build(folder, "good")
    assert run("check", made, "--baseline", folder / "baseline.json", "--update-baseline").code == 0
    return folder


def build(corpus: Path, name: str, options: str = "", source: str = "?.jsonl") -> Path:
    words = ("--tokenizer", corpus / "tok", "--max-length", 128, "-q", *options.split())
    assert run("build", corpus / source, "-o", corpus / name, *words).code == 0
    return corpus / name


def check(corpus: Path, output: Path, options: str = "", baseline: str = "baseline.json") -> Result:
    return run("check", output, "--baseline", corpus / baseline, *options.split())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--strategy greedy", "utilization"),
        ("--overflow truncate", "tokens.truncated"),
        ("--overflow drop", "tokens.dropped.overflow"),
        ("--min-document-tokens 20", "tokens.dropped.too_short"),
        ("--bos none", "bos_rate"),
        ("--eos none", "eos_rate"),
        ("--truncate-at token", "documents.cut_characters"),
        ("--max-length 256", "max_length"),
    ],
)
def test_a_planted_regression_fails_with_the_number_its_baseline_and_the_change(
    corpus: Path, options: str, name: str
) -> None:
    output = build(corpus, options.strip("-").replace(" ", "-"), options)
    result = check(corpus, output)
    assert result.code == 1
    [line] = [line for line in result.out.splitlines() if line.startswith(f"{name} was ")]
    was, now = (figures(read_report(each)).get(name, 0) for each in (corpus / "good", output))
    assert was != now
    shown = {"utilization": f"{was:.2%}"[:4], "bos_rate": "100%", "eos_rate": "100%"}
    assert line.startswith(f"{name} was {shown.get(name, was)}"), line
    assert re.search("a change of .*; it may (not |fall by 0.1 points)", line)
    assert f"FAILED  {name} " in result.out
    assert check(corpus, output, "--json").code == 1


def test_update_baseline_writes_all_numbers_unless_a_limit_fails(corpus: Path) -> None:
    output, name = build(corpus, "update", "--strategy greedy"), "ci/updated.json"
    assert check(corpus, output, "--update-baseline --min-utilization 0.99", name).code == 1
    assert not (corpus / name).exists()
    result = check(corpus, output, "--update-baseline --tolerance packs=0", name)
    assert (result.code, result.out) == (0, f"wrote 10 numbers of {output} to {corpus / name}\n")
    assert check(corpus, output, "--tolerance packs=0", name).code == 0
    assert read_baseline(corpus / name)["packs"] == read_report(output)["packs"]
    assert (corpus / name).read_text().splitlines()[1] == '  "bos_rate": 1.0,'


def test_markdown_json_and_the_summary_of_github_agree(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    output = build(corpus, "files", "--bos none")
    result = check(corpus, output, f"--summary {tmp_path}/s.md --json")
    shown = json.loads(result.out)["figures"]
    failed = [figure["name"] for figure in shown if not figure["passed"]]
    assert (result.code, failed[0]) == (1, "bos_rate")
    text = (tmp_path / "s.md").read_text()
    assert text == (tmp_path / "step.md").read_text()
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| :x:")] == failed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "there is nothing to check; give --baseline FILE, --min-utilization or --max-loss"),
        ("--update-baseline", "--update-baseline writes the file that --baseline names; give both"),
        ("--max-loss 0 --tolerance packs=1", "--tolerance is for changes since a baseline"),
        ("--baseline gone.json", "gone.json does not exist; write it with --update-baseline"),
        ("--max-loss 2", "invalid value for '--max-loss': 2 is not a share from 0 to 1"),
    ],
)
def test_wrong_usage_is_one_sentence(corpus: Path, options: str, sentence: str) -> None:
    result = run("check", corpus / "good", *options.split())
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"packprep: {sentence}")


def test_a_number_that_the_baseline_lacks_is_named(corpus: Path) -> None:
    baseline = read_baseline(corpus / "baseline.json")
    del baseline["straggler"]
    (corpus / "older.json").write_text(json.dumps(baseline))
    result = check(corpus, corpus / "good", baseline="older.json")
    sentence = f"{corpus}/older.json does not have straggler, which is not checked; write"
    assert (result.code, result.err) == (0, f"{sentence} it again with --update-baseline\n")


@pytest.mark.long
def test_the_workflow_of_the_page_passes_on_good_data_and_fails_on_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands, but pip, which would install the tested code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "a.jsonl", texts(400))
    save_tokenizer(tmp_path / "tokenizer")
    page = (ROOT / "docs" / "ci-gate.md").read_text()
    workflow = yaml.safe_load(page.split('```yaml file="data.yml"\n')[1].split("```")[0])
    steps = [step["run"].split() for step in workflow["jobs"]["packing"]["steps"] if "run" in step]
    assert [step[:2] for step in steps] == [
        *(["pip", "install"], ["packprep", "build"], ["packprep", "check"])
    ]
    build, gate = steps[1][1:], steps[2][1:]
    assert run(*build).code == 0
    assert run(*gate[:4], "--update-baseline").code == 0
    assert [run(*build).code, run(*gate).code] == [0, 0]
    assert "numbers passed" in (tmp_path / "summary.md").read_text()
    assert run(*build, "--overflow", "truncate", "--overwrite").code == 0
    failed = run(*gate)
    assert (failed.code, "tokens.truncated was 0 and is " in failed.out) == (1, True)
