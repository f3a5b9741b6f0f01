"""Values of options that have parts: `balanced:8`, `truncate:left`, `64:fill`, `3/8`.

An option keeps such a value as text. Functions read its parts, which a stage parses once. Each part
but the first was an option of its own in earlier versions; manifests and reports keep that name.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from packprep.config.grammar.amounts import count_of
from packprep.config.grammar.option import STRATEGY_NAMES, StrategyName
from packprep.config.grammar.rules import flag
from packprep.schemas.plans.cost import Cost
from packprep.support.errors import ConfigError, brief, nearest


@dataclass(frozen=True, kw_only=True)
class PartKind:
    """The values of a part.

    read: converts its text; None for a wrong one. words: all values, if these are a few.
    """

    expected: str
    read: Callable[[str], object]
    words: tuple[str, ...] = ()


def _words(*words: str) -> PartKind:
    return PartKind(
        expected=f"one of {', '.join(words)}",
        read=lambda text: text if text in words else None,
        words=words,
    )


def _count(text: str) -> int | None:
    number = count_of(text)
    return number if number is not None and 0 < number < 2**63 else None


def _cost(text: str) -> str | None:
    """The text, if it is a cost."""
    try:
        Cost.parse(text)
    except ValueError:
        return None
    return text


_COUNT = PartKind(expected="a whole number of at least 1", read=_count)
_COST = PartKind(expected="two numbers of at least 0 such as 24576,1", read=_cost)
_TEXT = PartKind(expected="text", read=lambda text: text or None)
_TASK = PartKind(
    expected="a number from 0, or merge",
    read=lambda text: text if re.fullmatch(f"[0-9]+|{AUTO}|{MERGE}", text) else None,
)
AUTO = "auto"  # the task whose number a scheduler gives
MERGE = "merge"  # the task of an array that signs off


def part(default: object, kind: PartKind, earlier: str, *, of: Iterable[str] = ()) -> Any:
    """Define a part. earlier: its name in manifests. of: the first parts that it may follow."""
    metadata = {"kind": kind, "earlier": earlier, "of": frozenset(of)}
    return field(default=default, metadata=metadata)


def _split(value: object, separator: str, most: int) -> list[str]:
    try:
        return str(value).split(separator, most - 1)
    except ValueError:  # a number of more digits than Python shows
        return [""]


@dataclass(frozen=True)
class Setting:
    """A value with parts; parts at the end that have their defaults may be left out."""

    separator: ClassVar[str] = ":"
    expected: ClassVar[str] = ""

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The values of the first part; empty if it is no word."""
        words: tuple[str, ...] = fields(cls)[0].metadata["kind"].words
        return words

    @classmethod
    def allows(cls, name: str, first: object) -> bool:
        """True if a part may follow a value of the first part."""
        return all(
            spec.name != name or not spec.metadata["of"] or first in spec.metadata["of"]
            for spec in fields(cls)
        )

    @classmethod
    def stated(cls, option: str, value: object) -> dict[str, object]:
        """The parts that a value has. Raises ConfigError for a wrong value of the option."""
        specs = fields(cls)
        parts: dict[str, object] = {}
        for spec, text in zip(specs, _split(value, cls.separator, len(specs)), strict=False):
            read = spec.metadata["kind"].read(text)
            if read is None or (parts and not cls.allows(spec.name, parts[specs[0].name])):
                named = not parts and cls.words()
                end = nearest(text, cls.words()) if named else f", expected {cls.expected}"
                raise ConfigError(f"{flag(option)} is {brief(value)}{end}")
            parts[spec.name] = read
        return parts

    @classmethod
    def parse(cls, option: str, value: object) -> Self:
        """The parts of a value. Raises ConfigError for a wrong value of the option."""
        return cls(**cls.stated(option, value))

    @classmethod
    def of(cls, option: str) -> "cached_property[Self]":
        """The parts of an option, as an attribute of its stage."""
        return cached_property(lambda stage: cls.parse(option, getattr(stage, option)))

    def __str__(self) -> str:
        shown = [(getattr(self, spec.name), spec.default) for spec in fields(self)]
        while len(shown) > 1 and shown[-1][0] == shown[-1][1]:
            shown.pop()
        return self.separator.join(str(value) for value, _ in shown)

    @property
    def written(self) -> int | str:
        """The value as an option keeps it."""
        return str(self)

    def recorded(self) -> dict[str, object]:
        """The parts by their names in manifests."""
        return {spec.metadata["earlier"]: getattr(self, spec.name) for spec in fields(self)}


@dataclass(frozen=True)
class TurnSetting(Setting):
    """Documents of a conversation. most: only of its last turns; None for all."""

    expected = "each:N or auto:N with N of at least 1"

    name: Literal["row", "each", "auto"] = part("row", _words("row", "each", "auto"), "turns")
    most: int | None = part(None, _COUNT, "max_turns", of=("each", "auto"))


@dataclass(frozen=True)
class StrategySetting(Setting):
    """A strategy. packs: their number; None for as few as possible."""

    expected = "balanced:N with N of at least 1"

    name: StrategyName = part("best_fit", _words(*STRATEGY_NAMES), "strategy")
    packs: int | None = part(None, _COUNT, "num_packs", of=("balanced",))


@dataclass(frozen=True)
class OverflowSetting(Setting):
    """Treatment of long documents. side: the end that truncate cuts off."""

    expected = "truncate:right, truncate:left or truncate:balanced"

    name: Literal["split", "truncate", "drop", "error"] = part(
        "split", _words("split", "truncate", "drop", "error"), "overflow"
    )
    side: Literal["right", "left", "balanced"] = part(
        "right", _words("right", "left", "balanced"), "truncation_side", of=("truncate",)
    )


@dataclass(frozen=True)
class OrderSetting(Setting):
    """The order of packs. ranks: those that step together. weights: see `cost`."""

    expected = "a name, or balanced:RANKS:A,B such as balanced:8:24576,1"

    name: Literal["shuffle", "input", "length", "balanced"] = part(
        "shuffle", _words("shuffle", "input", "length", "balanced"), "order"
    )
    ranks: int = part(8, _COUNT, "balance_ranks")
    weights: str = part("24576,1", _COST, "attention_cost")

    @property
    def cost(self) -> Cost:
        """The cost of a segment."""
        return Cost.parse(self.weights)

    def of_model(self, config: str) -> Self:
        """The same order with the costs of a model. Raises ConfigError."""
        cost = model_cost(config)
        if self.weights not in (OrderSetting.weights, str(cost)):
            raise ConfigError(
                f"--cost-of {config} and --order {self} both say what a segment costs; give one of "
                "them"
            )
        return replace(self, weights=str(cost))


def model_cost(config: str | Path) -> Cost:
    """The value of --cost-of. Raises ConfigError."""
    try:
        return Cost.of_config(config)
    except ValueError as error:
        raise ConfigError(f"--cost-of: {error}") from None


@dataclass(frozen=True)
class MultipleSetting(Setting):
    """A multiple of packs. remainder: what is done with packs beyond it."""

    expected = "N, N:drop or N:fill with N of at least 1"

    packs: int = part(1, _COUNT, "packs_multiple_of")
    remainder: Literal["drop", "fill"] = part("drop", _words("drop", "fill"), "remainder")

    @property
    def written(self) -> int | str:
        """The number alone if packs are dropped."""
        return self.packs if self.remainder == "drop" else str(self)


@dataclass(frozen=True)
class ExecutorSetting(Setting):
    """Executor of the tasks. cluster: address of a Ray cluster; None for a local one or no Ray."""

    expected = "ray:ADDRESS"

    name: Literal["local", "isolated", "ray", "array"] = part(
        "local", _words("local", "isolated", "ray", "array"), "executor"
    )
    cluster: str | None = part(None, _TEXT, "ray_address", of=("ray",))


@dataclass(frozen=True)
class PartSetting(Setting):
    """The task of a job array that a command is. tasks: None if a scheduler says how many."""

    separator = "/"
    expected = "I/N with a number I from 0 to N-1, merge, or auto/N for I of a scheduler"

    task: str = part(AUTO, _TASK, "task_index")
    tasks: int | None = part(None, _COUNT, "num_tasks")

    @property
    def index(self) -> int | None:
        """Number of the task; None if a scheduler gives it."""
        return None if self.task in (AUTO, MERGE) else int(self.task)

    @property
    def signs_off(self) -> bool:
        """True for the task that signs off the output."""
        return self.task == MERGE
