import importlib
import io
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources.formats import text_rows
from tests.helpers.corpus import rows_of, tables_of

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
            b"abcd\n\nab\ncdefgh\n\nab\n\nabcdefgh",
            "paragraph",
            [
                "abcd",
                "the paragraph that starts on line 3",
                "ab",
                "the paragraph that starts on line 8",
            ],
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


def test_an_endless_line_is_not_kept(tmp_path: Path) -> None:
    class Endless(io.RawIOBase):
        """100 MB of one line, counted as they are read."""

        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.given += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer) if self.given < 100_000_000 else 0

    file = Endless()
    tables = tables_of(file, "a.txt", sample_by="document", max_row_size=1000)
    assert [len(table) for table in tables] == [1]
    assert file.given < 1_000_000
