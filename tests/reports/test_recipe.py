"""A recipe for packs has the steps of the unpacked one, and each trainer's own names."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.reports.recipe import (
    PackContents,
    Recipe,
    equal_recipe,
    packed_settings,
    recipe_notes,
)
from packprep.reports.trainers import TRAINERS
from tests.helpers.command import done, run
from tests.helpers.tiny_shards import RICH, rich_row, write_output
from tests.helpers.zoo import Zoo

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
FEW = st.integers(1, 5)


def contents_of(counts: list[int]) -> PackContents:
    values = np.array(counts, np.int64)
    return PackContents(
        split="train", max_length=64, sequences=values, later_pieces=0, tokens=40 * len(counts)
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
    assert len([*recipe_notes(equal)]) == 3
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


@pytest.mark.parametrize("member", ["trees", "pairs", "phases"])
def test_outputs_whose_segments_are_no_sequences_of_one_loss_are_refused(
    zoo: Zoo, member: str
) -> None:
    result = run("equate", zoo[member], "--micro-batch", 2, "--learning-rate", 1)
    assert result.code == 2
    assert f"has {'preference ' * (member == 'pairs')}{member}, " in result.err
    assert "build one without them" in result.err


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
