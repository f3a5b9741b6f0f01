"""Columns of Arrow tables: checked for damage, as one array, text as UTF-8, groups as text."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from packprep.support.problems import BadRow, Problem, with_problem


def text_column(
    column: pa.ChunkedArray[Any], name: str, problem: pa.Array[Any], is_utf8: bool
) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """The column as a string array of valid UTF-8, and the problems with new ones added."""
    array = _decoded(one_array(column))
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        if str(array.type) == "string_view":
            array = array.cast(pa.large_string())
        else:
            wrong = Problem(BadRow.NOT_TEXT, f"{name!r} is {array.type}, expected text")
            return pa.nulls(len(array), pa.string()), with_problem(
                problem, pc.is_valid(array), wrong
            )
    if is_utf8:
        return array, problem
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        good = pa.array(
            [_is_utf8(value or b"") for value in array.cast(pa.large_binary()).to_pylist()]
        )
        problem = with_problem(
            problem, pc.invert(good), Problem(BadRow.BAD_UTF8, f"{name!r} is not UTF-8")
        )
        array = pc.if_else(good, array, pa.scalar(None, array.type))
    return array, problem


def group_text(
    column: pa.ChunkedArray[Any], name: str, problem: pa.Array[Any]
) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """The groups of rows as text, and the problems with new ones added.

    A number is written as digits and a boolean as in JSON, so that groups are the same in every
    format; a float without a fraction is written as an integer. Example: [1, 2] and [1.0, 2.0]
    -> ["1", "2"]; [true] -> ["true"]
    """
    array = _decoded(one_array(column))
    if pa.types.is_nested(array.type):
        wrong = Problem(
            BadRow.BAD_GROUP, f"{name!r} is {array.type}, expected text, a number, true or false"
        )
        return pa.nulls(len(array), pa.string()), with_problem(problem, pc.is_valid(array), wrong)
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string()), problem
    array = array.cast(pa.float32()) if pa.types.is_float16(array.type) else array
    integral = pc.and_(pc.equal(array, pc.floor(array)), pc.less(pc.abs(array), pa.scalar(2.0**63)))
    digits = (
        pc.if_else(integral, array, pa.scalar(0, array.type)).cast(pa.int64()).cast(pa.string())
    )
    return pc.if_else(integral, digits, array.cast(pa.string())), problem


def _decoded(array: pa.Array[Any]) -> pa.Array[Any]:
    """The array, or the values of a dictionary array."""
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def one_array(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """The column as one array, without a copy if it is one already."""
    # The stubs say that chunks combine to a chunked array, too.
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return cast("pa.Array[Any]", array)


def sound(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the array; raise pa.ArrowInvalid if it is damaged.

    Offsets outside of the file would crash code that follows them.
    """
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(array.type)
    # Bad UTF-8 is found later, with its row.
    (array if binary is None else array.view(binary)).validate(full=True)
    return array


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
