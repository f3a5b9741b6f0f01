"""Every way a source is known to be bad: how to make it, and the error that must come.

`ROWS` are bad rows among good ones, per format; `--on-error skip` passes them over and counts them
by `reason`. `FILES` are files that cannot be read as a whole: they stop a build with skipped rows
too.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.corpus import texts

GOOD = texts(40)
LIMIT = 5_000  # bytes of a row at most, in all of these builds
AT = 25  # number of the bad row among the good ones

_LARGE = f"has more than {LIMIT:,} bytes (--max-row-size)"
_NUL = "contains a NUL byte; save it as UTF-8 text"


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that cannot be used.

    row: as the format writes it, without a line end. For binary formats the bytes of the value,
    None for null.

    sentence: the error after file, row and line.
    """

    name: str
    row: bytes | None
    sentence: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format.

    make: the file of these rows. first_line: of row 0, in formats that have lines.
    """

    suffix: str
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


def _bad(name: str, row: bytes | None, sentence: str, reason: str) -> BadRow:
    return BadRow(name=name, row=row, sentence=sentence, reason=reason)


def _lines(rows: Sequence[bytes | None]) -> bytes:
    return b"".join((row or b"") + b"\n" for row in rows)


def _csv(rows: Sequence[bytes | None]) -> bytes:
    return _lines([b"id,text", *rows])


def _column(values: Sequence[bytes | None]) -> pa.Table:
    """A column that says it is text, whatever its bytes are."""
    array = pa.array(values, pa.binary())
    return pa.table(
        {"text": pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)}
    )


def _parquet(rows: Sequence[bytes | None]) -> bytes:
    return write_parquet(_column(rows))


def write_parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"write_page_checksum": True, **options})
    return sink.getvalue()


def _arrow(rows: Sequence[bytes | None]) -> bytes:
    return write_arrow(_column(rows))


def write_arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


_NOT_JSON = "invalid JSON: "
_JSON_ROWS = (
    _bad(
        "a byte that is not UTF-8",
        b'{"text": "\xff"}',
        "byte 10 of the line is not UTF-8",
        "bad_utf8",
    ),
    _bad(
        "an overlong sequence",
        b'{"text": "\xc0\xaf"}',
        "byte 10 of the line is not UTF-8",
        "bad_utf8",
    ),
    _bad(
        "a surrogate in UTF-8",
        b'{"text": "\xed\xa0\x80"}',
        "byte 10 of the line is not UTF-8",
        "bad_utf8",
    ),
    _bad("a lone surrogate", b'{"text": "\\ud800"}', "'text' has a lone surrogate", "bad_utf8"),
    _bad("half a pair", b'{"text": "a\\ud83d."}', "'text' has a lone surrogate", "bad_utf8"),
    _bad(
        "UTF-16 in one line",
        '{"text": "a"}'.encode("utf-16-le"),
        _NOT_JSON + "Expecting property name enclosed in double quotes at character 1",
        "bad_json",
    ),
    _bad(
        "a byte order mark in the middle",
        b'\xef\xbb\xbf{"text": "a"}',
        "it begins with a byte order mark, which is allowed only at the start of a file",
        "bad_json",
    ),
    _bad("a number", b'{"text": 7}', "'text' is a number, expected text", "not_text"),
    _bad("not a number", b'{"text": NaN}', "'text' is a number, expected text", "not_text"),
    _bad("true", b'{"text": true}', "'text' is a boolean, expected text", "not_text"),
    _bad("a list", b'{"text": ["a"]}', "'text' is a list, expected text", "not_text"),
    _bad("an object", b'{"text": {"text": "a"}}', "'text' is an object, expected text", "not_text"),
    _bad("null", b'{"text": null}', "the row has no 'text'", "null"),
    _bad("no such key", b'{"body": "a"}', "the row has no 'text'", "null"),
    _bad("a row that is null", b"null", "the row has no 'text'", "null"),
    _bad("a key twice", b'{"text": "a", "text": "b"}', "duplicate key 'text'", "bad_json"),
    _bad(
        "a key twice, once escaped",
        b'{"text": "a", "\\u0074ext": "b"}',
        "duplicate key 'text'",
        "bad_json",
    ),
    _bad("garbage", b"garbage", _NOT_JSON + "Expecting value at character 0", "bad_json"),
    _bad("binary", bytes(range(1, 10)), _NOT_JSON + "Expecting value at character 0", "bad_json"),
    _bad(
        "a raw NUL",
        b'{"text": "\x00"}',
        _NOT_JSON + "Invalid control character at character 10",
        "bad_json",
    ),
    _bad(
        "a raw tab",
        b'{"text": "a\tb"}',
        _NOT_JSON + "Invalid control character at character 11",
        "bad_json",
    ),
    _bad(
        "a NUL behind it",
        b'{"text": "a"}\x00',
        _NOT_JSON + "Extra data at character 13",
        "bad_json",
    ),
    _bad(
        "half a line",
        b'{"text": "ha',
        _NOT_JSON + "Unterminated string starting at character 9",
        "bad_json",
    ),
    _bad(
        "half an escape",
        b'{"text": "\\u12"}',
        _NOT_JSON + "Invalid \\uXXXX escape at character 11",
        "bad_json",
    ),
    _bad(
        "no such escape",
        b'{"text": "\\x41"}',
        _NOT_JSON + "Invalid \\escape at character 10",
        "bad_json",
    ),
    _bad(
        "single quotes",
        b"{'text': 'a'}",
        _NOT_JSON + "Expecting property name enclosed in double quotes at character 1",
        "bad_json",
    ),
    _bad(
        "a comma behind it", b'{"text": "a"},', _NOT_JSON + "Extra data at character 13", "bad_json"
    ),
    _bad(
        "two objects",
        b'{"text": "a"} {"text": "b"}',
        _NOT_JSON + "Extra data at character 14",
        "bad_json",
    ),
    _bad("an array", b"[7]", "it is a list, expected an object", "bad_json"),
    _bad("a bare text", b'"a"', "it is text, expected an object", "bad_json"),
    _bad("a bare number", b"7", "it is a number, expected an object", "bad_json"),
    _bad(
        "nested beyond reason",
        b'{"text": ' + b"[" * 4000,
        _NOT_JSON + "nested too deeply",
        "bad_json",
    ),
    _bad(
        "a line without end",
        b'{"text": "' + b"x" * 2 * LIMIT + b'"}',
        "the line " + _LARGE,
        "too_large",
    ),
)

_CSV_ROWS = (
    _bad("a byte that is not UTF-8", b"1,\xff", "'text' is not UTF-8", "bad_utf8"),
    _bad("a NUL", b"1,a\x00b", f"'text' {_NUL}", "bad_utf8"),
    _bad("a field too many", b"1,a,b", "line 27 has 3 fields, the header has 2", "bad_csv"),
    _bad("a field too few", b"a", "line 27 has 1 field, the header has 2", "bad_csv"),
    _bad("text behind a quote", b'1,"a" b', "line 27: ',' expected after '\"'", "bad_csv"),
)

_LINE = AT + 1
_TEXT_ROWS = (
    _bad("a byte that is not UTF-8", b"a\xffb", f"line {_LINE} is not UTF-8", "bad_utf8"),
    _bad("UTF-16", "ab".encode("utf-16"), f"line {_LINE} is not UTF-8", "bad_utf8"),
    _bad("UTF-16 without its mark", "ab".encode("utf-16-le"), f"line {_LINE} {_NUL}", "bad_utf8"),
    _bad("a line without end", b"x" * 2 * LIMIT, f"line {_LINE} {_LARGE}", "too_large"),
)

_BINARY_ROWS = (
    _bad("a byte that is not UTF-8", b"a\xffb", "'text' is not UTF-8", "bad_utf8"),
    _bad("half a character", "é".encode()[:1], "'text' is not UTF-8", "bad_utf8"),
    _bad("null", None, "the row has no 'text'", "null"),
    _bad("a text without end", b"x" * 2 * LIMIT, "the text " + _LARGE, "too_large"),
)

_TEXTS = tuple(text.encode() for text in GOOD)
FORMATS = {
    each.suffix: each
    for each in (
        Format(
            suffix=".jsonl",
            make=_lines,
            good=tuple(
                json.dumps({"text": text, "id": number}).encode()
                for number, text in enumerate(GOOD)
            ),
            rows=_JSON_ROWS,
            first_line=1,
        ),
        Format(
            suffix=".csv",
            make=_csv,
            good=tuple(b'%d,"%s"' % (number, text) for number, text in enumerate(_TEXTS)),
            rows=_CSV_ROWS,
        ),
        Format(
            suffix=".txt",
            make=_lines,
            good=_TEXTS,
            rows=_TEXT_ROWS,
            options=("--sample-by", "line"),
        ),
        Format(suffix=".parquet", make=_parquet, good=_TEXTS, rows=_BINARY_ROWS),
        Format(suffix=".arrow", make=_arrow, good=_TEXTS, rows=_BINARY_ROWS),
    )
}


@dataclass(frozen=True, kw_only=True)
class BadFile:
    """A file that cannot be used.

    sentence: a regular expression of the message behind the file's name. packed: whether .gz and
    .zst are bad too.

    make gives the plain file.
    """

    name: str
    suffix: str
    make: Callable[[], bytes]
    sentence: str
    packed: bool = True


def _file(
    name: str, suffix: str, make: Callable[[], bytes], sentence: str, *, packed: bool = True
) -> BadFile:
    return BadFile(name=name, suffix=suffix, make=make, sentence=sentence, packed=packed)


@cache
def whole(suffix: str) -> bytes:
    """A good file."""
    return FORMATS[suffix].make(FORMATS[suffix].good)


def flipped(data: bytes, at: int) -> bytes:
    """Data with the bits of one byte inverted."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _wrong_type(values: "pa.Array[Any]") -> Callable[[], bytes]:
    return lambda: write_parquet(pa.table({"text": values}))


_NO_ROWS = "holds no rows; expected at least one document"
_ARRAY_END = "fix it, as no row after it can be found in an array"
FILES = (
    _file(
        "empty", ".jsonl", lambda: b"", "(is empty; expected at least one document|holds no rows.*)"
    ),
    _file("blank lines", ".jsonl", lambda: b"\n \n\t\n", _NO_ROWS),
    _file("an empty array", ".json", lambda: b" [ ]\n", _NO_ROWS),
    _file("a header alone", ".csv", lambda: b"id,text\n", _NO_ROWS),
    _file("a table without rows", ".parquet", lambda: write_parquet(_column([])), _NO_ROWS),
    _file("a stream without rows", ".arrow", lambda: write_arrow(_column([])), _NO_ROWS),
    _file(
        "no such column, JSON",
        ".jsonl",
        lambda: b'{"body": "a", "id": 1}\n',
        "has no column 'text'; it has body, id.*",
    ),
    _file(
        "no such column, array",
        ".json",
        lambda: b'[{"body": "a"}]',
        "has no column 'text'; it has body:.*",
    ),
    _file(
        "no such column, CSV",
        ".csv",
        lambda: b"id,body\n1,a\n",
        "has no column 'text'; it has id, body.*",
    ),
    _file(
        "no such column, Parquet",
        ".parquet",
        lambda: write_parquet(pa.table({"body": ["a"]})),
        "has no column 'text'; it has body.*",
    ),
    _file(
        "a column twice",
        ".csv",
        lambda: b"text,text\na,b\n",
        "has more than one column 'text'; it has text.*",
    ),
    _file(
        "a quote never closed",
        ".csv",
        lambda: b'id,text\n1,"a\n2,b\n',
        "line 2: a quote in this row is never closed.*",
    ),
    _file(
        "a quoted field without end",
        ".csv",
        lambda: b'id,text\n1,"' + b"x\n" * LIMIT,
        "line 2: the row has more than 5,000 bytes.*",
    ),
    _file(
        "an array not closed",
        ".json",
        lambda: b'[{"text": "a"}',
        f"row 1: expected a comma or the end of the array before it; {_ARRAY_END}",
    ),
    _file(
        "an array with a broken element",
        ".json",
        lambda: b'[{"text": "a"}, {"text" "b"}]',
        f"row 1: invalid JSON: Expecting ':' delimiter at character 8; {_ARRAY_END}",
    ),
    _file(
        "an array and more",
        ".json",
        lambda: b'[{"text": "a"}]\n[{"text": "b"}]\n',
        f"row 1: text follows the end of the array; {_ARRAY_END}",
    ),
    _file(
        "an element without end",
        ".json",
        lambda: b'[{"text": "a"}, {"text": "' + b"x" * 10_000_000,
        rf"row 1: invalid JSON, or more than 5,000 bytes \(--max-row-size\); {_ARRAY_END}",
    ),
    _file("not Parquet", ".parquet", lambda: whole(".jsonl"), "cannot be read as parquet: .*"),
    _file(
        "Parquet cut off",
        ".parquet",
        lambda: whole(".parquet")[:-100],
        "cannot be read as parquet: .*",
    ),
    _file(
        "a Parquet footer flipped",
        ".parquet",
        lambda: flipped(whole(".parquet"), -6),
        "cannot be read as parquet.*",
    ),
    _file(
        "a Parquet page flipped",
        ".parquet",
        lambda: flipped(whole(".parquet"), len(whole(".parquet")) // 3),
        "cannot be read as parquet: could not verify page integrity.*",
    ),
    _file(
        "numbers in Parquet",
        ".parquet",
        _wrong_type(pa.array([1, 2])),
        "row 0: 'text' is int64, expected text.*",
    ),
    _file(
        "lists in Parquet",
        ".parquet",
        _wrong_type(pa.array([["a"]])),
        "row 0: 'text' is list<.*>, expected text.*",
    ),
    _file(
        "bytes in Parquet",
        ".parquet",
        _wrong_type(pa.array([b"a"])),
        "row 0: 'text' is binary, expected text.*",
    ),
    _file("not Arrow", ".arrow", lambda: whole(".jsonl"), "cannot be read as arrow: .*"),
    _file("Arrow cut off", ".arrow", lambda: whole(".arrow")[:-500], "cannot be read as arrow: .*"),
    _file(
        "a pickle",
        ".jsonl",
        lambda: b"\x80\x04\x95\x10\n.",
        "row 0 .line 1.: byte 0 of the line is not UTF-8.*",
    ),
    _file(
        "UTF-16",
        ".jsonl",
        lambda: whole(".jsonl").decode().encode("utf-16"),
        "row 0 .line 1.: byte 0 of .*",
    ),
    _file(
        "UTF-16, CSV",
        ".csv",
        lambda: whole(".csv").decode().encode("utf-16"),
        "has no column 'text'; it has .*",
    ),
)
