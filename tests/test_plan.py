"""`plan`: its rows are the reports of builds, and its recipes train as many sequences a step."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from packprep.cli.main import cli
from packprep.look.recipe import Recipe, equal_recipe
from packprep.support.errors import ConfigError, InputError

TEXT = ("in/a.jsonl", "in/long.jsonl", "--tokenizer", "in/tiny")
CHATS = ("in/openai.jsonl", "--messages", "messages", "--tokenizer", "in/chat")
CASES: dict[str, tuple[str, ...]] = {
    "text": TEXT,
    "text, held out": (*TEXT, "--holdout", "20%", "--multiple", "8:fill"),
    "mix": ("in/a.jsonl", "in/b.jsonl", "--tokenizer", "in/tiny", "--weights", "1,3"),
    "chats": (*CHATS, "--max-segments", "3"),
    "turns": (*CHATS, "--turns", "each", "--order", "balanced:4"),
    "pairs": ("in/pairs.jsonl", "--pairs", "chosen,rejected", "--tokenizer", "in/tiny"),
    "ids": ("in/labels.jsonl", "--ids", "ids,labels:labels", "--tokenizer", "320"),
    "many": ("in/a.jsonl", "--tokenizer", "in/tiny", "--epoch", "2", "-c", "windows.yaml"),
}
"""Builds by name: sources and options."""
CHOICES = {"max_length": ["64", "200"], "strategy": ["best_fit", "greedy"]}
NO_FIGURES = {"max_length", "strategy", "overflow", "problem"}

Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(
    record_inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Plan:
    """A function that gives the JSON of `plan`, in a folder with the inputs `in`."""
    (tmp_path / "in").symlink_to(record_inputs)
    (tmp_path / "windows.yaml").write_text("window: 10kB\noutput: elsewhere")
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> dict[str, Any]:
        cli.main(["plan", *arguments, "-q", "--json"], standalone_mode=False)
        made: dict[str, Any] = json.loads(capsys.readouterr().out)
        return made

    return command


def report_of(command: str, *arguments: str) -> dict[str, Any]:
    """report.json of a build."""
    cli.main([command, *arguments, "-o", "out", "--overwrite", "-q"], standalone_mode=False)
    report: dict[str, Any] = json.loads(Path("out/report.json").read_bytes())
    return report


def differing(row: dict[str, Any], report: dict[str, Any]) -> list[str]:
    """Names of the figures of a row that a report has not."""
    return [n for n in row.keys() - NO_FIGURES if row[n] != report[n]]


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_the_report_of_a_build(plan: Plan, name: str) -> None:
    lists = [f"--{key.replace('_', '-')}={','.join(of)}" for key, of in CHOICES.items()]
    rows = plan(*CASES[name], *lists)["plans"]
    assert len(rows) == 4
    for row in rows:
        choice = ["--max-length", str(row["max_length"]), "--strategy", row["strategy"]]
        report = report_of("build", *CASES[name], *choice)
        assert differing(row, report) == []
        assert {"utilization", "packs", "gap", "bias", "padding_of_batch"} <= row.keys()


@pytest.mark.parametrize("name", ["text", "pairs", "chats"])
def test_a_store_has_the_plans_of_its_packs(plan: Plan, name: str) -> None:
    packing = ["--max-segments", "3"] if name == "chats" else []
    of_text = [each for each in CASES[name] if each not in packing]
    cli.main(["tokenize", *of_text, "-o", "store", "-q"], standalone_mode=False)
    options = [*packing, "--max-length", "24" if name == "pairs" else "64"]
    [row] = plan("store", *options)["plans"]
    assert row["overflow"] == ("truncate" if name == "pairs" else "split")
    assert differing(row, report_of("build", *of_text, *options)) == []
    assert differing(row, report_of("pack", "store", *options)) == []


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("turns", "ids", "mix")])
def test_an_output_has_its_own_plan(plan: Plan, name: str) -> None:
    """With its options; of documents that lost nothing, whether they were cut or not."""
    options = ["--overflow", "drop"] if name == "pairs" else []
    report = report_of("build", *CASES[name], "--max-length", "64", *options)
    [row] = plan("out")["plans"]
    known = {"loss_tokens", "loss_utilization", "tokens_lost", "tokens_lost_share"}
    unknown = {"padding_of_batch"} if report["tokens_lost"] else set[str]()
    wrong = {*differing(row, report)} - known - unknown
    assert wrong == set()


@pytest.mark.parametrize("overlap", [{"stride": 8}, {"continuation_bos": True}])
def test_tokens_that_pieces_share_count_once(plan: Plan, overlap: dict[str, Any]) -> None:
    Path("overlap.yaml").write_text(yaml.safe_dump(overlap))
    options = (*CASES["text"], "-c", "overlap.yaml", "--max-length")
    report_of("build", *options, "64")
    [row] = plan("out", "--max-length", "150")["plans"]
    assert differing(row, report_of("build", *options, "150")) == []


@pytest.mark.parametrize("file", ["lengths.npy", "lengths.txt", "lengths.json"])
def test_lengths_are_planned_like_documents(plan: Plan, file: str) -> None:
    lengths = np.random.default_rng(3).integers(1, 90, 300)
    rows = [json.dumps({"ids": [7] * int(length)}) for length in lengths]
    Path("rows.jsonl").write_text("\n".join(rows))
    match Path(file).suffix:
        case ".npy":
            np.save(file, lengths)
        case ".txt":
            Path(file).write_text("\n".join(map(str, lengths)))
        case ".json":
            Path(file).write_text(json.dumps(lengths.tolist()))
    [row] = plan(file, "--max-length", "64", "--multiple", "7", "--padding-of-batch", "5")["plans"]
    ids = ("rows.jsonl", "--ids", "ids", "--tokenizer", "10", "--max-length", "64")
    report = report_of("build", *ids, "--multiple", "7")
    assert differing(row, report) == ["padding_of_batch"]
    cut = np.minimum(lengths, 64).reshape(-1, 5)
    share = 1 - cut.sum() / (5 * cut.max(1)).sum()
    assert row["padding_of_batch"] == pytest.approx(share, abs=1e-12)


def test_a_sample_says_what_the_whole_is(plan: Plan) -> None:
    """Of 40 MB, most of it in one file, whose rows change from its begin to its end."""
    words = "a rose is a rose "
    with Path("big.jsonl").open("w") as file:
        for row in range(8000):
            file.write(json.dumps({"text": words * (20 + row * 7919 % 500)}) + "\n")
    text = ("big.jsonl", "in/a.jsonl", "--tokenizer", "in/tiny")
    options = ("--max-length", "4Ki", "--strategy", "best_fit,greedy")
    whole = plan(*text, *options)["plans"]
    cli.main(["tokenize", *text, "-o", "store", "-q"], standalone_mode=False)
    for sources in (text, ("store",)):
        made = plan(*sources, *options, "--sample", "2000")
        assert 0.1 < made["sample"] < 0.7
        for row, real in zip(made["plans"], whole, strict=True):
            assert row["utilization"] == pytest.approx(real["utilization"], abs=0.01)
            assert row["packs"] == pytest.approx(real["packs"], rel=0.1)


def test_the_table_names_the_fullest_plan_and_the_cures(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["--max-length", "100", "--strategy", "best_fit,greedy", "--overflow", "split,drop"]
    Path("l.txt").write_text("60 " * 50 + "30 " * 50 + "200")
    extra = ["--global-batch-size", "4", "--padding-of-batch", "4", "-q"]
    cli.main(["plan", "l.txt", *arguments, *extra], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "l.txt: 101 documents, 4,700 tokens"
    heads = ["length", "strategy", "overflow", "packs", "utilization", "lost", "docs/step", "steps"]
    assert lines[1].split() == heads
    table = {tuple(line.split()[:3]): line.split()[3:] for line in lines[2:6]}
    assert table["100", "best_fit", "split"] == ["52", "90.38%", "0.00%", "8", "13"]
    row = plan("l.txt", *arguments, *extra[:-1])["plans"][0]
    assert (row["documents_per_step"], row["steps"]) == (8, 13)
    text = " ".join("".join(lines[6:]).split())
    assert "fullest packs, of plans that lose at most 1%: 100 best_fit split" in text
    assert re.search(r"100 greedy split: packs are filled to \d+% only: greedy makes", text)
    assert "each padded to its" in text
    assert max(map(len, lines)) <= 80


def test_a_sample_of_one_split_says_that_it_is_all(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["plan", *TEXT, "--sample", "2", "-q"], standalone_mode=False)
    assert "--sample takes whole splits" in capsys.readouterr().out


def test_it_says_what_packing_avoids_and_how_small_packs_may_be(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one batch, padded to its longest document: 5,760 tokens in 8 x 2,048 places."""
    Path("l.txt").write_text("512 256 1024 128 768 2048 384 640")
    options = ["--max-length", "2048", "--padding-of-batch", "8", "--min-pack-tokens", "16", "-q"]
    cli.main(["plan", "l.txt", *options], standalone_mode=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "2,048: 64.8% of batches of 8 documents" in text
    assert "2.84 places for each token" in text
    assert "--min-pack-tokens 16: 32 to 128 are usual at 2,048" in text
    for lengths, share in (("5 3 7", "28.6%"), ("512 128 2048", "56.2%")):
        Path("l.txt").write_text(lengths)
        batch = ["--max-length", "2048", "--padding-of-batch", "3", "-q"]
        cli.main(["plan", "l.txt", *batch], standalone_mode=False)
        assert f"{share} of batches of 3 documents" in capsys.readouterr().out


def sequences(count: int, packs: int, filler: int) -> dict[str, Any]:
    """What a recipe needs of a report."""
    counts = {"segments": count + filler, "packs": packs, "tokens": 1000}
    return {"splits": {"train": counts}, "packs": packs, "bound": packs - filler, "gap": 0}


@given(
    rows=st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(1, 8)),
    epochs=st.sampled_from([0.5, 1, 3]),
    packs=st.integers(1, 5000),
    each=st.floats(1, 40),
    warmup=st.sampled_from([0.0, 0.03, 10]),
    filler=st.integers(0, 1),
)
def test_no_number_of_packs_is_nearer_to_the_sequences_of_a_step(
    rows: tuple[int, int, int], epochs: float, packs: int, each: float, warmup: float, filler: int
) -> None:
    batch, accumulation, ranks = rows
    recipe = Recipe(
        names={"micro_batch": "micro_batch_size"},
        micro_batch=batch,
        accumulation=accumulation,
        ranks=ranks,
        epochs=epochs,
        learning_rate=1e-3,
        warmup=warmup,
    )
    count = round(packs * each)
    report = sequences(count, packs, filler)
    equal = equal_recipe(recipe, report, 1.0, pairs=False)
    step = batch * accumulation * ranks
    per_rank = equal.packed.micro_batch * equal.packed.accumulation
    error = abs(per_rank * ranks * count / packs - step)
    others = [abs(k * ranks * count / packs - step) for k in range(1, 2 * batch * accumulation + 2)]
    assert error <= min(others) + 1e-9
    ratio = per_rank * ranks * count / packs / step
    assert equal.packed.learning_rate == pytest.approx(1e-3 * math.sqrt(ratio), rel=0.006)
    assert equal.packed.warmup == (max(1, round(10 / ratio)) if warmup == 10 else warmup)
    short = equal_recipe(replace(recipe, max_steps=3), report, 1.0, pairs=False)
    assert short.packed.max_steps == max(1, round(3 / ratio))
    steps = [
        math.ceil(math.ceil(n / (b * ranks)) / a)
        for n, b, a in [(count, batch, accumulation), (packs, 1, per_rank)]
    ]
    assert recipe.steps(count) == math.ceil(epochs * steps[0])
    assert equal.packed.steps(packs) == math.ceil(epochs * steps[1])


RECIPES = {
    "transformers.json": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 3.0,
        "max_steps": -1,
        "learning_rate": 2e-05,
        "warmup_steps": 0,
        "warmup_ratio": 0.03,
        "packing": False,
    },
    "axolotl.yaml": {
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_epochs": 3,
        "learning_rate": "2e-5",
        "warmup_steps": 12,
    },
    "llama_factory.yaml": {
        "per_device_train_batch_size": 16,
        "max_steps": 100,
        "learning_rate": 2e-05,
        "cutoff_len": 2048,
    },
}
"""Settings of unpacked runs as their trainers spell them: 16 sequences a step."""


@pytest.mark.parametrize("file", RECIPES)
def test_a_recipe_is_translated_by_its_own_names(plan: Plan, file: str) -> None:
    dump = json.dumps if file.endswith("json") else yaml.safe_dump
    Path(file).write_text(dump(RECIPES[file]))
    Path("l.txt").write_text("30 " * 400)  # 5 sequences a pack, 80 packs
    made = plan("l.txt", "--max-length", "150", "--recipe", file)["recipe"]
    rate = float(f"{2e-5 * math.sqrt(15 / 16):.3g}")
    expected: dict[str, dict[str, float]] = {
        "transformers.json": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 3,
            "warmup_ratio": 0.03,
            "steps": 81,
        },
        "axolotl.yaml": {
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 3,
            "warmup_steps": 13,
            "steps": 81,
        },
        "llama_factory.yaml": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 3,
            "max_steps": 107,
            "steps": 107,
        },
    }
    assert made == {**expected[file], "learning_rate": rate}


def test_pairs_are_the_sequences_of_a_recipe(plan: Plan) -> None:
    Path("r.yaml").write_text(yaml.safe_dump(RECIPES["axolotl.yaml"]))
    made = plan(*CASES["pairs"], "--max-length", "64", "--recipe", "r.yaml", "--ranks", "2")
    [row] = made["plans"]
    per_rank = max(1, round(16 * row["packs"] / (row["segments"] / 2)))
    assert made["recipe"]["gradient_accumulation_steps"] == per_rank


def test_transformers_counts_the_steps_of_a_recipe(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> Any:
            return {"loss": (self.weight * x.float()).sum()}

    for rows, batch, accumulation, epochs in [(37, 4, 3, 2), (10, 1, 3, 1), (23, 5, 2, 0.5)]:
        recipe = Recipe(
            names={},
            micro_batch=batch,
            accumulation=accumulation,
            epochs=epochs,
            learning_rate=1e-3,
            warmup=0.1,
        )
        settings = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=epochs,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        )
        rows_of = [{"x": torch.ones(1)}] * rows
        trainer = transformers.Trainer(Model(), settings, train_dataset=rows_of)
        trainer.train()
        assert trainer.state.global_step == recipe.steps(rows)


LENGTHS = ("l.txt", "--max-length", "150", "--recipe", "r.yaml")


@pytest.mark.parametrize(
    ("arguments", "recipe", "words"),
    [
        ((), {}, "nothing is given to plan"),
        (("in/a.jsonl", "l.txt"), {}, "l.txt is an output, or lengths; plan it by itself"),
        (("l.txt", "--tokenizer", "in/tiny"), {}, "tokenizer can do nothing here"),
        (("l.txt", "--sample", "3"), {}, "sample is for text and stores"),
        (("in/a.jsonl", "--tokenizer", "in/tiny", "--sample", "x"), {}, "sample is 'x'"),
        (("l.txt", "--max-length", "9,x"), {}, None),
        (("l.txt", "--max-length", "x"), {}, "max_length is 'x'"),
        (("l.txt", "--overflow", "error", "--max-length", "9"), {}, "a document of 30 tokens"),
        (("l.txt", "--ranks", "2"), {}, "ranks can do nothing"),
        (("l.txt", "--global-batch-size", "x"), {}, "global_batch_size is 'x'"),
        (("pairs", "--overflow", "split"), {}, "would split pairs"),
        ((*LENGTHS, "--strategy", "greedy,best_fit"), {}, "recipe is for one plan"),
        (LENGTHS, [1], "r.yaml is no table"),
        (LENGTHS, {"learning_rate": 1}, "no per_device_train_batch_size or micro_batch_size"),
        (LENGTHS, {"micro_batch_size": 1}, "no learning_rate"),
        (LENGTHS, {"micro_batch_size": 1, "learning_rate": 1}, "no num_train_epochs"),
        (LENGTHS, {"sample_packing": True}, "sample_packing: true"),
        (LENGTHS, {"micro_batch_size": 1.5, "learning_rate": 1, "num_epochs": 1}, "whole number"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    plan: Plan, arguments: Sequence[str], recipe: Any, words: str | None
) -> None:
    if "pairs" in arguments:
        cli.main(["tokenize", *CASES["pairs"], "-o", "pairs", "-q"], standalone_mode=False)
    Path("l.txt").write_text("30 " * 40)
    Path("r.yaml").write_text(yaml.safe_dump(recipe))
    if words is None:  # one of several plans: it says why
        assert "9 or" not in plan(*arguments)["plans"][1]["problem"]
        return
    with pytest.raises((ConfigError, InputError), match=re.escape(words)):
        plan(*arguments)
