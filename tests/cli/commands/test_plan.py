import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.config.grammar.option import STRATEGY_NAMES
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(60))
    save_tokenizer(tmp_path / "tok")
    np.save(tmp_path / "l.npy", np.random.default_rng(0).integers(1, 100, 300))
    return tmp_path


def plan(line: str) -> Result:
    return run("plan", *line.split())


def plans(line: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(plan(f"{line} --json -q").out)["plans"]
    return found


def test_every_combination_is_a_row_and_the_best_are_marked(here: Path) -> None:
    result = plan("l.npy --max-length 64,128 --strategy best_fit,greedy --overflow all")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "l.npy: 300 documents"
    assert [line.split()[:3] for line in lines[2:10]] == [
        ["64", strategy, overflow]
        for overflow in ("split", "truncate", "drop")
        for strategy in ("best_fit", "greedy")
    ] + [["128", "best_fit", "any"], ["128", "greedy", "any"]]
    assert sum("padding" in line for line in lines[2:10]) == 1
    same = "no document is longer than 128 tokens: every overflow gives the same plan there"
    assert same in lines
    found = json.loads(
        plan("l.npy --max-length 64 --strategy all --global-batch-size 4 --json").out
    )
    assert [each["strategy"] for each in found["plans"]] == list(STRATEGY_NAMES)
    assert all(each["steps_per_epoch"] == each["packs"] // 4 for each in found["plans"])
    assert set(found["best"]) == {"padding", "loss", "cuts", "bias", "straggler", "bytes"}
    assert found["notes"][0].startswith("build s: no tokenizing, because the tokens exist")
    np.save(here / "same.npy", np.full(64, 32))
    equal = plan("same.npy --max-length 64 --strategy best_fit,first_fit,stream").out
    assert "bytes: several plans are equal, so none is marked" in equal


def test_the_file_of_a_build_is_the_file_of_a_plan(here: Path) -> None:
    (here / "packprep.yaml").write_text(
        "sources: a.jsonl\noutput: out\ntokenizer: tok\nmax_length: 32\nmin_len: 3\n"
    )
    [found] = plans("")
    assert (found["max_length"], found["overflow"]) == (32, "split")
    assert not (here / "out").exists()
    first, second = plans("--max-length 32,64")
    assert (first["utilization"], second["max_length"]) == (found["utilization"], 64)


def test_a_sample_prints_its_confidence_interval(here: Path) -> None:
    lines = plan("l.npy --max-length 64 --sample 0.5 --strategy greedy").out.splitlines()
    assert ("of a sample" in lines[0], lines[2].count("±")) == (True, 2)
    assert any("sample of 0.5 of the documents: counts are scaled" in line for line in lines)


def test_an_impossible_plan_is_listed_beside_possible_ones(here: Path) -> None:
    result = plan("l.npy --max-length 64 --strategy best_fit,wrapped --stride 8")
    left_out = "left out: 64 wrapped split: --strategy wrapped cannot be used with --stride"
    assert (result.code, left_out in result.out) == (0, True)
    result = plan("l.npy --max-length 64,128 --overflow error,drop")
    assert "a document has" in result.out.splitlines()[2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("l.npy --max-length many", "--max-length is 'many', expected whole numbers separated by"),
        ("l.npy --max-length 64,1", "--max-length is 1, expected at least 2"),
        ("l.npy --strategy bestfit", "--strategy is 'bestfit'; did you mean 'best_fit'?"),
        (
            "l.npy --overflow split,cut",
            "--overflow is 'cut', expected one of split, truncate, drop",
        ),
        ("l.npy --sample 2", "sample is 2, expected a share of more than 0 and at most 1"),
        (
            "l.npy --overflow error --max-length 8",
            "nothing can be planned: a document has 85 tokens; choose another --overflow or",
        ),
        ("a.jsonl", "no tokenizer is given"),
        ("gone.jsonl --tokenizer tok", "no such file: gone.jsonl"),
    ],
)
def test_wrong_usage_is_one_sentence(here: Path, line: str, words: str) -> None:
    result = plan(line)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"packprep: {words}")
