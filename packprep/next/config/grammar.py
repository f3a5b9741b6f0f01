"""Values of options that are more than a word: amounts, strategies, orders and the like.

Each `parse` takes what the user wrote, and raises ConfigError that names the option.
"""

import re
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

from ..support.errors import ConfigError, brief, nearest

STRATEGIES = (
    "best_fit",
    "first_fit",
    "knapsack",
    "optimal",
    "stream",
    "greedy",
    "first_fit_input",
    "wrapped",
    "balanced",
)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]{0,20}(?:\.[0-9]{1,20})?)\s*([kmbgt]i?|)(b?)\s*", re.I)
_PERCENT = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*(%?)\s*")


def wrong(option: str, value: Any, expected: str) -> NoReturn:
    """Raise ConfigError for a value of an option."""
    raise ConfigError(f"{flag(option)} is {brief(value)}, expected {expected}")


def flag(option: str) -> str:
    """The option as the command line spells it."""
    return "-o" if option == "output" else f"--{option.replace('_', '-')}"


def count_of(value: Any) -> int | None:
    """The whole number of "2k" (2,000), "2Ki" (2,048), "1.5B" or 8; None for others."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[3]:
        return None
    amount = Fraction(match[1].replace("_", "")) * _UNITS.get(match[2].lower(), 0)
    return int(amount) if amount.denominator == 1 and match[2].lower() in _UNITS else None


def size_of(value: Any) -> int | None:
    """Bytes of "64MB" (64,000,000), "1.5GiB" or 4096; None for others."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS or match[2].lower() == "b":
        return None
    return int(Fraction(match[1].replace("_", "")) * _UNITS[match[2].lower()])


def share_of(value: Any) -> Fraction | None:
    """One hundredth of "1%", "0.01" and 0.01, exactly; None for others."""
    match = _PERCENT.fullmatch(str(value)) if isinstance(value, (str, int, float)) else None
    if match is None or isinstance(value, bool):
        return None
    return Fraction(match[1]) / (100 if match[2] else 1)


class Strategy(NamedTuple):
    """NAME[:N]. packs: of balanced; None for as few as possible."""

    name: str
    packs: int | None = None

    @staticmethod
    def parse(value: str) -> "Strategy":
        """Example: balanced:8."""
        name, colon, number = str(value).partition(":")
        if name not in STRATEGIES:
            raise ConfigError(f"--strategy is {brief(value)}{nearest(name, STRATEGIES)}")
        packs = count_of(number)
        if colon and (name != "balanced" or not packs):
            wrong("strategy", value, "balanced:N with N of at least 1")
        return Strategy(name, packs)


class Overflow(NamedTuple):
    """NAME[:HOW]. how: left or balanced, of truncate; else the end is cut off."""

    name: str
    how: str = ""

    @staticmethod
    def parse(value: str) -> "Overflow":
        """Example: truncate:left."""
        name, _, how = str(value).partition(":")
        names = ("split", "truncate", "drop", "error")
        if name not in names:
            raise ConfigError(f"--overflow is {brief(value)}{nearest(name, names)}")
        if how not in ("", "left", "balanced") or (how and name != "truncate"):
            wrong("overflow", value, "truncate:left or truncate:balanced")
        return Overflow(name, how)


class Order(NamedTuple):
    """NAME[:RANKS[:A,B]]. cost of a segment of n tokens: A * n + B * n**2."""

    name: str
    ranks: int = 8
    cost: tuple[float, float] = (24576.0, 1.0)

    @staticmethod
    def parse(value: str) -> "Order":
        """Example: balanced:16:24576,1."""
        name, *parts = str(value).split(":")
        names = ("shuffle", "input", "length", "balanced")
        if name not in names:
            raise ConfigError(f"--order is {brief(value)}{nearest(name, names)}")
        ranks, costs = count_of(parts[0]) if parts else 8, parts[1:] or ["24576,1"]
        numbers = re.fullmatch(r"([0-9.]{1,30}),([0-9.]{1,30})", costs[0])
        if not ranks or not numbers or len(costs) > 1:
            wrong("order", value, "a name, or balanced:RANKS:A,B such as balanced:8:24576,1")
        try:
            cost = (float(numbers[1]), float(numbers[2]))
        except ValueError:
            wrong("order", value, "two numbers of at least 0 such as 24576,1")
        return Order(name, ranks, cost)


class Multiple(NamedTuple):
    """N[:fill]. fill: packs are added instead of left out."""

    packs: int = 1
    fill: bool = False

    @staticmethod
    def parse(value: int | str) -> "Multiple":
        """Example: 64:fill."""
        number, _, how = str(value).partition(":")
        packs = count_of(number)
        if not packs or packs < 1 or how not in ("", "fill"):
            wrong("multiple", value, "N or N:fill with N of at least 1")
        return Multiple(packs, how == "fill")


class Holdout(NamedTuple):
    """SHARE[:SEED] of the rows for a validation split."""

    share: float = 0.0
    seed: int = 0

    @staticmethod
    def parse(value: str | float | None) -> "Holdout":
        """Example: 1%:7."""
        share, _, seed = str(value or 0).partition(":")
        amount, number = share_of(share), count_of(seed or "0")
        if amount is None or not 0 <= amount < 1 or number is None:
            wrong("holdout", value, "a share of at least 0 and less than 1, such as 1% or 1%:7")
        return Holdout(float(amount), number)


class Executor(NamedTuple):
    """local, or ray[:ADDRESS]."""

    name: str
    address: str = ""

    @staticmethod
    def parse(value: str) -> "Executor":
        """Example: ray:auto."""
        name, _, address = str(value).partition(":")
        if name not in ("local", "ray") or (address and name == "local"):
            raise ConfigError(f"--executor is {brief(value)}{nearest(name, ('local', 'ray'))}")
        return Executor(name, address)


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
