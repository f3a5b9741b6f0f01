import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support.errors import InputError
from tests.helpers.corpus import rows_of, tables_of


def rows(data: bytes, name: str = "a.csv", **options: Any) -> list[dict[str, Any]]:
    return [row for table in tables_of(io.BytesIO(data), name, **options) for row in rows_of(table)]


def texts_of(data: bytes) -> list[str | None]:
    return [row["text"] for row in rows(data)]


def test_every_value_is_text_as_it_stands_in_the_file() -> None:
    assert texts_of(b"text,id\n007,1\nNA,2\nnull,3\n,4\n1e5,5\n") == [
        "007",
        "NA",
        "null",
        "",
        "1e5",
    ]


def test_quotes_commas_and_line_ends_may_stand_inside_quotes() -> None:
    assert texts_of(b'id,text\r\n1,"a, ""b""\r\nc"\r\n') == ['a, "b"\r\nc']


def test_a_byte_order_mark_and_blank_lines_are_nothing() -> None:
    assert texts_of(b"\xef\xbb\xbftext,id\n\na,1\n\n") == ["a"]


def test_tabs_separate_where_the_file_is_tsv() -> None:
    assert rows(b"id\ttext\n1\ta, b\n", "a.tsv") == [{"text": "a, b", "problem": None}]


def test_a_row_that_does_not_fit_the_header_is_a_finding_with_its_line() -> None:
    assert rows(b"id,text\n1,a,b\n2,c\n3\n") == [
        {"text": None, "problem": "bad_csv: line 2 has 3 fields, the header has 2"},
        {"text": "c", "problem": None},
        {"text": None, "problem": "bad_csv: line 4 has 1 field, the header has 2"},
    ]


def test_bytes_that_are_not_utf8_are_a_finding_only_in_the_column_that_is_read() -> None:
    assert rows(b"id,text\n\xff,a\n2,\xff\n") == [
        {"text": "a", "problem": None},
        {"text": None, "problem": "bad_utf8: 'text' is not UTF-8"},
    ]


def test_a_quote_that_is_never_closed_stops_with_the_line() -> None:
    with pytest.raises(
        InputError, match=r"a\.csv line 2: a quote in this row is never closed; quote it"
    ):
        rows(b'id,text\n1,"abc\n2,d\n')


def test_text_behind_a_closed_quote_is_a_finding_of_its_line() -> None:
    assert rows(b'id,text\n1,"a" b\n2,c\n') == [
        {"text": None, "problem": "bad_csv: line 2: ',' expected after '\"'"},
        {"text": "c", "problem": None},
    ]


def test_a_nul_is_no_text() -> None:
    assert rows(b"text,id\nb\0,2\nc,\0\n") == [
        {"text": None, "problem": "bad_utf8: 'text' contains a NUL byte; save it as UTF-8 text"},
        {"text": "c", "problem": None},
    ]


def test_a_row_longer_than_the_limit_stops_before_it_is_in_memory() -> None:
    with pytest.raises(InputError, match=r"a\.csv line 3: the row has more than 8 bytes"):
        rows(b'text\nabc\n"abcd\nefgh"\n', max_row_size=8)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff\0"))))
def test_any_text_comes_back(texts: list[str]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["id", "text"], *(["1", text] for text in texts)])
    assert texts_of(file.getvalue().encode()) == texts
