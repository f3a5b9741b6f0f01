import io
import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources.formats import json_array, jsonl, text_rows
from packprep.sources.formats.json_array import JsonArray
from packprep.sources.formats.jsonl import _tables
from packprep.support.errors import InputError
from tests.helpers.corpus import rows_of, source_of, tables_of
from tests.helpers.errors import refused


def rows(
    data: bytes, columns: Sequence[str] = ("text",), **numbers: pa.DataType
) -> list[dict[str, Any]]:
    types = {name: numbers.get(name, pa.string()) for name in [*columns, *numbers]}
    return [row for table in _tables(io.BytesIO(data), types) for row in rows_of(table)]


def texts_of(data: bytes) -> list[str | None]:
    return [row["text"] for row in rows(data)]


def problem(line: bytes) -> str | None:
    """Fault of a line between two good ones, which stay good."""
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
        (b'{"text": ["a"]}', "not_text: 'text' is a list, expected text"),
        (b'{"text": "\xff"}', "bad_utf8: byte 10 of the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "bad_utf8: 'text' has a lone surrogate"),
        (b'{"text": "a", "text": "b"}', "bad_json: duplicate key 'text'"),
        (b"nonsense", "bad_json: invalid JSON: Expecting value at character 0"),
        (b'{"text": "a\x00"}', "bad_json: invalid JSON: Invalid control character at character 11"),
        (b'{"text": "half', "bad_json: invalid JSON: Unterminated string starting at character 9"),
        ('{"text": "a"}'.encode("utf-16-le"), "bad_json: invalid JSON: Expecting property name"),
        (b"7", "bad_json: it is a number, expected an object"),
        (b"[" * 100_000, "bad_json: invalid JSON"),
        *(
            (
                b'{"text": "a"}' + between + b'{"text": "b"}',
                f"bad_json: invalid JSON: Extra data at character {13 + len(between)}",
            )
            for between in (b"", b" ", b"\r")
        ),
    ],
)
def test_what_is_wrong_with_a_line_is_said_of_that_line_alone(line: bytes, expected: str) -> None:
    assert str(problem(line)).startswith(expected)


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b'{"text": "a", "x": 1}\n{"x": {"y": []}, "text": "b"}\n{"text": "c", "w": null}', "abc"),
        (b'\xef\xbb\xbf\n{"text": "a"}\r\n\r\n  \n{"text": "b"}', "ab"),
        (b"\n \n", ""),
        (b'[\n{"text": "a"},\n{"text": 7}, {"text": "c"}]', ["a", None, "c"]),
        (b'{\n"text": "a"\n}', "a"),
        (b"[]", ""),
        (b'{"text": "a"}{"text": "b"}\n\n{"text": "c"}', [None, "c"]),
        (b'\n{"text": "a"}{"text": "b"}', [None]),
        (b'{"text": "a\\u0000\\n\\ud83d\\ude42"}', ["a\0\n🙂"]),
    ],
)
def test_lines_arrays_and_objects_are_rows(data: bytes, texts: Sequence[str | None]) -> None:
    assert texts_of(data) == list(texts)


def test_numbers_are_read_beside_text_and_a_row_that_has_something_else_is_named() -> None:
    lists = pa.list_(pa.int64())
    data = b'{"text": "a", "ids": [1, 2], "reward": 1}\n'
    good = {"text": "a", "ids": [1, 2], "reward": 1.0, "problem": None}
    assert rows(data, ids=lists, reward=pa.float64()) == [good]
    wrong = [
        b'{"text": "b", "ids": [1, 0.5], "reward": 0.5}',
        b'{"text": "c", "ids": 7}',
        b'{"ids": [true], "reward": "x"}',
    ]
    found = rows(data + b"\n".join(wrong), ids=lists, reward=pa.float64())
    assert [row["problem"] for row in found] == [
        None,
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
    assert jsonl.JSON.first_types is not None
    assert jsonl.JSON.first_types(source_of(io.BytesIO(data), "a.json"), ["a"]) == {"a": kind}


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "n": ' + b"9" * 5000 + b"}",
        b'{"text": "a", "n": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"text": "a", "n": "\xff"}',
        b'{"text": "a", "n": 1, "n": 2}',
        b'{"text": "a", "n": NaN}',
        b'{"\\u0074ext": "a"}',
        b' {"text": "a"}\t\r',
    ],
)
def test_a_good_line_stays_good_beside_a_bad_one(line: bytes) -> None:
    assert texts_of(line) == ["a"]
    assert texts_of(b"bad\n" + line + b"\nbad") == [None, "a", None]


LINES = st.sampled_from(
    b'{"text": "a"}\n{"text": "b", "n": {}}\n{\n}\n"text": "c"}\n{"text":\n{}{}\n\n \nnull\n[]\n'
    b'{"text": "d"} {"text": "e"}\n{"text": 7}\n{"text": "\xff"}\n{"n": "\xff"}\n{"n": {}\n{}\n'
    b"\r".split(b"\n")
)


@given(st.lists(LINES, min_size=1, max_size=6))
def test_a_line_means_the_same_whatever_stands_beside_it(lines: list[bytes]) -> None:
    # so that the file is neither an array nor one object over many lines
    before = b'{"text": "first"}\n'
    alone = [row for line in lines for row in rows(before + line)[1:]]
    assert rows(before + b"\n".join(lines))[1:] == alone


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_a_line_longer_than_the_limit_is_a_finding_and_the_next_one_is_read(block: int) -> None:
    lines = [b'{"text": "%s"}' % (b"x" * size) for size in (88, 89, 200, 1000, 3, 89)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "BLOCK_BYTES", block)
        tables = list(_tables(io.BytesIO(b"\n".join(lines)), {"text": pa.string()}, 100))
    found = [(len(row["text"] or ""), row["problem"]) for table in tables for row in rows_of(table)]
    large = (0, "too_large: the line has more than 100 bytes (--max-row-size)")
    assert found == [(88, None), large, large, large, (3, None), large]


def test_an_endless_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(text_rows, "BLOCK", 1 << 16)
    file = io.BytesIO(b"x" * 20_000_000)
    for tables in (
        _tables(file, {"text": pa.string()}, 1000),
        tables_of(file, "a.txt", sample_by="document", max_row_size=1000),
    ):
        file.seek(0)
        tracemalloc.start()
        assert sum(map(len, tables)) == 1
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()


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
        (b"[1, ]", "row 1: invalid JSON: Expecting value at character 0"),
        (b'[1, {"a": }]', "row 1: invalid JSON: Expecting value at character 6"),
        (b'[1, "ha', "row 1: invalid JSON: Unterminated string starting at character 0"),
        (b"[1] [2]", "row 1: text follows the end of the array"),
        (b"[" * 100_000, "row 0: invalid JSON: nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "row 0: invalid JSON: Exceeds the limit"),
    ],
)
def test_what_is_wrong_is_said_of_its_row(data: bytes, words: str) -> None:
    for block in (3, 1 << 20):
        with refused(InputError, f"a.json {words}"):
            elements(data, block=block)
