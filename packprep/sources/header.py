"""Columns of a file, found without reading its rows.

From the keys of the first JSON row, a CSV header or a schema.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packprep.sources.source import Source
from packprep.support.errors import InputError


def names_in(source: Source, path: Path | str | None) -> Sequence[str] | None:
    """Names of the columns of a file; None of a dataset, whose tables have them all."""
    if source.kind == "json":
        return _first_keys(source)
    if source.kind == "csv":
        return _csv_header(source)
    if source.kind == "text":
        return ["text"]
    if source.kind == "parquet":
        names: list[str] = pq.read_schema(path).names
        return names
    if source.kind == "arrow":
        from packprep.sources.formats.arrow_rows import column_names

        return column_names(str(path))
    return None


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


def _csv_header(source: Source) -> list[str]:
    from packprep.sources.formats.csv_rows import CsvReader

    with source.plain() as file:
        header = CsvReader(file, source.delimiter, 1 << 20, source.name).header()
        return [name.encode("utf-8", "replace").decode() for name in header]


def _first_keys(source: Source) -> list[str]:
    """Names in the first row of a JSON file that has any."""
    from packprep.sources.formats.jsonl import first_keys

    with source.plain() as file:
        names = first_keys(file, source.name)
    if names is None:
        raise InputError(
            f"{source.name} has no JSON object in its first rows; expected an object in each row"
        )
    return names


def json_types(source: Source, names: Sequence[str]) -> dict[str, pa.DataType]:
    from packprep.sources.formats.jsonl import first_types

    with source.plain() as file:
        types = first_types(file, names, source.name)
    if empty := [name for name in names if pa.types.is_null(types[name])]:
        there = empty
        with contextlib.suppress(InputError):  # of rows that are no JSON: reading them says so
            there = _first_keys(source)
        check_names(source, there, empty, ())
    return types
