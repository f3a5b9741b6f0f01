"""The recipe for packs that trains like a recipe for single sequences.

A pack holds several sequences. With the settings of an unpacked run a step holds that many times
more of them, and an epoch has that many times fewer steps at the old learning rate.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from packprep.inspect.histograms import read_windows
from packprep.reports.trainers import SettingValue
from packprep.schemas.manifest import Output, read_manifest
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError
from packprep.support.hashing import mix

LossMean = Literal["token", "sequence", "batch"]

_STEPS = 1000  # that are drawn for the spread of a step, at least


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run. Its rows are sequences, or packs.

    micro_batch: rows that a rank computes at a time.
    accumulation: micro-batches of a rank in a step.
    epochs: times that each row is trained.
    warmup_steps: first steps, in which the learning rate rises.
    """

    micro_batch: int
    accumulation: int
    ranks: int
    epochs: int
    learning_rate: float
    warmup_steps: int

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, over all ranks."""
        return self.micro_batch * self.accumulation * self.ranks

    def steps(self, rows: int) -> int:
        """Steps over these rows in all epochs, as transformers counts them.

        The last step of an epoch may be smaller.
        """
        batches = -(-rows // (self.micro_batch * self.ranks))
        return self.epochs * -(-batches // self.accumulation)


@dataclass(frozen=True, kw_only=True)
class PackContents:
    """Sequences of the packs of a split. A sequence is a segment that is not filler.

    sequences: int64 [packs], number in each pack. later_pieces: sequences that continue a document.
    tokens: of all packs, without padding.
    """

    split: str
    max_length: int
    sequences: Int64
    later_pieces: int
    tokens: int

    @property
    def packs(self) -> int:
        return len(self.sequences)

    @property
    def total(self) -> int:
        """Sequences of all packs."""
        return int(self.sequences.sum())

    @property
    def mean(self) -> float:
        """Sequences of a pack, on average."""
        return self.total / self.packs

    def spread(self, packs_per_step: int) -> dict[str, float]:
        """Sequences of a step of so many packs: mean, and the 5th and 95th percentile.

        The mean is exact. Percentiles are those of 1,000 steps or more of shuffled epochs.
        """
        size = min(packs_per_step, self.packs)
        steps = self.packs // size
        drawn = [
            self.sequences[np.argsort(mix(np.uint64(epoch), np.arange(self.packs)))][: steps * size]
            .reshape(steps, size)
            .sum(1)
            for epoch in range(-(-_STEPS // steps))
        ]
        low, high = np.percentile(np.concatenate(drawn), (5, 95))
        return {"mean": self.mean * size, "p5": float(low), "p95": float(high)}


def read_contents(output: Output) -> PackContents:
    """Contents of the packs of the split "train" if there is one, else of the first split.

    Of the first epoch, if documents are packed for several. ConfigError for an output with trees,
    pairs or phases, or without packs.
    """
    manifest = read_manifest(output)
    columns = {column.name for column in manifest.columns}
    for has, what in (
        (manifest.has_trees, "trees, whose segments are not sequences"),
        ("pair_sides" in columns, "preference pairs, which have a loss of their own"),
        (bool(manifest.phases), "phases, whose steps hold different numbers of packs"),
    ):
        if has:
            raise ConfigError(
                f"{output} has {what}; packprep equate needs an output with one sequence in each "
                "segment and one length of packs: build one without them"
            )
    split = "train" if "train" in manifest.splits else next(iter(manifest.splits))
    counts, later, tokens = [np.empty(0, np.int64)], 0, 0
    for window in read_windows(output, manifest):
        if window.split == split:
            real = window.real > 0
            counts.append(np.bincount(window.pack[real], minlength=window.packs))
            later += 0 if window.start is None else int(np.count_nonzero(window.start[real]))
            tokens += int(window.real.sum())
    sequences = np.concatenate(counts)
    if not sequences.any():
        raise ConfigError(f"{output} has no packs of {split}; build it again with documents")
    return PackContents(
        split=split,
        max_length=manifest.max_length,
        sequences=sequences,
        later_pieces=later,
        tokens=tokens,
    )


@dataclass(frozen=True, kw_only=True)
class EqualRecipe:
    """A recipe for single sequences, and the one for packs that is nearest to it.

    unpacked: its rows are sequences. packed: its rows are packs, one a micro-batch. Both take the
    same number of ranks.
    """

    contents: PackContents
    unpacked: Recipe
    packed: Recipe
    loss: LossMean

    @property
    def ratio(self) -> float:
        """Sequences of a step of packs for each one of the unpacked step, on average."""
        return self.packed.rows_per_step * self.contents.mean / self.unpacked.rows_per_step

    @property
    def rates(self) -> dict[str, float]:
        """Learning rate by each rule, for a step that holds `ratio` times the sequences.

        sqrt: for Adam and AdamW (Malladi et al., "On the SDEs and Scaling Rules for Adaptive
        Gradient Algorithms", 2022). linear: for SGD (Goyal et al., "Accurate, Large Minibatch SGD",
        2017).
        """
        rate = self.unpacked.learning_rate
        return {"sqrt": rate * math.sqrt(self.ratio), "linear": rate * self.ratio}

    @property
    def loss_weights(self) -> str | int:
        """`loss_weights` of PackedLoader with which the packed gradient is the unpacked one."""
        if self.loss == "batch":
            return self.unpacked.micro_batch
        return "segment" if self.loss == "sequence" else "token"

    @property
    def is_too_long(self) -> bool:
        """True if the smallest step, one pack a rank, holds more sequences than the recipe's."""
        return self.contents.mean * self.unpacked.ranks > self.unpacked.rows_per_step

    def as_dict(self) -> dict[str, Any]:
        """Everything that is known, as plain JSON values. Learning rates are not rounded."""
        contents, steps = self.contents, float(self.unpacked.rows_per_step)
        even = {"mean": steps, "p5": steps, "p95": steps}
        return {
            "split": contents.split,
            "packs": contents.packs,
            "sequences": contents.total,
            "later_pieces": contents.later_pieces,
            "sequences_per_pack": contents.mean,
            "unpacked": _facts(self.unpacked, contents.total, contents.tokens, even),
            **{
                name: {"packs_per_step": recipe.rows_per_step}
                | _facts(
                    recipe, contents.packs, contents.tokens, contents.spread(recipe.rows_per_step)
                )
                for name, recipe in (("same_settings", self.unpacked), ("equal", self.packed))
            },
            "learning_rates": self.rates,
            "loss": self.loss,
            "loss_weights": self.loss_weights,
        }


def _facts(recipe: Recipe, rows: int, tokens: int, spread: dict[str, float]) -> dict[str, Any]:
    """A recipe and its steps. rows, tokens: of an epoch. spread: of the sequences of a step."""
    return {
        "sequences_per_step": spread,
        "tokens_per_step": tokens / rows * min(recipe.rows_per_step, rows),
        "steps": recipe.steps(rows),
        **vars(recipe),
    }


def equal_recipe(contents: PackContents, recipe: Recipe, loss: LossMean) -> EqualRecipe:
    """The recipe for packs whose step holds as many sequences, on average, as the recipe's.

    A step has the nearest whole number of packs on each rank, 1 or more. Warm-up takes as many
    sequences as before, and the learning rate follows the square root rule.
    """
    per_rank = recipe.rows_per_step / recipe.ranks / contents.mean
    packed = replace(recipe, micro_batch=1, accumulation=max(1, round(per_rank)))
    equal = EqualRecipe(contents=contents, unpacked=recipe, packed=packed, loss=loss)
    warmup = max(min(recipe.warmup_steps, 1), round(recipe.warmup_steps / equal.ratio))
    packed = replace(packed, warmup_steps=warmup, learning_rate=equal.rates["sqrt"])
    return replace(equal, packed=packed)


def recipe_table(equal: EqualRecipe) -> list[tuple[str, ...]]:
    """Rows of the table: name; unpacked; packs with the same settings; packs of an equal step."""
    facts = equal.as_dict()
    columns = [facts[name] for name in ("unpacked", "same_settings", "equal")]
    of_step = [column["sequences_per_step"] for column in columns]
    between = (f"{spread['p5']:,.0f} to {spread['p95']:,.0f}" for spread in of_step[1:])
    return [
        ("sequences a step", *(f"{spread['mean']:,.1f}" for spread in of_step)),
        ("in 9 of 10 steps", "", *between),
        ("packs a step", "", *(f"{column['packs_per_step']:,}" for column in columns[1:])),
        ("tokens a step", *(f"{column['tokens_per_step']:,.0f}" for column in columns)),
        *(
            (title, *(f"{column[key]:,}" for column in columns))
            for title, key in (
                ("steps", "steps"),
                ("warm-up steps", "warmup_steps"),
                ("ranks", "ranks"),
                ("micro-batch", "micro_batch"),
                ("accumulation", "accumulation"),
            )
        ),
        ("learning rate", *(rate_text(column["learning_rate"]) for column in columns)),
    ]


def recipe_notes(equal: EqualRecipe) -> Iterator[str]:
    """Sentences on the table: what to set, by which rule, and what cannot be equal."""
    contents, recipe = equal.contents, equal.unpacked
    if equal.is_too_long:
        fits = contents.max_length * recipe.rows_per_step / (contents.mean * recipe.ranks)
        yield (
            f"a step of one pack on each rank holds {contents.mean * recipe.ranks:,.1f} sequences, "
            f"more than {recipe.rows_per_step:,}: for an equal step build with --max-length "
            f"{int(fits):,} or less, or use fewer ranks"
        )
    linear = rate_text(equal.rates["linear"])
    yield (
        f"learning rate: a step holds {equal.ratio:.3g} times the sequences; by the square root "
        f"rule, for Adam and AdamW; for SGD {linear}, by the linear rule"
    )
    if not equal.is_too_long:
        yield (
            f"PackedLoader(sequences_per_step={recipe.rows_per_step}) holds as many on average: "
            f"learning rate {rate_text(recipe.learning_rate)}, steps and warm-up stay"
        )
    yield {
        "token": "loss: the mean over all trained tokens of a step, which trainers take by "
        "themselves (num_items_in_batch of transformers); no weights",
        "sequence": 'loss: loss_weights="segment", divided by the sequences of the step on all '
        "ranks, is the mean of sequence means",
        "batch": f"loss: loss_weights={recipe.micro_batch}, divided by the sum of the weights on "
        "all ranks, is the mean of the means of micro-batches",
    }[equal.loss]
    if contents.later_pieces:
        yield (
            f"{contents.later_pieces:,} sequences continue a document that was cut; an unpacked "
            "run that truncates does not have them"
        )


def packed_settings(equal: EqualRecipe) -> dict[str, SettingValue]:
    """Values of the recipe for packs, by the names that `TRAINERS` spells."""
    recipe = equal.packed
    return {
        **vars(recipe),
        "learning_rate": float(rate_text(recipe.learning_rate)),
        "packs_per_step": recipe.rows_per_step,
        "sequences_per_step": equal.unpacked.rows_per_step,
        "steps": recipe.steps(equal.contents.packs),
        "loss_weights": equal.loss_weights,
    }


def rate_text(rate: float) -> str:
    """A learning rate with three digits, such as 2.04e-05."""
    return f"{rate:.2e}"
