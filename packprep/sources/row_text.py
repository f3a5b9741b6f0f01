"""Rows of a reader, checked, as the columns of reading.py.

Nothing is cast or guessed. A value that is not text, bytes that are not UTF-8 and a text that is
too large become the problem of the row, which then has no text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from packprep.config.grammar.known_columns import UNREAD
from packprep.schemas.names import array
from packprep.sources.carried import RowProblems, read_numbers
from packprep.sources.formats.arrow_columns import group_text, one_array, sound, text_column
from packprep.sources.formats.row_plan import Chat, Pieced, RowPlan, Text
from packprep.support.problems import BadRow, Problem, reader_problems, too_large, with_problem

SECOND = {"text": "second"} | {
    name: f"second_{name}" for name in ("trained", "specials", "left_out", "parts", "ids", "labels")
}
"""Columns of the second side of pairs, by those of the first."""


def as_rows(table: pa.Table, plan: RowPlan, *, is_utf8: bool = False) -> pa.Table:
    """Columns of reading.py, of rows with the columns of the plan.

    is_utf8: True if the reader has checked that text is UTF-8.
    """
    for name in plan.columns:
        for chunk in table[name].chunks:
            sound(chunk)
    if isinstance(plan.rows, Text):
        rows = as_text(table, plan.rows, plan.max_row_size, is_utf8=is_utf8)
    elif isinstance(plan.rows, (Chat, Pieced)):
        rows = _rendered(table, _sides(table, plan.rows), plan.max_row_size)
    else:
        rows = pa.table({"problem": reader_problems(table)})
    groups = {}
    for name in plan.groups:
        groups[name], problem = group_text(table[name], name, one_array(rows["problem"]))
        rows = _with_problems(rows, problem)
    if plan.group_column is not None:
        group = groups[plan.group_column].cast(pa.large_string())
        rows = rows.append_column("group", group)
    if plan.group_prefix is not None:
        rows = rows.append_column("prefix_group", _group_numbers(groups[plan.group_prefix]))
    if not plan.numbers:
        return rows
    problems = RowProblems(rows["problem"])
    read = read_numbers(table, plan, problems)
    rows = _with_problems(rows, problems.array)
    for name, values in read.items():
        rows = rows.append_column(name, values)
    return rows


def _group_numbers(groups: pa.Array[Any]) -> pa.Array[Any]:
    """The hash of each group, int64, not negative; 0 for null.

    Rows of two groups with one hash would share only tokens that are equal, which is sound.
    """
    encoded = groups.dictionary_encode(null_encoding="encode")
    hashes = [
        0 if value is None else xxhash.xxh3_64_intdigest(value.encode()) >> 1
        for value in encoded.dictionary.to_pylist()
    ]
    return array(np.array(hashes, np.int64)[encoded.indices.to_numpy()])


def _with_problems(rows: pa.Table, problem: pa.Array[Any]) -> pa.Table:
    """Set the problems of rows; rows with a problem lose their text."""
    rows = rows.set_column(rows.schema.get_field_index("problem"), "problem", problem)
    for name in {"text", "second"} & set(rows.column_names):
        text = _only(one_array(rows[name]), pc.is_null(problem))
        rows = rows.set_column(rows.schema.get_field_index(name), name, text)
    return rows


def _sides(table: pa.Table, rows: Chat | Pieced) -> list[pa.Table]:
    """Each side of conversations or of pieces as text, see `render_chats`."""
    from packprep.chat.masks import render_chats
    from packprep.chat.pieces.parts import render_pieces

    if isinstance(rows, Pieced):
        size, joined = rows.vocab_size, rows.joined
        return [render_pieces(table, side, size, joined=joined) for side in rows.sides]
    assert rows.finder is not None
    return [
        render_chats(table, rows.of_side(side), rows.finder, again=number > 0)
        for number, side in enumerate(rows.sides)
    ]


def _rendered(table: pa.Table, sides: Sequence[pa.Table], limit: int) -> pa.Table:
    """Columns of rendered sides, with their problems and those of the reader."""
    rows, *others = sides
    problem = reader_problems(table)
    for side in sides:
        problem = pc.coalesce(problem, side["problem"].combine_chunks())
        problem = _without_large(side["text"].combine_chunks(), problem, limit)
    for second in others:
        for name in ("text", "trained", "specials", "left_out", "parts"):
            rows = rows.append_column(SECOND[name], second[name])
        if UNREAD in second.column_names:
            both = zip(rows[UNREAD].to_pylist(), second[UNREAD].to_pylist(), strict=True)
            joined = [[*(first or ()), *(last or ())] for first, last in both]
            unread = pa.array(joined, pa.list_(pa.string()))
            rows = rows.set_column(rows.schema.get_field_index(UNREAD), UNREAD, unread)
    return _with_problems(rows, problem)


def as_text(table: pa.Table, rows: Text, limit: int, *, is_utf8: bool = False) -> pa.Table:
    """`text` and `problem` of rows with the columns of a plan, and `second` of pairs.

    limit: bytes of a text at most. is_utf8: see `as_rows`.
    """
    problem = reader_problems(table)
    columns = {}
    for name in rows.columns:
        columns[name], problem = text_column(table[name], name, problem, is_utf8)
    sides = [_joined(parts, columns).cast(pa.large_string()) for parts in rows.sides]
    usable = functools.reduce(pc.and_, map(pc.is_valid, sides))
    for side in sides:
        side = _only(side, usable) if len(sides) > 1 else side
        problem = _without_large(side, problem, limit)
    missing = f"the row has no {' and '.join(map(repr, rows.columns))}"
    problem = with_problem(problem, pc.invert(usable), Problem(BadRow.NULL, missing))
    if problem.null_count < len(table):
        sides = [_only(side, pc.is_null(problem)) for side in sides]
    names = ("text", "problem", "second")
    return pa.table(dict(zip(names, [sides[0], problem, *sides[1:]], strict=False)))


def _joined(
    parts: Sequence[tuple[str, str | None]], columns: Mapping[str, pa.Array[Any]]
) -> pa.Array[Any]:
    """Texts of the parts, see `Text`; null if one of their columns is."""
    if len(parts) == 1 and (name := parts[0][1]) is not None and not parts[0][0]:
        return columns[name]
    pieces: list[Any] = []
    for literal, name in parts:
        pieces += [literal] if literal else []
        pieces += [columns[name]] if name is not None else []
    joined: pa.Array[Any] = pc.binary_join_element_wise(*pieces, "", null_handling="emit_null")
    return joined


def _only(text: pa.Array[Any], kept: pa.Array[Any]) -> pa.Array[Any]:
    """The text, null in other rows than the kept ones."""
    texts: pa.Array[Any] = pc.if_else(kept, text, pa.scalar(None, text.type))
    return texts


def _without_large(text: pa.Array[Any], problem: pa.Array[Any], limit: int) -> pa.Array[Any]:
    """The problems, with one for each text that is larger than a row may be."""
    sizes = pc.binary_length(cast("pa.LargeStringArray", text))
    large: pa.Array[Any] = pc.greater(sizes, pa.scalar(limit))
    return with_problem(problem, large.fill_null(False), too_large("the text", limit))
