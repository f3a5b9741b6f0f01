"""Values of options that are more than a word: amounts, strategies, orders and the like.

Each `parse` takes what the user wrote, and raises ConfigError that names the option.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

from ..support.errors import ConfigError, brief, nearest

STRATEGIES = (
    *("best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy", "first_fit_input"),
    *("wrapped", "balanced"),
)
ONE_BY_ONE = ("stream", "greedy", "first_fit_input")
"""Strategies that take documents in input order, or in a seeded one."""
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_COUNTS = {**_SIZES, "b": 10**9}
_SIZES |= {f"{unit}b": amount for unit, amount in _SIZES.items()}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]{0,20}(?:\.[0-9]{1,20})?)\s*([a-z]{0,3})\s*", re.I)
_SHARE = re.compile(r"\s*((?=\.?[0-9])[0-9]{0,20}\.?[0-9]{0,20}(?:e-[0-9]{1,2})?)\s*(%?)\s*")


def wrong(option: str, value: Any, expected: str) -> NoReturn:
    """Raise ConfigError for a value of an option."""
    raise ConfigError(f"{flag(option)} is {brief(value)}, expected {expected}")


def flag(option: str) -> str:
    """The option as the command line spells it."""
    return "-o" if option == "output" else f"--{option.replace('_', '-')}"


def count_of(value: Any) -> int | None:
    """The whole number of "2k" (2,000), "2Ki" (2,048), "1.5B" or 8; None for others."""
    return _amount(value, _COUNTS)


def size_of(value: Any) -> int | None:
    """Bytes of "64MB" (64,000,000), "1.5GiB" or 4096; None for others."""
    return _amount(value, _SIZES)


def _amount(value: Any, units: dict[str, int]) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        return None
    amount = Fraction(match[1].replace("_", "")) * units[match[2].lower()]
    return int(amount) if amount.denominator == 1 else None


def share_of(value: Any) -> Fraction | None:
    """One hundredth of "1%", "0.01", 0.01 and 1e-2, exactly; None for others."""
    match = None if isinstance(value, bool) else _SHARE.fullmatch(str(value))
    return None if match is None else Fraction(match[1]) / (100 if match[2] else 1)


def parts_of(option: str, value: Any, names: Sequence[str]) -> tuple[str, str]:
    """NAME and REST of NAME[:REST]. Raises ConfigError for a name that is none of these."""
    name, _, rest = str(value).partition(":")
    if name not in names:
        raise ConfigError(f"{flag(option)} is {brief(value)}{nearest(name, names)}")
    return name, rest


class Strategy(NamedTuple):
    """NAME[:N]. packs: of balanced; None for as few as possible."""

    name: str
    packs: int | None = None

    @staticmethod
    def parse(value: str) -> "Strategy":
        """Example: balanced:8."""
        name, number = parts_of("strategy", value, STRATEGIES)
        packs = count_of(number)
        if number and (name != "balanced" or not packs):
            wrong("strategy", value, "balanced:N with N of at least 1")
        return Strategy(name, packs)


class Overflow(NamedTuple):
    """NAME[:HOW]. how: left or balanced, of truncate; else the end is cut off."""

    name: str
    how: str = ""

    @staticmethod
    def parse(value: str) -> "Overflow":
        """Example: truncate:left."""
        name, how = parts_of("overflow", value, ("split", "truncate", "drop", "error"))
        if how and (name != "truncate" or how not in ("left", "balanced")):
            wrong("overflow", value, "truncate:left or truncate:balanced")
        return Overflow(name, how)


class Order(NamedTuple):
    """NAME[:RANKS[:A,B]]. cost of a segment of n tokens: A * n + B * n**2."""

    name: str
    ranks: int
    cost: tuple[float, float]

    @staticmethod
    def parse(value: str) -> "Order":
        """Example: balanced:16:24576,1."""
        name, rest = parts_of("order", value, ("shuffle", "input", "length", "balanced"))
        ranks, _, cost = rest.partition(":")
        numbers = [share_of(number) for number in (cost or "24576,1").split(",")]
        if not (count := count_of(ranks or "8")) or len(numbers) != 2 or None in numbers:
            wrong("order", value, "a name, or balanced:RANKS:A,B such as balanced:8:24576,1")
        return Order(name, count, (float(numbers[0] or 0), float(numbers[1] or 0)))


class Multiple(NamedTuple):
    """N[:fill]. fill: packs are added instead of left out."""

    packs: int
    fill: bool

    @staticmethod
    def parse(value: int | str) -> "Multiple":
        """Example: 64:fill."""
        number, _, how = str(value).partition(":")
        packs = count_of(number)
        if not packs or how not in ("", "fill"):
            wrong("multiple", value, "N or N:fill with N of at least 1")
        return Multiple(packs, how == "fill")


class Holdout(NamedTuple):
    """SHARE[:SEED] of the rows for a validation split."""

    share: float
    seed: int

    @staticmethod
    def parse(value: str | float | None) -> "Holdout":
        """Example: 1%:7."""
        share, _, seed = str(value or 0).partition(":")
        amount, number = share_of(share), count_of(seed or "0")
        if amount is None or amount >= 1 or number is None:
            number_of = "" if amount is None else f"; this is {float(amount):g}"
            expected = f"a share from 0 to less than 1, such as 1% or 1%:7{number_of}"
            wrong("holdout", value, expected)
        return Holdout(float(amount), number)


class Part(NamedTuple):
    """I/N: tasks whose number is I modulo N."""

    number: int
    of: int

    @staticmethod
    def parse(value: str) -> "Part":
        """Example: 3/8."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", str(value))
        if match is None or int(match[1]) >= int(match[2]):
            wrong("part", value, "I/N with a number I from 0 to N-1")
        return Part(int(match[1]), int(match[2]))


class Carried(NamedTuple):
    """NAME[:TYPE] of a column to copy. type: a type of numpy; None takes that of the file."""

    name: str
    type: str | None = None

    @staticmethod
    def parse(value: str) -> "Carried":
        """Example: reward:float32."""
        name, _, kind = str(value).partition(":")
        types = ("int8", "uint8", "int16", "int32", "int64", "float32", "float64")
        if not name.isidentifier():
            wrong("carry", value, "NAME or NAME:TYPE, with the name of a column")
        if kind and kind not in types:
            wrong("carry", value, f"a type of {', '.join(types)}; {name!r} has {kind!r}")
        return Carried(name, kind or None)


class IdColumns(NamedTuple):
    """COLUMN[,LABELS[:KIND]]; of pairs ANY,LABELS,LABELS. kind: labels or mask, None as it is."""

    columns: tuple[str, ...]
    kind: str | None = None

    @staticmethod
    def parse(value: str, *, pairs: bool = False) -> "IdColumns":
        """Example: input_ids,loss_mask:mask."""
        names, _, kind = value.rpartition(":")
        if kind not in ("labels", "mask") or "," not in names:
            names, kind = value, ""
        columns = tuple(names.split(","))
        if len(columns) not in ((1, 3) if pairs else (1, 2)) or not all(columns):
            expected = "auto,A,B" if pairs else "COLUMN,LABELS"
            wrong("ids", value, f"{expected}:labels or :mask")
        return IdColumns(columns, kind or None)
