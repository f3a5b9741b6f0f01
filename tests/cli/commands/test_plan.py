import json
from pathlib import Path

import numpy as np
import pytest

from packprep.config.option import STRATEGY_NAMES
from packprep.inspect.report_file import read_report
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    np.save(tmp_path / "l.npy", np.random.default_rng(0).integers(1, 100, 300))
    return tmp_path


def test_every_combination_is_a_row_and_the_best_are_marked(here: Path) -> None:
    result = run(
        "plan",
        "l.npy",
        "--max-length",
        "64,128",
        "--strategy",
        "best_fit,greedy",
        "--overflow",
        "all",
    )
    assert (result.code, result.err.removeprefix("compiling kernels (first run)\n")) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "l.npy: 300 documents"
    rows = [line.split()[:3] for line in lines[2:10]]
    assert rows == [
        ["64", strategy, overflow]
        for overflow in ("split", "truncate", "drop")
        for strategy in ("best_fit", "greedy")
    ] + [["128", "best_fit", "any"], ["128", "greedy", "any"]]
    assert sum("padding" in line for line in lines[2:10]) == 1
    assert (
        "no document is longer than 128 tokens: every overflow gives the same plan there" in lines
    )
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in result.out


def test_plans_that_are_exactly_equal_have_no_winner(here: Path) -> None:
    np.save(here / "same.npy", np.full(64, 32))
    result = run(
        "plan", "same.npy", "--max-length", "64", "--strategy", "best_fit,first_fit,stream"
    )
    rows = result.out.splitlines()[2:5]
    assert not any(
        name in line
        for line in rows
        for name in ("padding", "loss", "cuts", "bias", "straggler", "bytes")
    )
    assert (
        "best for padding, loss, cuts, bias, straggler, bytes: several plans are equal, so "
        "none is marked" in result.out.splitlines()
    )


def test_json_has_the_same_and_steps(here: Path) -> None:
    result = run(
        "plan",
        "l.npy",
        "--max-length",
        "64",
        "--strategy",
        "all",
        "--global-batch-size",
        4,
        "--json",
        "-q",
    )
    found = json.loads(result.out)
    assert [plan["strategy"] for plan in found["plans"]] == list(STRATEGY_NAMES)
    assert all(plan["steps_per_epoch"] == plan["packs"] // 4 for plan in found["plans"])
    assert set(found["best"]) == {"padding", "loss", "cuts", "bias", "straggler", "bytes"}
    assert found["notes"][0].startswith("build s: no tokenizing, because the tokens exist")


def test_a_plan_of_text_has_the_utilization_of_the_build_and_takes_its_options(here: Path) -> None:
    options = ("a.jsonl", "--tokenizer", "tok", "--max-length", 64, "--bos", "none", "--seed", 7)
    [plan] = json.loads(run("plan", *options, "--json", "-q").out)["plans"]
    assert run("build", *options, "-o", "out", "-q").code == 0
    report = read_report(here / "out")
    assert (plan["utilization"], plan["packs"]) == (report["utilization"], report["packs"])
    assert not (here / "out.incomplete").exists()


def test_the_file_of_a_build_is_the_file_of_a_plan(here: Path) -> None:
    (here / "packprep.yaml").write_text(
        "sources: a.jsonl\noutput: out\ntokenizer: tok\nmax_length: 32\nmin_len: 3\n"
    )
    [plan] = json.loads(run("plan", "--json", "-q").out)["plans"]
    assert (plan["max_length"], plan["overflow"]) == (32, "split")
    assert not (here / "out").exists()
    swept = json.loads(run("plan", "--max-length", "32,64", "--json", "-q").out)["plans"]
    assert swept[0]["utilization"] == plan["utilization"]
    assert swept[1]["max_length"] == 64


def test_a_sample_prints_its_confidence_interval(here: Path) -> None:
    result = run("plan", "l.npy", "--max-length", 64, "--sample", "0.5", "--strategy", "greedy")
    assert result.out.splitlines()[2].count("±") == 2
    assert "sample of 0.5 of the documents: counts are scaled to all of them" in result.out
    assert "of a sample" in result.out.splitlines()[0]


def test_an_impossible_plan_is_listed_beside_possible_ones(here: Path) -> None:
    result = run(
        "plan", "l.npy", "--max-length", 64, "--strategy", "best_fit,wrapped", "--stride", 8
    )
    assert result.code == 0
    assert "left out: 64 wrapped split: stride is for overflow split" in result.out
    result = run("plan", "l.npy", "--max-length", "64,128", "--overflow", "error,drop")
    assert "a document has" in result.out.splitlines()[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--max-length", "many"],
            "max_length is 'many', expected whole numbers separated by commas, such as 2048,4Ki",
        ),
        (["--max-length", "64,1"], "max_length is 1, expected at least 2"),
        (["--strategy", "bestfit"], "strategy is 'bestfit'; did you mean 'best_fit'?"),
        (
            ["--overflow", "split,cut"],
            "overflow is 'cut', expected one of split, truncate, drop, error, all",
        ),
        (["--sample", "2"], "sample is 2, expected a share of more than 0 and at most 1"),
        (
            ["--overflow", "error", "--max-length", "8"],
            "nothing can be planned: a document has 85 tokens; choose another --overflow or "
            "--strategy",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(here: Path, arguments: list[str], sentence: str) -> None:
    result = run("plan", "l.npy", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"packprep: {sentence}\n")


def test_an_impossible_plan_beside_a_possible_one_is_not_an_error(here: Path) -> None:
    assert run("plan", "a.jsonl").err.startswith("packprep: no tokenizer is given")
    assert (
        run("plan", "gone.jsonl", "--tokenizer", "tok").err
        == "packprep: no such file: gone.jsonl\n"
    )


def test_pairs_are_planned_without_an_overflow(tmp_path: Path) -> None:
    rows = [{"chosen": f"yes {number} " * 9, "rejected": "no"} for number in range(9)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    tokenizer = save_tokenizer(tmp_path / "tok")
    pairs = ("--pair-columns", "chosen,rejected", "--max-length", "64")
    planned = run("plan", source, "--tokenizer", tokenizer, *pairs, "--json")
    assert [row["overflow"] for row in json.loads(planned.out)["plans"]] == ["truncate"]
