"""Words for what is wrong with JSON."""

import json

import pytest

from packprep.support.json_words import json_fault

COMMA = "Illegal trailing comma before end of object in line 2, column 3"
COMMA_BEFORE_313 = (
    "Expecting property name enclosed in double quotes in line 2, column 4"  # Python 3.11 and 3.12
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, ["it is nested too deeply"]),
        (b'"\xff"', ["byte 1 is not UTF-8"]),
        (b'{"a":\n 1,}', [COMMA, COMMA_BEFORE_313]),
        (b"1" * 5_000, ["it has a number of too many digits"]),
    ],
)
def test_a_fault_is_said_without_words_of_python(text: bytes, words: list[str]) -> None:
    with pytest.raises((ValueError, RecursionError)) as fault:
        json.loads(text)
    assert isinstance(fault.value, ValueError | RecursionError)
    assert json_fault(fault.value) in words
