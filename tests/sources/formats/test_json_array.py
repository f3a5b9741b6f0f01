import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources.formats import json_array
from packprep.sources.formats.json_array import JsonArray
from packprep.support.errors import InputError
from tests.helpers.errors import refused


def elements(
    data: bytes, *, first: int = 1 << 20, block: int = 1 << 20, limit: int = 1 << 20
) -> list[Any]:
    """Elements of an array of which `first` bytes are read before, and then `block` at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_CHARACTERS", block)
        file = io.BytesIO(data)
        return [
            value
            for value, _ in JsonArray(file.read(first), file, json.JSONDecoder(), limit, "a.json")
        ]


def test_an_array_gives_its_elements_whatever_they_are() -> None:
    assert elements(b' [1, "a" ,\n{"b": [2]}, null ]\n ') == [1, "a", {"b": [2]}, None]
    assert elements(b"[ ]") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(JSON),
    st.booleans(),
    st.none() | st.integers(0, 1),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_it_gives_what_json_loads_gives_however_the_file_is_cut(
    values: list[Any], escaped: bool, indent: int | None, first: int, block: int
) -> None:
    data = json.dumps(values, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    if b"\xed" not in data:  # a lone surrogate is no UTF-8
        assert elements(data, first=first, block=block) == values


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[1, 2", "row 2: expected a comma or the end of the array before it"),
        (b"[1 2]", "row 1: expected a comma or the end of the array before it"),
        (b"[1, ]", "row 1: invalid JSON: Expecting value at character 0"),
        (b"[", "row 0: invalid JSON: Expecting value at character 0"),
        (b'[1, {"a": }]', "row 1: invalid JSON: Expecting value at character 6"),
        (b'[1, "ha', "row 1: invalid JSON: Unterminated string starting at character 0"),
        (b"[1] [2]", "row 1: text follows the end of the array"),
        (b"[1]\n{}", "row 1: text follows the end of the array"),
        (b"[" * 100_000, "row 0: invalid JSON: nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "row 0: invalid JSON: Exceeds the limit"),
    ],
)
def test_what_is_wrong_is_said_of_its_row(data: bytes, words: str) -> None:
    for block in (3, 1 << 20):
        with refused(InputError, f"a.json {words}"):
            elements(data, block=block)


def test_an_element_longer_than_the_limit_is_not_read_to_its_end() -> None:
    file = io.BytesIO(b'["a", "' + b"x" * 10_000_000 + b'"]')
    with refused(InputError, "row 1", 1000, "--max-row-size"):
        list(JsonArray(file.read(100), file, json.JSONDecoder(), 1000, "a.json"))
    assert file.tell() <= 100 + json_array.BLOCK_CHARACTERS


def test_bytes_that_are_not_utf8_come_as_lone_surrogates() -> None:
    assert elements(b'["a\xff", "b"]') == ["a\udcff", "b"]
