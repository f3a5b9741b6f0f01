"""A row makes documents: what text, ids and other kinds of rows differ in.

`columns_of` says which columns are read, `documents_of` what they become.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..config.checks import kind_of_rows
from ..config.grammar import IdColumns
from ..config.options import BuildConfig
from ..schemas.columns import NO_LOSS, WHOLE
from ..schemas.views import ListView, list_array, numpy_values
from ..support.errors import ConfigError
from .types import Batch, Chat, Ids, Pieces, Render, Rows, Source, Text, sides_of
from .values import GROUP, TEXT, Columns, Kind, Problem, Problems, Raw, numbers

_LABELS = {"labels": numbers("int32", "bad_labels"), "mask": numbers("int8", "bad_mask", (0, 1))}


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
    kind = kind_of_rows(config)
    if "ids" in own or kind == "ids":
        asked = IdColumns.parse(str(own.get("ids") or config.ids or "input_ids"))
        column, labels = (*asked.columns, None)[:2]
        return Ids(str(column), labels, asked.kind, split_at, vocab_size)
    if kind == "text":
        template, by = str(own.get("text") or config.text or "text"), own.get("sample_by")
        template_parts(template)
        if by not in (None, "document", "paragraph", "line"):
            raise ConfigError(f"sample_by is {by!r}, expected document, paragraph or line")
        return Text(template, by or "document", config.truncate_at)
    if kind == "pairs":
        from .rendered import pairs_of

        return pairs_of(config, vocab_size)
    if kind == "pieces":
        return Pieces(str(config.pieces))
    return Chat(tuple(str(config.messages).split(",")))


def columns_of(source: Source, group: str | None) -> dict[str, Kind]:
    """Columns that the rows of a source need."""
    columns: dict[str, Kind] = {}
    for rows in sides_of(source.rows):
        if isinstance(rows, Text):
            parts = template_parts(rows.template)
            columns |= {name: TEXT for _, name in parts if name is not None}
        elif isinstance(rows, Ids):
            columns[rows.column] = numbers("int32", "bad_ids", (0, rows.vocab_size - 1))
            if rows.labels is not None:
                columns[rows.labels] = _LABELS[rows.kind or "labels"]
        else:
            from .rendered import nested_columns

            columns |= nested_columns(rows)
    columns |= source.carried
    if group is not None:
        columns.setdefault(group, GROUP)
    return columns


def documents_of(
    raw: Raw, source: Source, group: str | None, render: Render | None = None
) -> Batch:
    """Documents of rows; one with a problem has documents of nothing. render: of chats, pieces."""
    problems, columns = dict(raw.problems), columns_of(source, group)
    cut, turns, count = (0, 0), Counter[str](), len(raw.table)
    unread = [n for n in raw.names if n not in columns or columns[n].reason == "named"]
    sides, left_out = list[dict[str, Any]](), Counter[str]()
    lists = [name for name, kind in source.carried.items() if kind.is_list]
    for rows in sides_of(source.rows):
        if isinstance(rows, Ids):
            _check_lists(raw.table, rows, lists, columns, problems)
    every = np.arange(count, dtype=np.int32)
    table = _without(raw.table, every, problems)
    for rows in sides_of(source.rows):
        made: dict[str, Any] = {"row": every, "part": np.full(count, WHOLE, np.int32)}
        if isinstance(rows, Text):
            made["text"] = _text(table, rows)
            if rows.truncate_at is not None:
                made["text"], cut = _cut_text(made["text"], rows.truncate_at)
        elif isinstance(rows, Ids):
            names = {"ids": rows.column, str(rows.kind): rows.labels}
            names |= {name: name for name in lists}
            made |= {to: list_array(_flat(table[of])) for to, of in names.items() if of}
        else:
            from .rendered import rendered

            assert render is not None
            made, facts = rendered(table, rows, render, problems)
            turns += facts.turns
            if isinstance(rows, Chat):
                left_out.update(facts.left_out)
                unread += [f"{key} of messages" for key in facts.unread]
        sides.append(made)
    if len(sides) > 1:
        from .rendered import joined

        made = joined(sides)
    row, part = made.pop("row"), made.pop("part")
    if "pieces" in made:  # of the other side too
        made["pieces"] = _without(made["pieces"], row, problems)
    for name in source.carried.keys() - {*lists}:
        made[name] = numpy_values(table[name].combine_chunks().fill_null(0))[row]
    if group is not None:
        made["group"] = _hashes(table[group])[row]
    if isinstance(source.rows, Ids) and source.rows.split_at is not None:
        row, part, made = _split(made, *source.rows.split_at)
        turns = Counter(documents=len(row), split_rows=len(np.unique(row[part != WHOLE])))
    return Batch(
        source=source.number,
        rows=count,
        documents=pa.table({"row": row, "part": part, **made}),
        problems=problems,
        cut=cut,
        unread=tuple(unread),
        turns=turns,
        left_out=left_out,
    )


def _without(values: Any, rows: NDArray[Any], problems: Problems) -> Any:
    """Values with nulls in rows that have a problem. rows: of the values."""
    if not problems:
        return values
    return values.take(pa.array(np.arange(len(rows)), mask=np.isin(rows, [*problems])))


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


def _flat(column: Any) -> ListView:
    """Lists of a column; none in a row without a list."""
    array = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.append(0, np.cumsum(numpy_values(lengths))).astype(np.int32)
    return ListView(offsets, numpy_values(array.flatten()))


def _check_lists(
    table: pa.Table, rows: Ids, carried: Sequence[str], columns: Columns, problems: Problems
) -> None:
    """Add a problem to rows whose lists do not fit their ids."""
    every, wanted = np.arange(len(table)), pc.list_value_length(table[rows.column])
    for name in [rows.labels, *carried] if rows.labels else carried:
        have = pc.list_value_length(table[name])
        for row in np.flatnonzero(pc.fill_null(pc.not_equal(have, wanted), False)).tolist():
            what = f"{name!r} has {have[row]} values, expected {wanted[row]} as {rows.column!r}"
            problems.setdefault(row, Problem(columns[name].reason, what))
    if rows.kind == "labels":
        sound = _without(table, every, problems)
        (offsets, ids), (_, labels) = _flat(sound[rows.column]), _flat(sound[rows.labels])
        places = np.flatnonzero((labels != NO_LOSS) & (labels != ids))
        of = np.searchsorted(offsets, places, side="right") - 1
        for row, first in zip(*np.unique(of, return_index=True), strict=True):
            place = places[first]
            found = f"{rows.labels!r} has {labels[place]} at {place - offsets[row]}"
            what = f"{found}, expected {NO_LOSS} or its token, {ids[place]}"
            problems.setdefault(int(row), Problem("bad_labels", what))


def _hashes(column: Any) -> Any:
    """A hash of the text of each row's group; 0 without one."""
    texts = [None if value is None else GROUP.read(value) for value in column.to_pylist()]
    hashes = [0 if text is None else xxhash.xxh3_64_intdigest(text) >> 1 for text in texts]
    return np.array(hashes, np.int64)


def _split(made: Mapping[str, Any], end: str, token: int) -> tuple[Any, Any, dict[str, Any]]:
    """Row, part and values of the documents of rows that another tool packed.

    end: eos, which ends a document, or bos, which begins one; token: its id.
    """
    lists = {name: values for name, values in made.items() if not isinstance(values, np.ndarray)}
    offsets = lists["ids"].offsets.to_numpy()
    places = np.flatnonzero(lists["ids"].values.to_numpy() == token) + (end == "eos")
    places = np.setdiff1d(places, offsets)
    inside = np.bincount(np.searchsorted(offsets, places) - 1, minlength=len(offsets) - 1)
    row = np.repeat(np.arange(len(inside)), inside + 1)
    part = np.arange(len(row)) - np.searchsorted(row, row)
    part = np.where(inside[row] == 0, WHOLE, part)
    bounds: Any = np.sort(np.concatenate([offsets, places])).astype(np.int32)
    divided = {name: pa.ListArray.from_arrays(bounds, each.values) for name, each in lists.items()}
    others = {name: values[row] for name, values in made.items() if name not in lists}
    return row.astype(np.int32), part.astype(np.int32), divided | others
