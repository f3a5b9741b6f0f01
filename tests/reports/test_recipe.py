"""A recipe for packs has the steps of the unpacked one, and each trainer's own names."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.inspect.contents import PackContents
from packprep.inspect.histograms import counts_of
from packprep.loaders import PackedLoader, PackedShards
from packprep.reports.recipe import (
    Recipe,
    equal_recipe,
    loader_notes,
    packed_settings,
    recipe_notes,
)
from packprep.reports.trainers import TRAINERS
from tests.helpers.command import done, run
from tests.helpers.errors import assert_says
from tests.helpers.tiny_shards import RICH, rich_row, write_output
from tests.helpers.zoo import Zoo

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
FEW = st.integers(1, 5)


def contents_of(counts: list[int]) -> PackContents:
    return PackContents(
        split="train",
        unit="segment",
        max_length=64,
        counts=counts_of(np.array(counts, np.int64)),
        later_pieces=0,
        tokens=40 * len(counts),
    )


def recipe_of(
    micro: int, accumulation: int, ranks: int, epochs: int = 1, warmup: int = 0
) -> Recipe:
    sizes = {"micro_batch": micro, "accumulation": accumulation, "ranks": ranks}
    return Recipe(**sizes, epochs=epochs, learning_rate=1e-3, warmup_steps=warmup)


def steps_by_hand(rows: int, recipe: Recipe) -> int:
    """Counted one batch at a time, as a trainer with a sampler that keeps the last batch."""
    steps = 0
    for _ in range(recipe.epochs):
        batches = 0
        for _ in range(0, rows, recipe.micro_batch * recipe.ranks):
            batches += 1
            steps += batches % recipe.accumulation == 0
        steps += batches % recipe.accumulation > 0
    return steps


@given(COUNTS, FEW, FEW, FEW, FEW, st.integers(0, 20))
def test_no_number_of_packs_is_nearer_to_the_sequences_of_a_step(
    counts: list[int], micro: int, accumulation: int, ranks: int, epochs: int, warmup: int
) -> None:
    contents, recipe = contents_of(counts), recipe_of(micro, accumulation, ranks, epochs, warmup)
    equal = equal_recipe(contents, recipe, "token")
    packed, wanted = equal.packed, micro * accumulation * ranks

    def missed(packs: int) -> float:
        return abs(packs * ranks * sum(counts) / len(counts) - wanted)

    assert (packed.micro_batch, packed.ranks, packed.epochs) == (1, ranks, epochs)
    nearest = min(missed(packs) for packs in range(1, wanted + 1))
    assert math.isclose(missed(packed.accumulation), nearest, abs_tol=1e-9)
    assert packed.steps(len(counts)) == steps_by_hand(len(counts), packed)
    assert recipe.steps(sum(counts)) == steps_by_hand(sum(counts), recipe)
    assert bool(packed.warmup_steps) == bool(warmup)
    rates = equal.rates
    assert math.isclose(rates["sqrt"] ** 2, rates["linear"] * recipe.learning_rate)
    assert math.isclose(rates["linear"] / recipe.learning_rate, equal.ratio)
    assert equal.is_too_long == (sum(counts) / len(counts) * ranks > wanted)
    assert len([*recipe_notes(equal), *loader_notes([equal])]) == 3
    spread = contents.spread(packed.rows_per_step)
    assert min(counts) <= spread["p5"] <= spread["p95"]
    assert math.isclose(
        spread["mean"], sum(counts) / len(counts) * min(packed.rows_per_step, len(counts))
    )


def test_the_command_says_what_the_old_settings_do_and_what_equals_them(tmp_path: Path) -> None:
    rows = [rich_row(4 * number, 2, 1, *[2] * (number % 2), 3) for number in range(40)]
    splits = {"train": [rows], "validation": [[rich_row(900, 5)]]}
    write_output(tmp_path / "out", splits, RICH, max_length=32)
    recipe = ["--micro-batch", 7, "--accumulation", 2, "--ranks", 2, "--learning-rate", 1e-4]
    recipe += ["--epochs", 2, "--warmup-steps", 4, "--loss", "batch"]
    found = json.loads(done("equate", tmp_path / "out", *recipe, "--json").out)
    contents = (found["split"], found["packs"], found["sequences"], found["sequences_per_pack"])
    assert contents == ("train", 40, 140, 3.5)
    assert (found["unpacked"]["steps"], found["same_settings"]["steps"]) == (10, 4)
    assert found["same_settings"]["sequences_per_step"]["mean"] == 98
    equal = found["equal"]
    assert (equal["packs_per_step"], equal["accumulation"], equal["steps"]) == (8, 4, 10)
    assert (equal["sequences_per_step"]["mean"], equal["learning_rate"]) == (28, 1e-4)
    assert (equal["warmup_steps"], equal["tokens_per_step"]) == (4, 56)
    assert found["loss_weights"] == 7
    assert found["trainers"]["axolotl"]["micro_batch_size"] == 1
    lines = done("equate", tmp_path / "out", *recipe, "--for", "megatron").out.splitlines()
    assert lines[:3] == ["--micro-batch-size 1", "--global-batch-size 8", "--train-iters 10"]
    loader = done("equate", tmp_path / "out", *recipe, "--for", "packprep").out
    assert loader == "sequences_per_step=28,\nworld_size=2,\nloss_weights=7,\n"
    table = done("equate", tmp_path / "out", *recipe).out
    assert "steps                   10                     4                 10\n" in table
    assert "loss_weights=7" in table


STEP = ("--micro-batch", 4, "--learning-rate", 1e-3, "--warmup-steps", 2)


def test_each_phase_has_a_table_and_only_the_first_a_warm_up(zoo: Zoo) -> None:
    output = zoo["phases"]
    shards = PackedShards(output, split="train")
    phases = json.loads(done("equate", output, *STEP, "--json").out)["phases"]
    assert [phase["packs"] for phase in phases] == [phase.packs for phase in shards.phases]
    assert [phase["unpacked"]["warmup_steps"] for phase in phases] == [2, 0, 0]
    assert [phase["equal"]["warmup_steps"] for phase in phases] == [2, 0, 0]
    table = done("equate", output, *STEP).out
    assert table.count("packs, equal step") == table.count(f"{output}, phase ") == 3
    assert table.count("\nloss: ") == 1
    lines = done("equate", output, *STEP, "--for", "axolotl").out.splitlines()
    assert lines[::6] == [f"# {output}, phase {number}" for number in (1, 2, 3)]
    assert {line.partition(":")[0] for line in lines[1:6]} == {*TRAINERS["axolotl"].names.values()}


@pytest.mark.parametrize(
    ("member", "word", "weights"), [("trees", "rows", "token"), ("pairs", "pairs", None)]
)
def test_rows_of_trees_and_pairs_are_sequences_that_packed_loader_alone_trains(
    zoo: Zoo, member: str, word: str, weights: str | None
) -> None:
    output = zoo[member]
    recipe = ("--micro-batch", 64, "--learning-rate", 1e-3)
    found = json.loads(done("equate", output, *recipe, "--json").out)
    assert found["loss_weights"] == weights
    assert [*found["trainers"]] == ["packprep"]
    loader = PackedLoader(
        output,
        sequences_per_step=64,
        trees=member == "trees",
        sides="both" if member == "pairs" else None,
    )
    assert len(loader) == found["sequences"] // 64
    assert f"\n{word} a step " in done("equate", output, *recipe).out
    loss = "weights" if weights is None else "loss_weights='token'"
    assert (loss in done("equate", output, *recipe, "--for", "packprep").out) == bool(weights)
    result = run("equate", output, *recipe, "--for", "trl")
    assert result.code == 2
    assert_says(result.err, "--for is trl", "--for packprep")


def test_a_plan_of_a_token_store_has_the_recipe_of_its_output(zoo: Zoo, tmp_path: Path) -> None:
    sources, store, output = zoo.sources("split"), tmp_path / "tokens", tmp_path / "out"
    text = [*sources, "--tokenizer", zoo.tokenizer]
    done("tokenize", *text, "-o", store)
    options = ["--window", 12_000, "--max-length", 64, "--holdout", 0.1, "--stride", 8]
    plans = [
        done("plan", *text, *options, "--json").out,
        done("pack", store, "-o", output, *options, "--dry-run", "--json").out,
    ]
    done("pack", store, "-o", output, *options, "--quiet")
    wanted = done("equate", output, *STEP, "--json").out
    assert json.loads(wanted)["later_pieces"] > 0
    for plan in plans:
        (tmp_path / "plan.json").write_text(plan)
        assert done("equate", tmp_path / "plan.json", *STEP, "--json").out == wanted
        assert run("equate", "-", *STEP, "--json", stdin=plan.encode()).out == wanted


def test_dry_runs_of_phases_have_a_recipe_for_each(zoo: Zoo, tmp_path: Path) -> None:
    config = zoo.config("phases")
    settings = {"sources": [*config.sources], "phases": json.loads(json.dumps(config.phases))}
    settings |= {"tokenizer": str(zoo.tokenizer), "output": "later"}
    (tmp_path / "phases.yaml").write_text(json.dumps(settings))  # YAML too
    text = done("build", "-c", tmp_path / "phases.yaml", "--dry-run", "--json").out
    found = json.loads(run("equate", "-", *STEP, "--json", stdin=text.encode()).out)
    predicted = [phase["packs"] for phase in json.loads(text)["phases"].values()]
    assert [phase["packs"] for phase in found["phases"]] == predicted


def test_what_is_neither_an_output_nor_one_plan_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    store = tmp_path / "tokens"
    done("tokenize", zoo.source("text"), "-o", store, "--tokenizer", zoo.tokenizer)
    two = done("plan", store, "--max-length", "64,128", "--json").out
    none = json.dumps({"from": "nothing", "sample": 1, "plans": [{"contents": None}]})
    for stdin, words in (
        (two, ("standard input has 2 plans", "one --max-length")),
        ("{}", ("standard input is no plan", "'prediction'", "packprep plan --json")),
        ("packed", ("standard input is no plan",)),
        (none, ("standard input is no plan",)),
    ):
        result = run("equate", "-", *STEP, stdin=stdin.encode())
        assert result.code == 2
        assert_says(result.err, *words)
    result = run("equate", store, *STEP)
    assert result.code == 2
    assert_says(
        result.err, f"{store} is a token store", f"packprep pack {store} --max-length N --dry-run"
    )
    result = run("equate", "-", *STEP, "--store", store)
    assert result.code == 2
    assert_says(result.err, "leave out --store")


def test_trainers_have_the_names_that_settings_are_printed_with() -> None:
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    values = packed_settings(equal_recipe(contents_of([3, 4]), recipe_of(2, 2, 1), "token"))
    names = {name: {*each.named(values)} for name, each in TRAINERS.items()}
    for owner, trainer in (
        (transformers.TrainingArguments, "transformers"),
        (trl.SFTConfig, "trl"),
        (transformers.Seq2SeqTrainingArguments, "llama-factory"),  # its arguments inherit these
    ):
        assert names[trainer] <= {field.name for field in dataclasses.fields(owner)}
