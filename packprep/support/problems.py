"""A row that cannot be used.

One word to count it by, and the sentence that says what is wrong with it.

Tables of rows have a column `problem` of type PROBLEM, a struct of both; null where nothing is
wrong with the row.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class BadRow(StrEnum):
    """Reason for which a row is skipped, as report.json counts it."""

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
    TEMPLATE = "template"
    SPECIAL_TOKENS = "special_tokens"
    # The process that tokenized it died
    POISONED = "poisoned"


class Problem(NamedTuple):
    """A fault of a row.

    detail: a sentence without the row's place, which the caller knows.
    """

    reason: BadRow
    detail: str


def too_large(what: str, limit: int) -> Problem:
    """The problem of a row that is longer than the limit."""
    return Problem(BadRow.TOO_LARGE, f"{what} has more than {limit:,} bytes (--max-row-size)")


PROBLEM = pa.struct([("reason", pa.string()), ("detail", pa.string())])


def no_problems(rows: int) -> pa.StructArray:
    return pa.nulls(rows, PROBLEM)


def problem_array(problems: Iterable[Problem | None]) -> pa.StructArray:
    return pa.array(list(problems), PROBLEM)


def problems_in(column: pa.ChunkedArray) -> list[Problem | None]:
    """Of each row."""
    return [
        problem and Problem(BadRow(problem["reason"]), problem["detail"])
        for problem in column.to_pylist()
    ]


def problem_at(column: pa.ChunkedArray, row: int) -> Problem:
    """The problem of a row that has one. ValueError for a reason that is not one of `BadRow`."""
    reason, detail = column[row].as_py().values()
    return Problem(BadRow(reason), detail)


def reasons_in(column: pa.ChunkedArray) -> list[BadRow]:
    """The reasons of all problems. ValueError for one that is not one of `BadRow`."""
    return [BadRow(problem["reason"]) for problem in column.drop_null().to_pylist()]


def with_problem(problems: pa.Array, wrong: pa.Array, problem: Problem) -> pa.Array:
    """The problems, with this one where `wrong` is true and nothing else was wrong before."""
    if not pc.any(
        wrong
    ).as_py():  # nearly every table: choosing between structs takes longer than all else here
        return problems
    return pc.if_else(pc.and_(wrong, pc.is_null(problems)), pa.scalar(problem, PROBLEM), problems)
