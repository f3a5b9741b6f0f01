import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import jsonl
from packprep.jsonl import _tables, first_types


def rows(data: bytes, columns: Sequence[str] = ("text",), **numbers: pa.DataType) -> list[dict[str, Any]]:
    types = {name: numbers.get(name, pa.string()) for name in [*columns, *numbers]}
    return [row for table in _tables(io.BytesIO(data), types) for row in table.to_pylist()]


def texts_of(data: bytes) -> list[str | None]:
    return [row["text"] for row in rows(data)]


def problem(line: bytes) -> str | None:
    """What is found wrong with a line between two good ones, which stay good."""
    found = rows(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    assert [found[0]["text"], found[2]["text"]] == ["before", "after"]
    assert [found[0]["problem"], found[2]["problem"]] == [None, None]
    assert (found[1]["problem"] is None) or found[1]["text"] is None
    problem: str | None = found[1]["problem"]
    return problem


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": 7}', "not_text: 'text' is a number, expected text"),
        (b'{"text": true}', "not_text: 'text' is true or false, expected text"),
        (b'{"text": ["a"]}', "not_text: 'text' is a list, expected text"),
        (b'{"text": {"a": 1}}', "not_text: 'text' is an object, expected text"),
        (b'{"text": "\xff"}', "bad_utf8: byte 10 of the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "bad_utf8: 'text' has a lone surrogate"),
        (b'{"text": "a", "text": "b"}', "bad_json: the key 'text' stands twice"),
        (b"nonsense", "bad_json: it is not JSON: Expecting value at character 0"),
        (b'{"text": "a\x00"}', "bad_json: it is not JSON: Invalid control character at character 11"),
        (b'{"text": "half', "bad_json: it is not JSON: Unterminated string starting at character 9"),
        (b"[1, 2]", "bad_json: it is a list, expected an object"),
        (b"7", "bad_json: it is a number, expected an object"),
        (b"[" * 100_000, None),
    ],
)
def test_what_is_wrong_with_a_line_is_said_of_that_line_alone(line: bytes, expected: str | None) -> None:
    found = problem(line)
    assert found == expected if expected else found is not None and found.startswith("bad_json: it is not JSON")


@pytest.mark.parametrize("line", [b'{"text": null}', b'{"other": "a"}', b"{}", b"null"])
def test_a_row_without_text_is_null_and_no_problem_of_the_reader(line: bytes) -> None:
    assert problem(line) is None
    assert rows(line)[0] == {"text": None, "problem": None}


def test_other_columns_may_differ_from_row_to_row() -> None:
    data = b'{"text": "a", "x": 1}\n{"x": {"y": []}, "text": "b"}\n{"text": "c", "x": "z", "w": null}\n'
    assert texts_of(data) == ["a", "b", "c"]


def test_blank_lines_a_byte_order_mark_and_crlf_are_no_rows() -> None:
    assert texts_of(b'\xef\xbb\xbf\n{"text": "a"}\r\n\r\n  \n{"text": "b"}') == ["a", "b"]
    assert texts_of(b"\n \n") == []


def test_an_array_and_an_object_over_many_lines_are_rows_too() -> None:
    values = [{"text": "a"}, {"text": 7}, {"text": "c"}]
    assert texts_of(json.dumps(values, indent=1).encode()) == ["a", None, "c"]
    assert texts_of(json.dumps(values[0], indent=1).encode()) == ["a"]
    assert texts_of(b"[]") == []
    with pytest.raises(json.JSONDecodeError):
        texts_of(b'[{"text": "a"}')


def test_escapes_and_a_nul_that_is_escaped_are_text() -> None:
    assert texts_of(b'{"text": "a\\u0000\\n\\ud83d\\ude42"}') == ["a\0\n🙂"]


def test_several_columns_are_read_at_once() -> None:
    assert rows(b'{"a": "1", "b": "2"}\n{"b": "3"}\n', ("b", "a")) == [
        {"b": "2", "a": "1", "problem": None},
        {"b": "3", "a": None, "problem": None},
    ]


def test_numbers_are_read_beside_text_and_a_row_that_has_something_else_is_named() -> None:
    lists = pa.list_(pa.int64())
    data = b'{"text": "a", "ids": [1, 2], "reward": 1}\n'
    good = {"text": "a", "ids": [1, 2], "reward": 1.0, "problem": None}
    assert rows(data, ids=lists, reward=pa.float64()) == [good]
    wrong = b'{"text": "b", "ids": [1, 0.5], "reward": 0.5}\n{"text": "c", "ids": 7}\n{"ids": [true], "reward": "x"}\n'
    found = rows(data + wrong, ids=lists, reward=pa.float64())
    assert found[0] == good
    assert [row["problem"] for row in found[1:]] == [
        "not_numbers: 'ids' has 0.5, expected a whole number as in the first rows",
        "not_numbers: 'ids' is a number, expected a list of numbers",
        "not_numbers: 'ids' has True, expected a whole number as in the first rows",
    ]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"a": 1}\n{"a": 2}', pa.int64()),
        (b'{"a": 1}\n{"a": 0.5}', pa.float64()),
        (b'not json\n{"a": [true]}\n', pa.list_(pa.bool_())),
        (b'[{"a": [1]}, {"b": 2}]', pa.list_(pa.int64())),
        (b'{\n"a": [0.5]\n}', pa.list_(pa.float64())),
        (b'{"b": 1}\n', pa.null()),
        (b'{"a": 1}\n{"a": "x"}', pa.string()),
    ],
)
def test_the_type_of_a_column_is_that_of_its_first_rows(data: bytes, kind: pa.DataType) -> None:
    assert first_types(io.BytesIO(data), ["a"]) == {"a": kind}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.booleans(), st.integers(1, 60))
def test_any_text_comes_back_however_the_file_is_cut_into_blocks(texts: list[str], escaped: bool, block: int) -> None:
    data = "".join(json.dumps({"text": text}, ensure_ascii=escaped) + "\n" for text in texts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "BLOCK_BYTES", block)
        assert texts_of(data) == texts
