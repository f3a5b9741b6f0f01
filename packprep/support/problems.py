"""Problems of rows that cannot be used: a word to count them by, and a sentence.

Tables of rows have a column `problem` of type PROBLEM, a struct of both. It is null if nothing is
wrong with the row. In tables of a source it is READER_PROBLEM: a source may have a column
`problem` too.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc


class BadRow(StrEnum):
    """Reason why a row is skipped, as report.json counts it."""

    NULL = "null"
    NOT_TEXT = "not_text"
    BAD_JSON = "bad_json"
    BAD_CSV = "bad_csv"
    BAD_UTF8 = "bad_utf8"
    BAD_GROUP = "bad_group"
    TOO_LARGE = "too_large"
    # Numbers
    NOT_NUMBERS = "not_numbers"
    BAD_IDS = "bad_ids"
    BAD_LABELS = "bad_labels"
    BAD_MASK = "bad_mask"
    BAD_CARRY = "bad_carry"
    # Conversations
    NOT_MESSAGES = "not_messages"
    NO_MESSAGES = "no_messages"
    NO_ROLE = "no_role"
    BAD_ROLE = "bad_role"
    NO_CONTENT = "no_content"
    BAD_TOOLS = "bad_tools"
    BAD_VARIABLES = "bad_variables"
    BAD_TRAIN = "bad_train"
    TEMPLATE = "template"
    SPECIAL_TOKENS = "special_tokens"
    # Pieces
    BAD_PIECES = "bad_pieces"


class Problem(NamedTuple):
    """A problem of a row.

    detail: a sentence without file and row, which the caller knows.
    """

    reason: BadRow
    detail: str


def too_large(subject: str, limit: int) -> Problem:
    """Problem of a row that is longer than the limit. subject: beginning of the sentence."""
    return Problem(BadRow.TOO_LARGE, f"{subject} has more than {limit:,} bytes (--max-row-size)")


PROBLEM = pa.struct([("reason", pa.string()), ("detail", pa.string())])
READER_PROBLEM = "\0problem"
"""Column that a reader adds to those of a source. No command line can name such a column."""


def no_problems(rows: int) -> pa.StructArray:
    """A column `problem` of rows without problems."""
    return pa.nulls(rows, PROBLEM)


def reader_problems(table: pa.Table) -> "pa.Array[Any]":
    """Problems that the reader found in the rows of a source."""
    if READER_PROBLEM not in table.column_names:
        return no_problems(len(table))
    return table[READER_PROBLEM].combine_chunks()


def problem_array(problems: Iterable[Problem | None]) -> pa.StructArray:
    return cast(pa.StructArray, pa.array(list(problems), PROBLEM))


def problems_in(column: "pa.Array[Any] | pa.ChunkedArray[Any]") -> list[Problem | None]:
    """Problem of each row; None if nothing is wrong with it."""
    return [
        problem and Problem(BadRow(problem["reason"]), problem["detail"])
        for problem in column.to_pylist()
    ]


def problem_at(column: "pa.ChunkedArray[Any]", row: int) -> Problem:
    """Problem of a row that has one. ValueError for a reason that is not one of `BadRow`."""
    reason, detail = column[row].as_py().values()
    return Problem(BadRow(reason), detail)


def reasons_in(column: "pa.ChunkedArray[Any]") -> list[BadRow]:
    """Reasons of all problems, row by row. ValueError for one that is not one of `BadRow`."""
    problems = column.drop_null().to_pylist()
    return [BadRow(problem["reason"]) for problem in problems if problem is not None]


def with_problem(
    problems: "pa.Array[Any]", wrong: "pa.Array[Any]", problem: Problem
) -> "pa.Array[Any]":
    """Problems, with this one added to rows that are `wrong` and had no problem before."""
    # Nearly every table returns here: a choice between structs is the slowest step.
    if not pc.any(wrong).as_py():
        return problems
    added = pc.and_(wrong, pc.is_null(problems))
    result: pa.Array[Any] = pc.if_else(added, pa.scalar(problem, PROBLEM), problems)
    return result
