import json
from pathlib import Path

import pytest

from packprep.inspect.report_file import read_report
from packprep.output.report import table
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.tiny_shards import GOLDEN


@pytest.fixture
def output(tmp_path: Path) -> Path:
    sources = [
        write_jsonl(tmp_path / "a.jsonl", texts(40)),
        write_jsonl(tmp_path / "b.jsonl", ["a cat"] * 5),
    ]
    tokenizer = save_tokenizer(tmp_path / "tok")
    assert (
        run(
            "build",
            *sources,
            "-o",
            tmp_path / "out",
            "--tokenizer",
            tokenizer,
            "--max-length",
            64,
            "-q",
        ).code
        == 0
    )
    return tmp_path / "out"


def test_the_report_its_sources_histograms_and_steps_are_printed(output: Path) -> None:
    result = run("stats", output, "--global-batch-size", 4, "--world-size", 2)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    report = read_report(output)
    for name, value in table(report):
        assert any(line.startswith(name) and line.endswith(value) for line in lines), name
    assert [line for line in lines if line.endswith("100.00%  100.00%")], (
        "BOS and EOS of both sources"
    )
    for title in (
        "document length, tokens (p5",
        "documents per pack (p5",
        "fill of a pack (p5",
        "attention cost of a",
    ):
        assert any(line.startswith(title) for line in lines), title
    assert f"steps per epoch       {report['packs'] // 4}" in result.out
    assert "packs per step        4, 2 on each of 2 ranks" in lines
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in result.out


def test_json_has_the_report_exact_counts_and_steps(output: Path) -> None:
    found = json.loads(run("stats", output, "--json", "--global-batch-size", 4).out)
    assert found["report"] == read_report(output)
    assert (
        found["counts"]["fill"]["total"] == found["report"]["packs"] == found["training"]["packs"]
    )
    assert found["training"]["world_size"] == 1


def test_loss_tokens_are_shown_where_there_are_labels() -> None:
    assert "loss tokens" in run("stats", GOLDEN / "v1-rich").out
    assert "loss tokens" not in run("stats", GOLDEN / "v1-example").out


def test_a_path_without_an_output_is_refused_in_one_sentence(tmp_path: Path) -> None:
    result = run("stats", tmp_path)
    assert result.code == 2
    assert (
        "manifest.json does not exist; expected the output of a finished packprep build"
        in result.err
    )
    assert run("stats", GOLDEN / "v1-example" / "report.json").code == 2
