"""The recipe for packs that trains like a recipe for single sequences.

A pack holds several sequences. With the settings of an unpacked run a step holds that many times
more of them, and an epoch has that many times fewer steps at the old learning rate.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from packprep.inspect.contents import PackContents, read_contents
from packprep.reports.trainers import TRAINERS, SettingValue, Spelling
from packprep.schemas.manifest import Output
from packprep.support.errors import ConfigError

LossMean = Literal["token", "sequence", "batch"]

_PLURAL = {"segment": "sequences", "row": "rows", "pair": "pairs"}


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
    def sequences(self) -> str:
        """The word for sequences of these packs."""
        return _PLURAL[self.contents.unit]

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
    def loss_weights(self) -> str | int | None:
        """`loss_weights` of PackedLoader with which the packed gradient is the unpacked one.

        None for pairs, whose loss is not a sum over tokens.
        """
        if self.contents.unit == "pair":
            return None
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
            "unit": contents.unit,
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


def packs_of_output(output: Output) -> dict[str, PackContents]:
    """Contents of the packs of an output, or of each of its phases, by words for them."""
    return _named(
        str(output), {str(1 + phase): each for phase, each in read_contents(output).items()}
    )


def packs_of_plan(text: str | bytes, name: str) -> dict[str, PackContents]:
    """Contents of the packs of a plan, or of each of its phases, by words for them.

    text: JSON of `packprep plan`, of one length, strategy and overflow, or of --dry-run. name: of
    its file, for errors. ConfigError for other text, several plans, or one without packs.
    """
    try:
        plan = json.loads(text)
        if "plans" not in plan:
            source, phases = f"{name}: {plan['prediction']['from']}", plan["contents"]
        elif len(plan["plans"]) == 1:
            sample = "" if plan["sample"] == 1 else f", a sample of {plan['sample']:g}"
            source, phases = plan["from"] + sample, {"1": plan["plans"][0]["contents"]}
        else:
            raise ConfigError(
                f"{name} has {len(plan['plans'])} plans, expected one; give packprep plan one "
                "--max-length, --strategy and --overflow"
            )
        contents = {number: PackContents.of_json(phase) for number, phase in phases.items()}
        contents = {number: phase for number, phase in contents.items() if phase.total}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{name} is no plan ({error!r}); expected the folder of an output, or what packprep "
            "plan --json or packprep pack --dry-run --json prints"
        ) from None
    if not contents:
        raise ConfigError(f"{name} has no packs; plan documents that have tokens")
    return _named(source, contents)


def _named(source: str, phases: Mapping[str, PackContents]) -> dict[str, PackContents]:
    return {
        f"{source}, phase {number}" if len(phases) > 1 else source: contents
        for number, contents in phases.items()
    }


def equal_recipes(
    runs: Mapping[str, PackContents], recipe: Recipe, loss: LossMean
) -> dict[str, EqualRecipe]:
    """The equal recipe of each run of packs, trained in turn: only the first has a warm-up."""
    later = replace(recipe, warmup_steps=0)
    return {
        name: equal_recipe(contents, later if number else recipe, loss)
        for number, (name, contents) in enumerate(runs.items())
    }


def spelling_for(trainer: str, equal: EqualRecipe) -> Spelling:
    """Spelling of a trainer. ConfigError if it does not read these packs."""
    if trainer not in readers_of(equal):
        what = {"row": "trees", "pair": "preference pairs"}[equal.contents.unit]
        raise ConfigError(
            f"--for is {trainer}, which does not train on {what}; choose --for packprep"
        )
    return TRAINERS[trainer]


def readers_of(equal: EqualRecipe) -> Mapping[str, Spelling]:
    """Trainers that read these packs: of trees and pairs only a loop with PackedLoader."""
    plain = equal.contents.unit == "segment"
    return TRAINERS if plain else {"packprep": TRAINERS["packprep"]}


def recipe_table(equal: EqualRecipe) -> list[tuple[str, ...]]:
    """Rows of the table: name; unpacked; packs with the same settings; packs of an equal step."""
    facts = equal.as_dict()
    columns = [facts[name] for name in ("unpacked", "same_settings", "equal")]
    of_step = [column["sequences_per_step"] for column in columns]
    between = (f"{spread['p5']:,.0f} to {spread['p95']:,.0f}" for spread in of_step[1:])
    return [
        (f"{equal.sequences} a step", *(f"{spread['mean']:,.1f}" for spread in of_step)),
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
    """Sentences on a table: by which rule it is made, and what cannot be equal."""
    contents, recipe = equal.contents, equal.unpacked
    if equal.is_too_long:
        fits = contents.max_length * recipe.rows_per_step / (contents.mean * recipe.ranks)
        yield (
            f"a step of one pack on each rank holds {contents.mean * recipe.ranks:,.1f} "
            f"{equal.sequences}, more than {recipe.rows_per_step:,}: for an equal step build with "
            f"--max-length {int(fits):,} or less, or use fewer ranks"
        )
    linear = rate_text(equal.rates["linear"])
    yield (
        f"learning rate: a step holds {equal.ratio:.3g} times the {equal.sequences}; by the square "
        f"root rule, for Adam and AdamW; for SGD {linear}, by the linear rule"
    )
    if contents.unit == "row":
        yield "tokens a step: a prefix that rows share counts once, as the packs hold it"
    if contents.later_pieces:
        yield (
            f"{contents.later_pieces:,} {equal.sequences} continue a document that was cut; an "
            "unpacked run that truncates does not have them"
        )


def loader_notes(equals: Iterable[EqualRecipe]) -> Iterator[str]:
    """Sentences on all recipes of an output or a plan: how PackedLoader and the loss equal them."""
    first, *others = equals
    recipe = first.unpacked
    if not any(equal.is_too_long for equal in (first, *others)):
        yield (
            f"PackedLoader(sequences_per_step={recipe.rows_per_step}) holds as many on average: "
            f"learning rate {rate_text(recipe.learning_rate)}, steps and warm-up stay"
        )
    if first.contents.unit == "pair":
        yield (
            "loss: the sum over the pairs of a step, divided by their number on all ranks, is the "
            "mean over pairs; --loss changes nothing"
        )
        return
    yield {
        "token": "loss: the mean over all trained tokens of a step, which trainers take by "
        "themselves (num_items_in_batch of transformers; Megatron with "
        "--calculate-per-token-loss); no weights",
        "sequence": 'loss: loss_weights="segment", divided by the sequences of the step on all '
        "ranks, is the mean of sequence means",
        "batch": f"loss: loss_weights={recipe.micro_batch}, divided by the sum of the weights on "
        "all ranks, is the mean of the means of micro-batches",
    }[first.loss]


def packed_settings(equal: EqualRecipe) -> dict[str, SettingValue]:
    """Values of the recipe for packs, by the names that `TRAINERS` spells."""
    recipe = equal.packed
    return {
        **vars(recipe),
        "learning_rate": float(rate_text(recipe.learning_rate)),
        "packs_per_step": recipe.rows_per_step,
        "sequences_per_step": equal.unpacked.rows_per_step,
        "steps": recipe.steps(equal.contents.packs),
        "max_length": equal.contents.max_length,
        "batch_rows": 1,  # a micro-batch is one row of packs, end to end
        **({} if equal.loss_weights is None else {"loss_weights": equal.loss_weights}),
    }


def rate_text(rate: float) -> str:
    """A learning rate with three digits, such as 2.04e-05."""
    return f"{rate:.2e}"
