"""Columns of a source, found without reading its rows, as far as its format knows them."""

import contextlib
from collections.abc import Sequence

import pyarrow as pa

from packprep.sources.source import Source
from packprep.support.errors import InputError


def check_names(
    source: Source, there: Sequence[str], wanted: Sequence[str], texts: Sequence[str]
) -> None:
    """InputError unless each wanted column is there once.

    texts: those that an option for text chooses.
    """
    for name in wanted:
        if there.count(name) != 1:
            options = (
                "--text-column or --text-template" if name in texts else "the option that names it"
            )
            if name in texts and {"messages", "conversations"} & set(there):
                options += ", or --messages-column auto for conversations"
            found = "has no column" if name not in there else "has more than one column"
            listed = ", ".join(there) or "none"
            raise InputError(
                f"{source.name} {found} {name!r}; it has {listed}: choose with {options}"
            )


def number_types(source: Source, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Arrow types of columns of numbers, of a format that must know them before it reads."""
    assert source.format.first_types is not None
    types = source.format.first_types(source, names)
    if empty := [name for name in names if pa.types.is_null(types[name])]:
        there: Sequence[str] = empty
        with contextlib.suppress(InputError):  # of rows that cannot be parsed: reading them says so
            there = source.format.columns(source, source.path) or empty
        check_names(source, there, empty, ())
    return types
