import pyarrow as pa
import pytest

from packprep.reports.figures import resolve_name
from packprep.support.problems import (
    PROBLEM,
    BadRow,
    Problem,
    no_problems,
    problem_array,
    problem_at,
    reasons_in,
    too_large,
    with_problem,
)

WRONG = Problem(BadRow.BAD_JSON, "invalid JSON: a colon: and one more")


def test_reason_and_detail_stay_apart_whatever_is_in_the_detail() -> None:
    column = pa.chunked_array([problem_array([None]), problem_array([WRONG])])
    assert problem_at(column, 1) == WRONG
    assert reasons_in(column) == [BadRow.BAD_JSON]


def test_a_reason_that_is_not_in_the_enum_fails_at_once_in_place_of_being_counted() -> None:
    column = pa.chunked_array(
        [pa.array([{"reason": "bad_jsno", "detail": "invalid JSON"}], PROBLEM)]
    )
    for read in (lambda: reasons_in(column), lambda: problem_at(column, 0)):
        with pytest.raises(ValueError, match="'bad_jsno' is not a valid BadRow"):
            read()


def test_a_reason_and_a_detail_in_one_text_are_no_problem() -> None:
    with pytest.raises((pa.ArrowTypeError, pa.ArrowInvalid)):
        problem_array(["bad_json: invalid JSON"])  # type: ignore[list-item]


def test_the_first_problem_of_a_row_stays() -> None:
    large, all_rows = too_large("the text", 5), pa.array([True, True])
    found = with_problem(problem_array([WRONG, None]), all_rows, large)
    assert [tuple(problem.values()) for problem in found.to_pylist() if problem] == [WRONG, large]
    assert with_problem(no_problems(2), pa.array([False, False]), large).null_count == 2


def test_every_reason_can_be_held_by_the_gate() -> None:
    for reason in BadRow:
        assert resolve_name(f"documents.skipped.{reason}", []) == [f"documents.skipped.{reason}"]
