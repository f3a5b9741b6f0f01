"""Every bad input is one sentence naming what and where, exit code 2 and no output; skipped rows are counted."""

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packprep import build
from packprep.report import read_report

from .command import Result, run
from .corpus import save_tokenizer, texts, write_jsonl
from .files import PACK, config

GOOD = [json.dumps({"text": text}).encode() for text in texts(600)]
WHOLE = b"\n".join(GOOD) + b"\n"


def with_line(line: bytes, at: int = 400) -> bytes:
    return b"\n".join([*GOOD[:at], line, *GOOD[at:]]) + b"\n"


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts(600)}), sink, write_page_checksum=True)
    return sink.getvalue()


def arrow() -> bytes:
    table, sink = pa.table({"text": texts(600)}), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def empty_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), sink)
    return sink.getvalue()


def build_one(folder: Path, path: Path, *options: str) -> Result:
    """`packprep build PATH`, which must leave either a whole output or nothing."""
    tokenizer = save_tokenizer(folder / "tokenizer")
    result = run("build", path, "-o", folder / "out", "--tokenizer", tokenizer, "--max-length", 64, *options)
    assert (folder / "out").exists() == (result.code == 0)
    assert not (folder / "out.incomplete").exists()
    return result


def refused(folder: Path, path: Path, *options: str) -> str:
    """The one sentence of a build that is refused, without its prefix."""
    result = build_one(folder, path, *options)
    assert (result.code, result.out) == (2, ""), result
    assert result.err.startswith("packprep: ") and result.err.count("\n") == 1, result.err
    return result.err.removeprefix("packprep: ").rstrip("\n")


# What is wrong with row 400 of a file of JSON lines: the sentence, and the reason it is counted under when skipped.
BAD_ROWS = {
    "bytes that are not UTF-8": (b'{"text": "\xff"}', "byte 10 of the line is not UTF-8", "bad_utf8"),
    "a lone surrogate": (b'{"text": "\\ud800"}', "'text' has a lone surrogate", "bad_utf8"),
    "a number": (b'{"text": 7}', "'text' is a number, expected text", "not_text"),
    "a list": (b'{"text": ["a"]}', "'text' is a list, expected text", "not_text"),
    "null": (b'{"text": null}', "the row has no 'text'", "null"),
    "no such key": (b'{"body": "a"}', "the row has no 'text'", "null"),
    "a key twice": (b'{"text": "a", "text": "b"}', "the key 'text' stands twice", "bad_json"),
    "garbage": (b"garbage", "it is not JSON: Expecting value at character 0", "bad_json"),
    "a raw NUL": (b'{"text": "\x00"}', "it is not JSON: Invalid control character at character 10", "bad_json"),
    "half a line": (b'{"text": "ha', "it is not JSON: Unterminated string starting at character 9", "bad_json"),
    "no object": (b"[7]", "it is a list, expected an object", "bad_json"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
@pytest.mark.parametrize("suffix", PACK)
def test_a_bad_row_is_named_with_its_file_row_and_line(tmp_path: Path, kind: str, suffix: str) -> None:
    line, sentence, _ = BAD_ROWS[kind]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACK[suffix](with_line(line)))
    assert refused(tmp_path, path) == (
        f"{path} row 400 (line 401): {sentence}; mend it, or skip such rows with --on-error skip"
    )


def test_the_last_line_cut_in_half_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(WHOLE + b'{"text": "the la')
    assert f"{path} row 600 (line 601): it is not JSON" in refused(tmp_path, path)


def test_skipped_rows_are_counted_exactly_by_reason_and_every_other_row_is_packed(tmp_path: Path) -> None:
    lines = [*GOOD]
    for number, (line, _, _) in enumerate(BAD_ROWS.values()):
        for repeat in range(number + 1):
            lines.insert(40 * number + repeat, line)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    expected: dict[str, int] = {}
    for number, (_, _, reason) in enumerate(BAD_ROWS.values()):
        expected[reason] = expected.get(reason, 0) + number + 1
    result = build_one(tmp_path, tmp_path / "a.jsonl", "--on-error", "skip", "--json")
    report = json.loads(result.out)
    assert report["documents"]["skipped"] == expected
    assert report["documents"]["in"] == len(lines)

    write_jsonl(tmp_path / "good.jsonl", texts(600))
    good = config(
        sources=tmp_path / "good.jsonl",
        output=tmp_path / "good",
        tokenizer=tmp_path / "tokenizer",
        max_length=64,
    )
    build(good)
    whole = read_report(tmp_path / "good")
    assert report["tokens"] == whole["tokens"]
    assert report["documents"]["empty"] == whole["documents"]["empty"]


def test_a_number_in_the_second_file_is_not_cast_to_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", ["text"])
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"text": 7}])
    assert "b.jsonl row 0 (line 1): 'text' is a number, expected text" in refused(tmp_path, tmp_path / "in")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"", "is empty; expected at least one document"),
        ("a.jsonl", b"\n\n", "holds no rows; expected at least one document"),
        ("a.jsonl.gz", gzip.compress(b""), "holds no rows; expected at least one document"),
        ("a.json", b"[]", "holds no rows; expected at least one document"),
        ("a.json", b'[{"text": "a"}', "cannot be read as json: Expecting ',' delimiter"),
        ("a.csv", b"id,text\n", "holds no rows; expected at least one document"),
        ("a.parquet", empty_parquet(), "holds no rows; expected at least one document"),
        ("a.jsonl.gz", gzip.compress(WHOLE)[:-20], "is cut off: the compressed data ends early; fetch the file again"),
        ("a.jsonl.zst", zstandard.compress(WHOLE)[:-20], "is cut off: the compressed data ends early"),
        ("a.csv.gz", gzip.compress(b"id,text\n" + b"1,a\n" * 9999)[:-20], "is cut off: the compressed data ends early"),
        ("a.txt.zst", zstandard.compress(WHOLE)[:-20], "is cut off: the compressed data ends early"),
        ("a.parquet.gz", gzip.compress(parquet())[:-20], "is cut off: the compressed data ends early"),
        ("a.jsonl.gz", flipped(gzip.compress(WHOLE), 2000), "does not decompress"),
        ("a.jsonl.zst", flipped(zstandard.compress(WHOLE), len(zstandard.compress(WHOLE)) // 2), "does not decompress"),
        ("a.jsonl.gz", WHOLE, "does not decompress"),
        ("a.jsonl.zst", WHOLE, "does not decompress"),
        ("a.parquet", parquet()[:-100], "cannot be read as parquet"),
        ("a.parquet", flipped(parquet(), 3000), "cannot be read as parquet: could not verify page integrity"),
        ("a.parquet", flipped(parquet(), len(parquet()) // 3), "cannot be read as parquet: could not verify page"),
        ("a.parquet", WHOLE, "cannot be read as parquet"),
        ("a.arrow", arrow()[:-1000], "cannot be read as arrow"),
        ("a.arrow", WHOLE, "cannot be read as arrow: Not an Arrow file"),
        ("a.csv", b'id,text\n1,"a\n', "line 2: unexpected end of data; quote it as CSV does"),
        ("a.csv", b"id,text\n1,a,b\n", "row 0: line 2 has 3 fields, the header 2"),
        ("a.csv", b"text,text\na,b\n", "has more than one column 'text'; it has text, text"),
        ("a.txt", b"good\nb\xff\n", "is not UTF-8 in line 2; save it as UTF-8"),
        ("a.bin", b"x", "is of no known format"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert refused(tmp_path, tmp_path / name).startswith(f"{tmp_path / name} {sentence}")
    assert refused(tmp_path, tmp_path / name, "--dry-run").startswith(f"{tmp_path / name} {sentence}")


def test_a_column_that_is_not_text_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    assert "a.parquet row 0: 'text' is int64, expected text" in refused(tmp_path, tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["gone.jsonl", "gone/*.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    assert str(tmp_path / name) in refused(tmp_path, tmp_path / name)


def test_a_missing_column_says_which_there_are(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": "a", "id": 1}])
    assert refused(tmp_path, path) == (
        f"{path} has no column 'text'; it has body, id: choose with --text-column or --text-template"
    )


def test_odd_but_good_files_build(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + WHOLE)
    (tmp_path / "in" / "crlf.jsonl").write_bytes(WHOLE.replace(b"\n", b"\r\n"))
    (tmp_path / "in" / "escaped.jsonl").write_bytes(b'{"text": "a\\u0000b"}\n')
    (tmp_path / "in" / "other.jsonl").write_bytes(b'{"text": "a", "id": {"b": 1}}\n{"text": "b", "id": [1]}\n')
    report = json.loads(build_one(tmp_path, tmp_path / "in", "--json").out)
    assert report["documents"]["in"] == 2 * 600 + 1 + 2


def test_a_document_too_long_names_its_file_and_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["short", "x y " * 500])
    sentence = refused(tmp_path, path, "--overflow", "error")
    assert sentence.startswith(f"{path} row 1 has ")
    assert sentence.endswith("tokens but a pack holds 64; choose --overflow split, truncate or drop")


def test_an_output_of_other_settings_is_kept_and_the_difference_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(20))
    assert build_one(tmp_path, path).code == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    tokenizer = tmp_path / "tokenizer"
    refusal = run("build", path, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--max-length", 32)
    assert refusal.code == 2
    assert "max_length 64 there, 32 here" in refusal.err
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    again = run("build", path, "-o", tmp_path / "out", "--tokenizer", tokenizer, "--max-length", 64)
    assert again.code == 0
    assert "nothing to do" in again.err
