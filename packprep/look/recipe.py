"""The recipe for packs that trains like a recipe for single sequences.

A pack holds several sequences. With the settings of an unpacked run a step holds that many times
more of them, and an epoch has that many times fewer steps at the old learning rate.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config.yaml_file import load_table
from ..support.errors import ConfigError
from .figures import filler_of

_NAMES = {
    "micro_batch": ("per_device_train_batch_size", "micro_batch_size"),
    "accumulation": ("gradient_accumulation_steps",),
    "epochs": ("num_train_epochs", "num_epochs"),
    "max_steps": ("max_steps",),
    "learning_rate": ("learning_rate",),
    "warmup": ("warmup_steps", "warmup_ratio"),
    "ranks": ("num_processes", "world_size"),
}
"""Settings by their names in recipes of transformers, TRL, LLaMA-Factory and Axolotl."""
_PACKED = ("packing", "sample_packing", "neat_packing")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a run; its rows are sequences, or packs. names: of settings, in the file.

    micro_batch: rows that a rank computes at a time. accumulation: micro-batches of a rank in a
    step. max_steps: instead of epochs, -1 for none. warmup: steps; below 1 the share of all steps.
    """

    names: Mapping[str, str]
    micro_batch: int
    accumulation: int = 1
    ranks: int = 1
    epochs: float = 1.0
    max_steps: int = -1
    learning_rate: float
    warmup: float = 0.0

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, over all ranks."""
        return self.micro_batch * self.accumulation * self.ranks

    def steps(self, rows: int) -> int:
        """Steps of the run, as transformers counts them; the last of an epoch may be smaller."""
        if self.max_steps > 0:
            return self.max_steps
        batches = -(-rows // (self.micro_batch * self.ranks))
        return math.ceil(self.epochs * max(-(-batches // self.accumulation), 1))

    def warmup_steps(self, rows: int) -> int:
        """Steps in which the learning rate rises."""
        return math.ceil(self.warmup * self.steps(rows)) if self.warmup < 1 else int(self.warmup)


class Equal(NamedTuple):
    """A recipe for sequences, and the one for packs that is nearest to it.

    sequences, packs, tokens: of an epoch. unit: what a sequence is: sequences, or pairs.
    """

    unpacked: Recipe
    packed: Recipe
    sequences: int
    packs: int
    tokens: int
    unit: str

    @property
    def mean(self) -> float:
        """Sequences of a pack."""
        return self.sequences / self.packs

    @property
    def ratio(self) -> float:
        """Sequences of a step of packs for each one of an unpacked step."""
        return self.packed.rows_per_step * self.mean / self.unpacked.rows_per_step


def read_recipe(path: Path, ranks: int | None = None) -> Recipe:
    """The recipe in a YAML or JSON file. ranks: in place of those of the file.

    Raises ConfigError for a file without the settings that count, or of a packed run.
    """
    values = load_table(path)
    for name in _PACKED:
        if values.get(name) is True:
            raise ConfigError(
                f"{path} has {name}: true, so its rows are packs; expected the recipe of an "
                "unpacked run"
            )
    names = {
        setting: name
        for setting, known in _NAMES.items()
        for name in known[::-1]
        if values.get(name) not in (None, 0, "", -1)  # -1: of max_steps, none
    }
    for setting in ("micro_batch", "learning_rate"):
        if setting not in names:
            raise ConfigError(
                f"{path} has no {' or '.join(_NAMES[setting])}, and trainers have other defaults; "
                "add it"
            )
    if not {"epochs", "max_steps"} & names.keys():
        raise ConfigError(f"{path} has no num_train_epochs, num_epochs or max_steps; add one")
    found = {key: _number(path, name, values[name], key) for key, name in names.items()}
    return Recipe(names=names, **(found if ranks is None else {**found, "ranks": ranks}))


def _number(path: Path, name: str, value: Any, setting: str) -> Any:
    """A number of a file, above 0; YAML reads 2e-5 as text."""
    kind = float if setting in ("epochs", "learning_rate", "warmup") else int
    try:
        number = float(value)
        if isinstance(value, bool) or kind(number) != number or not 0 < number < 1e15:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        what = "whole number" if kind is int else "number"
        raise ConfigError(f"{path} has {name}: {value!r}, expected a {what} above 0") from None
    return kind(number)


def equal_recipe(recipe: Recipe, report: Mapping[str, Any], scale: float, *, pairs: bool) -> Equal:
    """The recipe whose steps hold as many sequences, on average, in whole packs on each rank.

    Warm-up takes as many sequences as before. The learning rate follows the square root of what a
    step holds more: the rule for Adam and AdamW (Malladi et al., 2022). report: of the packs.
    scale: what its counts are multiplied with.
    """
    split = report["splits"]["train"]
    counts = (split["segments"] - filler_of(report), split["packs"], split["tokens"])
    sequences, packs, tokens = (max(1, round(count * scale)) for count in counts)
    sequences = sequences // 2 if pairs else sequences
    per_rank = recipe.rows_per_step / recipe.ranks * packs / sequences
    packed = replace(recipe, micro_batch=1, accumulation=max(1, round(per_rank)))
    equal = Equal(recipe, packed, sequences, packs, tokens, "pairs" if pairs else "sequences")
    ratio, warmup = equal.ratio, recipe.warmup
    if warmup >= 1:
        warmup = max(1, round(warmup / ratio))
    packed = replace(
        packed,
        warmup=warmup,
        max_steps=max(1, round(recipe.max_steps / ratio)) if recipe.max_steps > 0 else -1,
        learning_rate=float(f"{recipe.learning_rate * math.sqrt(ratio):.3g}"),
    )
    return equal._replace(packed=packed)


def recipe_table(equal: Equal) -> list[tuple[str, ...]]:
    """Rows of the table: name; unpacked; packs with the same settings; packs of an equal step."""
    runs = (
        (equal.unpacked, equal.sequences, 1.0),
        (equal.unpacked, equal.packs, equal.mean),
        (equal.packed, equal.packs, equal.mean),
    )
    rows = [
        (f"{equal.unit} a step", [f"{r.rows_per_step * mean:,.1f}" for r, _, mean in runs]),
        ("packs a step", ["", *(f"{r.rows_per_step:,}" for r, _, _ in runs[1:])]),
        (
            "tokens a step",
            [f"{equal.tokens / n * min(r.rows_per_step, n):,.0f}" for r, n, _ in runs],
        ),
        ("steps", [f"{r.steps(n):,}" for r, n, _ in runs]),
        ("warm-up steps", [f"{r.warmup_steps(n):,}" for r, n, _ in runs]),
        ("learning rate", [f"{r.learning_rate:.2e}" for r, _, _ in runs]),
    ]
    return [(name, *cells) for name, cells in rows]


def settings(equal: Equal) -> dict[str, Any]:
    """What changes in the recipe, by its own names."""
    names = {"accumulation": _NAMES["accumulation"][0], **equal.unpacked.names}
    changed = ("micro_batch", "accumulation", "max_steps", "learning_rate", "warmup")
    return {names[key]: getattr(equal.packed, key) for key in changed if key in names}


def recipe_notes(equal: Equal, max_length: int) -> Iterator[str]:
    """Sentences on a recipe: by which rules it is made, and what cannot be equal."""
    recipe = equal.unpacked
    most = equal.mean * recipe.ranks
    if most > recipe.rows_per_step:
        fits = int(max_length * recipe.rows_per_step / most)
        yield (
            f"a step of one pack on each rank holds {most:,.1f} {equal.unit}, more than "
            f"{recipe.rows_per_step:,}: for an equal step choose --max-length {fits:,} or less, or "
            "fewer ranks"
        )
    linear = recipe.learning_rate * equal.ratio
    yield (
        f"learning rate: a step holds {equal.ratio:.3g} times the {equal.unit}; by the square root "
        f"rule, for Adam and AdamW; for SGD {linear:.2e}, by the linear rule"
    )
    if equal.unit == "pairs":
        yield "loss: divide the sum over the pairs of a step by their number on all ranks"
        return
    yield (
        "loss: trainers take the mean over all trained tokens of a step, so packs need no weights; "
        'for a mean of sequence means, PackedLoader(loss_weights="segment")'
    )
