import importlib
import io
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources.formats import text_rows
from packprep.support.errors import InputError
from tests.helpers.corpus import rows_of, tables_of
from tests.helpers.errors import refused

By = Literal["document", "paragraph", "line"]


def rows(data: bytes, by: By = "line", **options: Any) -> list[dict[str, Any]]:
    tables = tables_of(io.BytesIO(data), "a.txt", sample_by=by, **options)
    return [row for table in tables for row in rows_of(table)]


def texts_of(data: bytes, by: By = "line") -> list[str | None]:
    return [row["text"] for row in rows(data, by)]


def test_a_file_is_one_document_or_its_paragraphs_or_its_lines() -> None:
    data = b"\xef\xbb\xbfa\r\nb\n\n\n\nc\n"
    assert texts_of(data, "document") == ["a\nb\n\n\n\nc\n"]
    assert texts_of(data, "paragraph") == ["a\nb", "c\n"]
    assert texts_of(data, "line") == ["a", "b", "", "", "", "c"]
    assert [texts_of(b"", by) for by in get_args(By)] == [[], [], []]


@given(st.text(st.sampled_from("ab\n\r\u00e9")), st.sampled_from(get_args(By)), st.integers(1, 5))
def test_rows_are_those_of_the_text_builder_of_datasets(text: str, by: By, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "BLOCK", block)
        found = texts_of(text.encode(), by)
    expected = [
        value for table in _datasets_tables(text, by) for value in table["text"].to_pylist()
    ]
    assert found == (expected if text else [])


def _datasets_tables(text: str, by: By) -> Any:
    """Tables that `datasets` makes of the same file."""
    module = importlib.import_module("datasets.packaged_modules.text.text")
    builder = module.Text(sample_by=by, data_files=[__file__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "builtins.open", lambda *_, **__: io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
        )
        return [table for _, table in builder._generate_tables([""], [["a.txt"]])]


def test_what_is_not_utf8_is_a_problem_of_its_row_and_line() -> None:
    data, problem = b"a\n\n\nb\nc\xff\n\nd\n", "bad_utf8: line 5 is not UTF-8"
    assert rows(data)[4] == {"text": None, "problem": problem}
    assert [row["problem"] for row in rows(data, "paragraph")] == [None, problem, None]
    assert rows(data, "document") == [{"text": None, "problem": problem}]
    assert rows("ab".encode("utf-16"))[0]["problem"] == "bad_utf8: line 1 is not UTF-8"
    found = [row["problem"] for row in rows(b"a\n" + "b".encode("utf-16-le"))]
    assert found == [None, "bad_utf8: line 2 contains a NUL byte; save it as UTF-8 text"]


@pytest.mark.parametrize(
    ("data", "by", "expected"),
    [
        (b"abcd\nabcde\nabcdefghijk\nab", "line", ["abcd", "line 2", "line 3", "ab"]),
        (
            b"abcd\n\nab\ncdefgh\n\nab",
            "paragraph",
            ["abcd", "the paragraph that starts on line 3", "ab"],
        ),
        (b"abcd", "document", ["abcd"]),
        (b"abcde", "document", ["the document that starts on line 1"]),
    ],
)
def test_a_row_longer_than_the_limit_is_a_problem_and_the_next_one_is_read(
    data: bytes, by: By, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_rows, "BLOCK", 3)
    found = [row["problem"] or row["text"] for row in rows(data, by, max_row_size=4)]
    assert found == [
        text if len(text) <= 4 else f"too_large: {text} has more than 4 bytes (--max-row-size)"
        for text in expected
    ]


def cells(data: bytes, name: str = "a.csv", **options: Any) -> list[dict[str, Any]]:
    return [row for table in tables_of(io.BytesIO(data), name, **options) for row in rows_of(table)]


def texts_of_cells(data: bytes) -> list[str | None]:
    return [row["text"] for row in cells(data)]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"text,id\n007,1\nNA,2\nnull,3\n,4\n1e5,5\n", ["007", "NA", "null", "", "1e5"]),
        (b'id,text\r\n1,"a, ""b""\r\nc"\r\n', ['a, "b"\r\nc']),
        (b"\xef\xbb\xbftext,id\n\na,1\n\n", ["a"]),
    ],
    ids=["values are text", "quotes", "byte order mark and blank lines"],
)
def test_values_are_texts_as_they_stand_in_the_file(data: bytes, texts: list[str]) -> None:
    assert texts_of_cells(data) == texts


@pytest.mark.parametrize(
    ("data", "texts", "problems"),
    [
        (
            b"id,text\n1,a,b\n2,c\n3\n",
            [None, "c", None],
            ["line 2 has 3 fields, the header has 2", None, "line 4 has 1 field, the header has 2"],
        ),
        (b"id,text\n\xff,a\n2,\xff\n", ["a", None], [None, "bad_utf8: 'text' is not UTF-8"]),
        (b'id,text\n1,"a" b\n2,c\n', [None, "c"], ["bad_csv: line 2: ',' expected", None]),
        (b"text,id\nb\0,2\nc,\0\n", [None, "c"], ["bad_utf8: 'text' contains a NUL", None]),
    ],
    ids=["fields", "UTF-8, only in the column that is read", "text after a quote", "NUL"],
)
def test_a_bad_row_is_a_problem_with_its_line_and_the_next_one_is_read(
    data: bytes, texts: list[str | None], problems: list[str | None]
) -> None:
    found = cells(data)
    assert [row["text"] for row in found] == texts
    for row, words in zip(found, problems, strict=True):
        assert words in row["problem"] if words else row["problem"] is None


def test_a_quote_that_is_never_closed_or_too_long_stops_with_the_line() -> None:
    with refused(InputError, "a.csv line 2: a quote in this row is never closed"):
        cells(b'id,text\n1,"abc\n2,d\n')
    with refused(InputError, "a.csv line 3: the row has more than 8 bytes"):
        cells(b'text\nabc\n"abcd\nefgh"\n', max_row_size=8)
