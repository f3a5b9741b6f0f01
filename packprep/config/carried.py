"""Rules for `carry`: names and types of columns that a build copies into the shards."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from packprep.config.grammar.rules import Rule
from packprep.config.options import Options
from packprep.schemas.columns import COLUMN_NAME, HF_NAMES, NUMBER_TYPES, STANDARD_COLUMNS
from packprep.support.errors import nearest

CARRY_TYPES = tuple(name for name, number in NUMBER_TYPES.items() if number.carried)
# Columns that token files have beside those of shards.
_OF_TOKEN_FILES = (
    "turn_rows",
    "turns",
    "text",
    "ids",
    "group",
    "prefix_group",
    "problem",
    "trained",
    "specials",
    "left_out",
    "parts",
    "second",
    "pair_split",
)
RESERVED = frozenset({*STANDARD_COLUMNS, *_OF_TOKEN_FILES})


def _carried(
    build: Options, wrong: Callable[[str, str | None], object]
) -> Iterator[Mapping[str, str]]:
    """Names and types of the columns to carry that are wrong; the type is None without a colon."""
    for entry in build.carry:
        name, colon, number = entry.partition(":")
        if wrong(name, number if colon else None):
            yield {"name": name, "type": number, "near": nearest(number, CARRY_TYPES)}


CARRIED: tuple[Rule[Options], ...] = (
    Rule(
        "--carry {name!r} has the type {type!r}{near}",
        lambda build: _carried(build, lambda _, type_: type_ not in (None, *CARRY_TYPES)),
    ),
    Rule(
        "--carry {name!r} cannot be the name of a column in a shard; rename the column, with "
        "letters, digits and _ only",
        lambda build: _carried(build, lambda name, _: not COLUMN_NAME.fullmatch(name)),
    ),
    Rule(
        "--carry {name!r} is a column name of --names hf; rename the column, or leave out --names",
        lambda build: _carried(
            build, lambda name, _: build.names == "hf" and name in HF_NAMES.values()
        ),
    ),
    Rule(
        "--carry 'labels' is a column name that packprep uses; give --labels-column",
        lambda build: _carried(build, lambda name, _: name == "labels"),
    ),
    Rule(
        "--carry {name!r} is a column name that packprep uses; rename the column",
        lambda build: _carried(build, lambda name, _: name in RESERVED),
    ),
    Rule(
        "--carry names {name!r} twice; give it once",
        lambda build: (
            {"name": name}
            for name, times in Counter(each.partition(":")[0] for each in build.carry).items()
            if times > 1
        ),
    ),
)
