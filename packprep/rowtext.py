"""What a reader gives, checked and in the columns of reading.py: text, conversations rendered, numbers beside them.

Nothing is cast or guessed: a value that is no text, bytes that are no UTF-8, a text larger than a row may be become the
row's problem, and the row has no text.
"""

import string
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from packprep.carried import RowProblems, RowShape, number_columns, read_numbers
from packprep.config import BuildConfig
from packprep.errors import ConfigError

if TYPE_CHECKING:
    from packprep.conversations import ConversationColumns


def columns_read(config: BuildConfig, chats: "ConversationColumns | None" = None) -> list[str]:
    """All columns of the input that a build looks at."""
    group = [config.group_column] if config.group_column else []
    texts = text_columns(config) if chats is None else chats.wanted
    return list(dict.fromkeys([*texts, *group, *number_columns(config)]))


def text_columns(config: BuildConfig) -> list[str]:
    """The columns that make the text, in the order of the template; none where rows are token ids or conversations."""
    if config.input_ids_column is not None or config.chats:
        return []
    if config.pair_columns:
        return list(config.pair_columns)
    if config.text_template is None:
        return [config.text_column]
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(config.text_template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"text_template {config.text_template!r} does not parse: {error}") from None
    if not fields or "" in fields:
        raise ConfigError(f"text_template {config.text_template!r} names no column; write {{title}} for column title")
    return list(dict.fromkeys(fields))


def as_rows(
    table: pa.Table,
    config: BuildConfig,
    shape: RowShape,
    chats: "ConversationColumns | None" = None,
    *,
    is_utf8: bool = False,
) -> pa.Table:
    """The columns above of a table of rows with the columns `columns_read(config, chats)`.

    is_utf8: whether their reader has seen to it that text is UTF-8.
    """
    for name in columns_read(config, chats):
        for chunk in table[name].chunks:
            sound(chunk)
    if chats is not None:
        rows = _conversations(table, config, shape, chats)
    else:
        names = text_columns(config)
        rows = as_text(table, names, config, is_utf8=is_utf8) if names else _without_text(table)
    if config.group_column is not None:
        group, problem = group_text(table[config.group_column], config.group_column, one_array(rows["problem"]))
        rows = _with_problems(rows, problem).append_column("group", group)
    if not number_columns(config):
        return rows
    problems = RowProblems(rows["problem"])
    read = read_numbers(table, config, shape, problems)
    rows = _with_problems(rows, problems.array)
    for name, values in read.items():
        rows = rows.append_column(name, values)
    return rows


def _with_problems(rows: pa.Table, problem: pa.Array) -> pa.Table:
    """The rows with these problems, without the text of those that have one."""
    rows = rows.set_column(rows.schema.get_field_index("problem"), "problem", problem)
    for name in {"text", "second"} & set(rows.column_names):
        text = rows[name].combine_chunks()
        kept = pc.if_else(pc.is_valid(problem), pa.scalar(None, text.type), text)
        rows = rows.set_column(rows.schema.get_field_index(name), name, kept)
    return rows


def _conversations(table: pa.Table, config: BuildConfig, shape: RowShape, chats: "ConversationColumns") -> pa.Table:
    """`text`, `trained` and `specials` of rendered conversations, `problem`, and perhaps `group`."""
    from packprep.masks import render_chats

    assert shape.finder is not None
    sides = [replace(chats, names=(*chats.names[:-2], side)) for side in config.pair_columns] or [chats]
    rows, *others = (render_chats(table, side, shape.finder) for side in sides)
    problem = table["problem"].combine_chunks() if "problem" in table.column_names else rows["problem"].combine_chunks()
    for side in (rows, *others):
        problem = pc.coalesce(problem, side["problem"].combine_chunks())
        problem = _without_large(side["text"].combine_chunks(), problem, config)
    for second in others:
        for name, other in {"text": "second", "trained": "second_trained", "specials": "second_specials"}.items():
            rows = rows.append_column(other, second[name])
    return _with_problems(rows, problem)


def _without_text(table: pa.Table) -> pa.Table:
    """`problem` alone."""
    found = table["problem"] if "problem" in table.column_names else pa.nulls(len(table), pa.string())
    return pa.table({"problem": found})


def group_text(column: pa.ChunkedArray, name: str, problem: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The groups of rows as text, and `problem` with what was wrong filled in.

    A number is its digits and a boolean the word that JSON has for it, so that groups are the same in every format;
    a whole float is the integer. Example: [1, 2] and [1.0, 2.0] -> ["1", "2"]; [true] -> ["true"]
    """
    array = one_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_nested(array.type):
        wrong = pc.and_(pc.is_valid(array), pc.is_null(problem))
        detail = f"bad_group: {name!r} is {array.type}, expected text, a number, true or false"
        return pa.nulls(len(array), pa.string()), pc.if_else(wrong, detail, problem)
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string()), problem
    array = array.cast(pa.float32()) if pa.types.is_float16(array.type) else array
    whole = pc.and_(pc.equal(array, pc.floor(array)), pc.less(pc.abs(array), 2.0**63))
    digits = pc.if_else(whole, array, pa.scalar(0, array.type)).cast(pa.int64()).cast(pa.string())
    return pc.if_else(whole, digits, array.cast(pa.string())), problem


def as_text(table: pa.Table, names: Sequence[str], config: BuildConfig, *, is_utf8: bool = False) -> pa.Table:
    """`text` and `problem` of rows with the columns `names`, and `second` of pairs. is_utf8: see `as_rows`."""
    count = len(table)
    problem = table["problem"].combine_chunks() if "problem" in table.column_names else pa.nulls(count, pa.string())
    columns = {}
    for name in names:
        columns[name], problem = _text_column(table[name], name, problem, is_utf8)
    if config.pair_columns:
        text = columns[names[0]]
        second = pc.if_else(pc.is_valid(text), columns[names[1]], pa.scalar(None, columns[names[1]].type))
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
    missing = pc.and_(pc.is_null(text), pc.is_null(problem))
    problem = pc.if_else(missing, f"null: the row has no {' and '.join(map(repr, names))}", problem)
    if problem.null_count < count:
        text = pc.if_else(pc.is_valid(problem), pa.scalar(None, text.type), text)
    arrays = {"text": text, "problem": problem}
    if config.pair_columns:
        arrays["second"] = pc.if_else(pc.is_valid(problem), pa.scalar(None, second.type), second)
    return pa.table(arrays)


def _without_large(text: pa.Array, problem: pa.Array, config: BuildConfig) -> pa.Array:
    """`problem` with the texts named that are larger than a row may be."""
    large = pc.fill_null(pc.greater(pc.binary_length(text), config.max_row_size), False)
    detail = f"too_large: the text has more than {config.max_row_size:,} bytes (--max-row-size)"
    return pc.if_else(pc.and_(large, pc.is_null(problem)), detail, problem)


def _text_column(column: pa.ChunkedArray, name: str, problem: pa.Array, is_utf8: bool) -> tuple[pa.Array, pa.Array]:
    """The column as a string array of valid UTF-8, and `problem` with what was wrong filled in."""
    array = one_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        if str(array.type) == "string_view":
            array = array.cast(pa.large_string())
        else:
            found = pc.and_(pc.is_valid(array), pc.is_null(problem))
            return pa.nulls(len(array), pa.string()), pc.if_else(
                found, f"not_text: {name!r} is {array.type}, expected text", problem
            )
    if is_utf8:
        return array, problem
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        good = pa.array([_is_utf8(value or b"") for value in array.cast(pa.large_binary()).to_pylist()])
        problem = pc.if_else(pc.and_(pc.invert(good), pc.is_null(problem)), f"bad_utf8: {name!r} is not UTF-8", problem)
        array = pc.if_else(good, array, pa.scalar(None, array.type))
    return array, problem


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, not copied where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def sound(array: pa.Array) -> pa.Array:
    """The same array; pa.ArrowInvalid where it is damaged: offsets that leave the file crash whatever follows them."""
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(array.type)
    # Of text that is not UTF-8 more is known later.
    (array if binary is None else array.view(binary)).validate(full=True)
    return array


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
