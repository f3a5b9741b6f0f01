"""Every way a source is known to be bad: how to make it, and the words of the error that must come.

Rows of `FORMATS` are bad ones among good ones, per format; `--on-error skip` passes them over and
counts them by `reason`. `FILES` are files that cannot be read as a whole: they stop a build with
skipped rows too.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.corpus import texts

GOOD = texts(40)
LIMIT = 5_000  # bytes of a row at most, in all of these builds
AT = 25  # number of the bad row among the good ones


class BadRow(NamedTuple):
    """A row that cannot be used.

    row: as the format writes it, without a line end. For binary formats the bytes of the value,
    None for null. words: of the error, after file, row and line.
    """

    row: bytes | None
    words: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format.

    make: the file of these rows. first_line: of row 0, in formats that have lines.
    """

    make: Callable[[Sequence[bytes | None]], bytes]
    good: tuple[bytes, ...]
    rows: tuple[BadRow, ...]
    first_line: int | None = None
    options: tuple[str, ...] = ()

    def bad(self, kind: BadRow) -> bytes:
        """The good rows with a bad one at place AT."""
        return self.make([*self.good[:AT], kind.row, *self.good[AT:]])

    def place(self, row: int) -> str:
        """Name of a row, as it follows the name of its file."""
        return f"row {row}" + (f" (line {row + self.first_line})" if self.first_line else "")


def _bad(reason: str, words: str, *rows: bytes | None) -> list[BadRow]:
    return [BadRow(row, words, reason) for row in rows]


def _lines(rows: Sequence[bytes | None]) -> bytes:
    return b"".join((row or b"") + b"\n" for row in rows)


def _column(values: Sequence[bytes | None]) -> pa.Table:
    """A column that says it is text, whatever its bytes are."""
    array = pa.array(values, pa.binary())
    buffers = array.buffers()
    return pa.table(
        {"text": pa.Array.from_buffers(pa.string(), len(array), buffers, array.null_count)}
    )


def write_parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"write_page_checksum": True, **options})
    return sink.getvalue()


def write_arrow(table: pa.Table, *, is_file: bool = False, **options: Any) -> bytes:
    sink, opened = io.BytesIO(), pa.ipc.new_file if is_file else pa.ipc.new_stream
    with opened(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


_ENDLESS, _LARGE = b"x" * 2 * LIMIT, f"has more than {LIMIT:,} bytes (--max-row-size)"
_NUL = "contains a NUL byte; save it as UTF-8 text"
# A byte that is not UTF-8, an overlong sequence, a surrogate in UTF-8.
_NOT_UTF8 = [b'{"text": "%s"}' % bad for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80")]
_JSON_ROWS = (
    *_bad("bad_utf8", "byte 10 of the line is not UTF-8", *_NOT_UTF8),
    *_bad(
        "bad_utf8", "'text' has a lone surrogate", b'{"text": "\\ud800"}', b'{"text": "\\ud83d."}'
    ),
    *_bad("bad_json", "Expecting property name enclosed in", '{"text": "a"}'.encode("utf-16-le")),
    *_bad("bad_json", "Expecting property name enclosed in double", b"{'text': 'a'}"),
    *_bad("bad_json", "begins with a byte order mark", b'\xef\xbb\xbf{"text": "a"}'),
    *_bad("not_text", "'text' is a number, expected text", b'{"text": 7}', b'{"text": NaN}'),
    *_bad("not_text", "'text' is a boolean, expected text", b'{"text": true}'),
    *_bad("not_text", "'text' is a list, expected text", b'{"text": ["a"]}'),
    *_bad("not_text", "'text' is an object, expected text", b'{"text": {"text": "a"}}'),
    *_bad("null", "the row has no 'text'", b'{"text": null}', b'{"body": "a"}', b"null"),
    *_bad("bad_json", "duplicate key 'text'", b'{"text": "a", "text": "b"}'),
    *_bad("bad_json", "duplicate key 'text'", b'{"text": "a", "\\u0074ext": "b"}'),
    *_bad("bad_json", "Expecting value at character 0", b"garbage", bytes(range(1, 10))),
    *_bad("bad_json", "Invalid control character at character 10", b'{"text": "\x00"}'),
    *_bad("bad_json", "Invalid control character at character 11", b'{"text": "a\tb"}'),
    *_bad("bad_json", "Extra data at character 13", b'{"text": "a"}\x00', b'{"text": "a"},'),
    *_bad("bad_json", "Extra data at character 14", b'{"text": "a"} {"text": "b"}'),
    *_bad("bad_json", "Unterminated string starting at character 9", b'{"text": "ha'),
    *_bad("bad_json", "Invalid \\uXXXX escape at character 11", b'{"text": "\\u12"}'),
    *_bad("bad_json", "Invalid \\escape at character 10", b'{"text": "\\x41"}'),
    *_bad("bad_json", "it is a list, expected an object", b"[7]"),
    *_bad("bad_json", "it is text, expected an object", b'"a"'),
    *_bad("bad_json", "it is a number, expected an object", b"7"),
    *_bad("bad_json", "invalid JSON: nested too deeply", b'{"text": ' + b"[" * 4000),
    *_bad("too_large", "the line " + _LARGE, b'{"text": "%s"}' % _ENDLESS),
)
_CSV_ROWS = (
    *_bad("bad_utf8", "'text' is not UTF-8", b"1,\xff"),
    *_bad("bad_utf8", f"'text' {_NUL}", b"1,a\x00b"),
    *_bad("bad_csv", "line 27 has 3 fields, the header has 2", b"1,a,b"),
    *_bad("bad_csv", "line 27 has 1 field, the header has 2", b"a"),
    *_bad("bad_csv", "line 27: ',' expected after '\"'", b'1,"a" b'),
)
_LINE = f"line {AT + 1}"
_TEXT_ROWS = (
    *_bad("bad_utf8", f"{_LINE} is not UTF-8", b"a\xffb", "ab".encode("utf-16")),
    *_bad("bad_utf8", f"{_LINE} {_NUL}", "ab".encode("utf-16-le")),
    *_bad("too_large", f"{_LINE} {_LARGE}", _ENDLESS),
)
_BINARY_ROWS = (
    *_bad("bad_utf8", "'text' is not UTF-8", b"a\xffb", "é".encode()[:1]),
    *_bad("null", "the row has no 'text'", None),
    *_bad("too_large", "the text " + _LARGE, _ENDLESS),
)
_TEXTS = tuple(text.encode() for text in GOOD)
_JSON = tuple(json.dumps({"text": text, "id": n}).encode() for n, text in enumerate(GOOD))
FORMATS = {
    ".jsonl": Format(make=_lines, good=_JSON, rows=_JSON_ROWS, first_line=1),
    ".csv": Format(
        make=lambda rows: _lines([b"id,text", *rows]),
        good=tuple(b'%d,"%s"' % (number, text) for number, text in enumerate(_TEXTS)),
        rows=_CSV_ROWS,
    ),
    ".txt": Format(make=_lines, good=_TEXTS, rows=_TEXT_ROWS, options=("--sample-by", "line")),
    ".parquet": Format(
        make=lambda rows: write_parquet(_column(rows)), good=_TEXTS, rows=_BINARY_ROWS
    ),
    ".arrow": Format(make=lambda rows: write_arrow(_column(rows)), good=_TEXTS, rows=_BINARY_ROWS),
}


@cache
def whole(suffix: str) -> bytes:
    """A good file."""
    return FORMATS[suffix].make(FORMATS[suffix].good)


def flipped(data: bytes, at: int) -> bytes:
    """Data with the bits of one byte inverted."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _cells(values: "list[Any] | pa.Array[Any]", name: str = "text") -> bytes:
    return write_parquet(pa.table({name: values}))


_LINES, _PARQUET, _ARROW = whole(".jsonl"), whole(".parquet"), whole(".arrow")
_NO_ROWS, _NO_COLUMN = "holds no rows; expected at least one", "has no column 'text'; it has "
_PAGE = flipped(_PARQUET, len(_PARQUET) // 3)
FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": (".jsonl", b"", "(is empty|holds no rows); expected at least one document"),
    "blank lines": (".jsonl", b"\n \n\t\n", _NO_ROWS),
    "an empty array": (".json", b" [ ]\n", _NO_ROWS),
    "a header alone": (".csv", b"id,text\n", _NO_ROWS),
    "a table without rows": (".parquet", write_parquet(_column([])), _NO_ROWS),
    "a stream without rows": (".arrow", write_arrow(_column([])), _NO_ROWS),
    "no such column, JSON": (".jsonl", b'{"body": "a", "id": 1}\n', _NO_COLUMN + "body, id"),
    "no such column, array": (".json", b'[{"body": "a"}]', _NO_COLUMN + "body:"),
    "no such column, CSV": (".csv", b"id,body\n1,a\n", _NO_COLUMN + "id, body"),
    "no such column, Parquet": (".parquet", _cells(["a"], "body"), _NO_COLUMN + "body"),
    "a column twice": (".csv", b"text,text\na,b\n", "more than one column 'text'; it has text"),
    "a quote never closed": (".csv", b'id,text\n1,"a\n2,b\n', "line 2: a quote .* never closed"),
    "an endless field": (".csv", b'id,text\n1,"' + b"x\n" * LIMIT, "line 2: .* than 5,000 bytes"),
    "an array not closed": (".json", b'[{"text": "a"}', "row 1: expected a comma or the end"),
    "a broken element": (".json", b'[{"text": "a"}, {"text" "b"}]', "row 1: .* at character 8"),
    "an array and more": (".json", b'[{"text": "a"}]\n[{"text": "b"}]\n', "row 1: text follows"),
    "an endless element": (
        ".json",
        b'[{"text": "a"}, {"text": "' + b"x" * 10_000_000,
        r"row 1: invalid JSON, or more than 5,000 bytes \(--max-row-size\)",
    ),
    "not Parquet": (".parquet", _LINES, "cannot be read as parquet: "),
    "Parquet cut off": (".parquet", _PARQUET[:-100], "cannot be read as parquet: "),
    "a Parquet footer flipped": (".parquet", flipped(_PARQUET, -6), "cannot be read as parquet"),
    "a Parquet page flipped": (".parquet", _PAGE, "could not verify page integrity"),
    "numbers in Parquet": (".parquet", _cells([1, 2]), "row 0: 'text' is int64, expected text"),
    "lists in Parquet": (".parquet", _cells([["a"]]), "row 0: 'text' is list<.*>, expected text"),
    "bytes in Parquet": (".parquet", _cells([b"a"]), "row 0: 'text' is binary, expected text"),
    "not Arrow": (".arrow", _LINES, "cannot be read as arrow: "),
    "Arrow cut off": (".arrow", _ARROW[:-500], "cannot be read as arrow: "),
    "a pickle": (".jsonl", b"\x80\x04\x95\x10\n.", "row 0 .line 1.: byte 0 of the line is not"),
    "UTF-16": (".jsonl", _LINES.decode().encode("utf-16"), "row 0 .line 1.: byte 0 of "),
    "UTF-16, CSV": (".csv", whole(".csv").decode().encode("utf-16"), _NO_COLUMN),
}
"""By name: the suffix and the bytes of a file, and a regular expression for its error."""
