"""Words for what is wrong with JSON."""

import datetime
import json

import pytest

from packprep.support.json_words import json_fault, json_kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, "it is nested too deeply"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b'{"a":\n 1,}', "Illegal trailing comma before end of object in line 2, column 3"),
        (b"", "Expecting value in line 1, column 1"),
        (b"1" * 5_000, "it has a number of too many digits"),
    ],
)
def test_a_fault_is_said_without_words_of_python(text: bytes, words: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        found = json_fault(error)
    if "trailing comma" in words:  # Python 3.13 has a message of its own
        assert found in (words, f"{EXPECTING} in line 2, column 4")
    else:
        assert found == words


EXPECTING = "Expecting property name enclosed in double quotes"


def test_kinds_have_names_of_json() -> None:
    values: list[object] = [None, True, 1, 1.5, "a", [], {}, datetime.date(2026, 1, 1)]
    assert [json_kind(value) for value in values] == [
        "null",
        "a boolean",
        "a number",
        "a number",
        "text",
        "a list",
        "an object",
        "a value of type date",
    ]
