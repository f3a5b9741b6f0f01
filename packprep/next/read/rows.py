"""A row makes documents: what rows of text become, and what all kinds of rows share.

`columns_of` says which columns are read, `documents_of` what they become.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..config.checks import kind_of_rows
from ..config.options import BuildConfig
from ..schemas.columns import WHOLE
from ..schemas.views import numpy_values
from ..support.errors import ConfigError
from .types import Batch, Ids, Render, Rows, Source, Text, sides_of
from .values import GROUP, TEXT, Kind, Problems, Raw


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """Literal texts of a template, and the column after each; a name alone is a column."""
    if "{" not in template:
        return [("", template)]
    try:
        parts = [(text, name) for text, name, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"--text {template!r} does not parse: {error}") from None
    names = [name for _, name in parts if name is not None]
    if not names or "" in names:
        raise ConfigError(f"--text {template!r} names no column; write {{title}} for column title")
    return parts


def rows_of(
    config: BuildConfig, own: Mapping[str, Any], vocab_size: int, split_at: tuple[str, int] | None
) -> Rows:
    """How the rows of a source are read. own: options that the source has of its own."""
    if "ids" in own or kind_of_rows(config) != "text":
        from .other_rows import other_rows

        return other_rows(config, own.get("ids"), vocab_size, split_at)
    template, by = str(own.get("text") or config.text or "text"), own.get("sample_by")
    template_parts(template)
    if by not in (None, "document", "paragraph", "line"):
        raise ConfigError(f"sample_by is {by!r}, expected document, paragraph or line")
    return Text(template, by or "document", config.truncate_at)


def columns_of(source: Source, group: str | None) -> dict[str, Kind]:
    """Columns that the rows of a source need."""
    columns: dict[str, Kind] = {}
    for rows in sides_of(source.rows):
        if isinstance(rows, Text):
            parts = template_parts(rows.template)
            columns |= {name: TEXT for _, name in parts if name is not None}
        else:
            from .other_rows import other_columns

            columns |= other_columns(rows)
    columns |= source.carried
    if group is not None:
        columns.setdefault(group, GROUP)
    return columns


def documents_of(
    raw: Raw, source: Source, group: str | None, render: Render | None = None
) -> Batch:
    """Documents of rows; one with a problem has documents of nothing. render: of chats, pieces."""
    rows, problems, columns = source.rows, dict(raw.problems), columns_of(source, group)
    unread = [n for n in raw.names if n not in columns or columns[n].reason == "named"]
    if isinstance(rows, Text):
        table = without(raw.table, np.arange(len(raw.table)), problems)
        made, facts = of_text(table, rows)
    else:
        from .other_rows import other_documents

        table, made, facts = other_documents(raw.table, source, columns, problems, render)
    for name, kind in source.carried.items():
        if not kind.is_list:
            values = table[name].combine_chunks().fill_null(0)
            made[name] = numpy_values(values)[made["row"]]
    if group is not None:
        made["group"] = _hashes(table[group])[made["row"]]
    if isinstance(rows, Ids) and rows.split_at is not None:
        from .other_rows import split

        made, facts["turns"] = split(made, *rows.split_at)
    unread += facts.pop("unread", ())
    documents = pa.table({"row": made.pop("row"), "part": made.pop("part"), **made})
    return Batch(
        source=source.number,
        rows=len(table),
        documents=documents,
        problems=problems,
        unread=tuple(unread),
        **facts,
    )


def whole(count: int) -> dict[str, Any]:
    """Columns of documents that are whole rows."""
    return {"row": np.arange(count, dtype=np.int32), "part": np.full(count, WHOLE, np.int32)}


def without(values: Any, rows: NDArray[Any], problems: Problems) -> Any:
    """Values with nulls in rows that have a problem. rows: of the values."""
    if not problems:
        return values
    return values.take(pa.array(np.arange(len(rows)), mask=np.isin(rows, [*problems])))


def of_text(table: pa.Table, rows: Text) -> tuple[dict[str, Any], dict[str, Any]]:
    """Documents of rows of text, and fields of their `Batch`."""
    text, facts = _text(table, rows), dict[str, Any]()
    if rows.truncate_at is not None:
        text, facts["cut"] = _cut_text(text, rows.truncate_at)
    return {**whole(len(table)), "text": text}, facts


def _text(table: pa.Table, rows: Text) -> Any:
    """Text of each row, large_string; null where a row has none."""
    pieces: list[Any] = []
    for literal, name in template_parts(rows.template):
        pieces += [pa.scalar(literal, pa.large_string())] if literal else []
        pieces += [table[name].combine_chunks()] if name is not None else []
    if len(pieces) == 1:
        return pieces[0]
    nothing = pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(*pieces, nothing, null_handling="emit_null")


def _cut_text(text: Any, pattern: str) -> tuple[Any, tuple[int, int]]:
    """Text up to the first match; number of documents and characters that were cut."""
    search, texts = re.compile(pattern).search, text.to_pylist()
    matches = [each and search(each) for each in texts]
    ends = [match.start() if match else None for match in matches]
    both = list(zip(texts, ends, strict=True))
    cut = [len(each) - end for each, end in both if end is not None]
    return pa.array([each and each[:end] for each, end in both], text.type), (len(cut), sum(cut))


def _hashes(column: Any) -> Any:
    """A hash of the text of each row's group; 0 without one."""
    texts = [None if value is None else GROUP.read(value) for value in column.to_pylist()]
    hashes = [0 if text is None else xxhash.xxh3_64_intdigest(text.encode()) >> 1 for text in texts]
    return np.array(hashes, np.int64)
