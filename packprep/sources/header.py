"""Columns of a source, without reading all its rows."""

import contextlib
from collections.abc import Sequence

import pyarrow as pa

from packprep.sources.source import Source
from packprep.support.errors import InputError


def check_names(
    source: Source, names_found: Sequence[str], wanted: Sequence[str], texts: Sequence[str]
) -> None:
    """Raise InputError unless each wanted column exists once.

    names_found: of all columns. texts: columns that an option for text chooses.
    """
    for name in wanted:
        if names_found.count(name) != 1:
            options = (
                "--text-column or --text-template" if name in texts else "the option that names it"
            )
            if name in texts and {"messages", "conversations"} & set(names_found):
                options += ", or --messages-column auto for conversations"
            problem = "has no column" if name not in names_found else "has more than one column"
            listed = ", ".join(names_found) or "none"
            raise InputError(
                f"{source.name} {problem} {name!r}; it has {listed}: choose with {options}"
            )


def number_types(source: Source, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Arrow types of columns of numbers, of a format that must know them before it reads."""
    assert source.format.first_types is not None
    types = source.format.first_types(source, names)
    if empty := [name for name in names if pa.types.is_null(types[name])]:
        names_found: Sequence[str] = empty
        with contextlib.suppress(
            InputError
        ):  # for rows that cannot be parsed; reading them raises the error
            names_found = source.format.columns(source, source.path) or empty
        check_names(source, names_found, empty, ())
    return types
