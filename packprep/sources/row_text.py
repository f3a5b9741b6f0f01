"""Rows of a reader, checked, as the columns of reading.py.

Nothing is cast or guessed. A value that is not text, bytes that are not UTF-8 and a text that is
too large become the problem of the row, which then has no text.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from packprep.config.build_config import BuildConfig
from packprep.schemas.names import array
from packprep.sources.carried import RowProblems, RowShape, number_columns, read_numbers
from packprep.sources.formats.arrow_columns import group_text, one_array, sound, text_column
from packprep.support.errors import ConfigError
from packprep.support.problems import BadRow, Problem, reader_problems, too_large, with_problem

if TYPE_CHECKING:
    from packprep.chat.conversations import ConversationColumns


def columns_read(config: BuildConfig, chats: ConversationColumns | None = None) -> list[str]:
    """All columns of the input that a build reads."""
    texts = text_columns(config) if chats is None else chats.wanted
    return list(dict.fromkeys([*texts, *group_columns(config), *number_columns(config)]))


def group_columns(config: BuildConfig) -> list[str]:
    """Columns whose values say which rows are of one group."""
    names = (config.group_column, config.group_prefix)
    return list(dict.fromkeys(name for name in names if name is not None))


def text_columns(config: BuildConfig) -> list[str]:
    """Columns that make the text, in the order of the template.

    Empty where rows are token ids or conversations.
    """
    if config.input_ids_column is not None or config.chats:
        return []
    if config.pair_columns:
        return list(config.pair_columns)
    if config.text_template is None:
        return [config.text_column]
    try:
        fields = [
            name
            for _, name, _, _ in string.Formatter().parse(config.text_template)
            if name is not None
        ]
    except ValueError as error:
        raise ConfigError(
            f"text_template {config.text_template!r} does not parse: {error}"
        ) from None
    if not fields or "" in fields:
        raise ConfigError(
            f"text_template {config.text_template!r} names no column; write {{title}} for column "
            "title"
        )
    return list(dict.fromkeys(fields))


def as_rows(
    table: pa.Table,
    config: BuildConfig,
    shape: RowShape,
    chats: ConversationColumns | None = None,
    *,
    is_utf8: bool = False,
) -> pa.Table:
    """Columns of reading.py, of rows with the columns `columns_read(config, chats)`.

    is_utf8: True if the reader has checked that text is UTF-8.
    """
    for name in columns_read(config, chats):
        for chunk in table[name].chunks:
            sound(chunk)
    if chats is not None:
        rows = _conversations(table, config, shape, chats)
    else:
        names = text_columns(config)
        rows = (
            as_text(table, names, config, is_utf8=is_utf8)
            if names
            else pa.table({"problem": reader_problems(table)})
        )
    groups = {}
    for name in group_columns(config):
        groups[name], problem = group_text(table[name], name, one_array(rows["problem"]))
        rows = _with_problems(rows, problem)
    if config.group_column is not None:
        rows = rows.append_column("group", groups[config.group_column])
    if config.group_prefix is not None:
        rows = rows.append_column("prefix_group", _group_numbers(groups[config.group_prefix]))
    if not number_columns(config):
        return rows
    problems = RowProblems(rows["problem"])
    read = read_numbers(table, config, shape, problems)
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
        text = rows[name].combine_chunks()
        kept = pc.if_else(pc.is_valid(problem), pa.scalar(None, text.type), text)
        rows = rows.set_column(rows.schema.get_field_index(name), name, kept)
    return rows


def _conversations(
    table: pa.Table, config: BuildConfig, shape: RowShape, chats: ConversationColumns
) -> pa.Table:
    """Columns of rendered conversations, see `render_chats`."""
    from packprep.chat.masks import render_chats

    assert shape.finder is not None
    sides = [replace(chats, names=(*chats.names[:-2], side)) for side in config.pair_columns] or [
        chats
    ]
    rows, *others = (render_chats(table, side, shape.finder) for side in sides)
    problem = reader_problems(table)
    for side in (rows, *others):
        problem = pc.coalesce(problem, side["problem"].combine_chunks())
        problem = _without_large(side["text"].combine_chunks(), problem, config)
    for second in others:
        for name, other in {
            "text": "second",
            "trained": "second_trained",
            "specials": "second_specials",
            "left_out": "second_left_out",
        }.items():
            rows = rows.append_column(other, second[name])
    return _with_problems(rows, problem)


def as_text(
    table: pa.Table, names: Sequence[str], config: BuildConfig, *, is_utf8: bool = False
) -> pa.Table:
    """`text` and `problem` of rows with the columns `names`, and `second` of pairs.

    is_utf8: see `as_rows`.
    """
    problem = reader_problems(table)
    columns = {}
    for name in names:
        columns[name], problem = text_column(table[name], name, problem, is_utf8)
    if config.pair_columns:
        text = columns[names[0]]
        second = pc.if_else(
            pc.is_valid(text), columns[names[1]], pa.scalar(None, columns[names[1]].type)
        )
        text = pc.if_else(pc.is_valid(second), text, pa.scalar(None, text.type))
    elif config.text_template is None:
        text = columns[names[0]]
    else:
        parts: list[Any] = []
        for literal, field, _, _ in string.Formatter().parse(config.text_template):
            parts += [literal] if literal else []
            parts += [columns[field]] if field is not None else []
        text = pc.binary_join_element_wise(*parts, "", null_handling="emit_null")
    for side in (text, second) if config.pair_columns else (text,):
        problem = _without_large(side, problem, config)
    missing = Problem(BadRow.NULL, f"the row has no {' and '.join(map(repr, names))}")
    problem = with_problem(problem, pc.is_null(text), missing)
    if problem.null_count < len(table):
        text = pc.if_else(pc.is_valid(problem), pa.scalar(None, text.type), text)
    arrays = {"text": text, "problem": problem}
    if config.pair_columns:
        arrays["second"] = pc.if_else(pc.is_valid(problem), pa.scalar(None, second.type), second)
    return pa.table(arrays)


def _without_large(
    text: pa.Array[Any], problem: pa.Array[Any], config: BuildConfig
) -> pa.Array[Any]:
    """The problems, with one for each text that is larger than a row may be."""
    sizes = pc.binary_length(cast("pa.LargeStringArray", text))
    large: pa.Array[Any] = pc.greater(sizes, pa.scalar(config.max_row_size))
    return with_problem(problem, large.fill_null(False), too_large("the text", config.max_row_size))
