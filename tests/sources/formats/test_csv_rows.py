import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support.errors import InputError
from tests.helpers.corpus import rows_of, tables_of
from tests.helpers.errors import refused


def rows(data: bytes, name: str = "a.csv", **options: Any) -> list[dict[str, Any]]:
    return [row for table in tables_of(io.BytesIO(data), name, **options) for row in rows_of(table)]


def texts_of(data: bytes) -> list[str | None]:
    return [row["text"] for row in rows(data)]


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
    assert texts_of(data) == texts


def test_tabs_separate_where_the_file_is_tsv() -> None:
    assert rows(b"id\ttext\n1\ta, b\n", "a.tsv") == [{"text": "a, b", "problem": None}]


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
    found = rows(data)
    assert [row["text"] for row in found] == texts
    for row, words in zip(found, problems, strict=True):
        assert words in row["problem"] if words else row["problem"] is None


def test_a_quote_that_is_never_closed_or_too_long_stops_with_the_line() -> None:
    with refused(InputError, "a.csv line 2: a quote in this row is never closed"):
        rows(b'id,text\n1,"abc\n2,d\n')
    with refused(InputError, "a.csv line 3: the row has more than 8 bytes"):
        rows(b'text\nabc\n"abcd\nefgh"\n', max_row_size=8)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff\0"))))
def test_any_text_comes_back(texts: list[str]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["id", "text"], *(["1", text] for text in texts)])
    assert texts_of(file.getvalue().encode()) == texts
