"""Bad inputs, as one table: the command line, and the names and numbers that its error must have.

Each of `CASES` ends with code 2 and a sentence.
"""

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.helpers.corpus import texts

AT = 25  # number of the bad row among good ones


class Bad(NamedTuple):
    """A command that is refused.

    arguments: of `packprep build`, or of another command that they begin with. says: words and
    whole numbers of the error. files: written into own/. yaml: of the build.
    """

    arguments: str
    says: str
    error: str = "ConfigError"
    files: Mapping[str, bytes] = {}
    yaml: Mapping[str, Any] = {}


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def column_of(values: list[bytes | None]) -> pa.Table:
    """A column that says it is text, whatever its bytes are."""
    array = pa.array(values, pa.binary())
    found = pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)
    return pa.table({"text": found})


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue()


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    """Data with the bits of one byte inverted."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


TEXTS = [text.encode() for text in texts(40)]
GOOD = lines(*({"text": text, "id": number} for number, text in enumerate(texts(40))))
PARQUET, ARROW = parquet(column_of([*TEXTS])), arrow(column_of([*TEXTS]))
ZST = zstandard.ZstdCompressor(write_checksum=True).compress(GOOD)
GZ = gzip.compress(GOOD, mtime=0)
TEXT = {"bad.jsonl": GOOD}

JSON_ROWS = {
    b'{"text": "\xff"}': "byte 10 UTF-8",
    b'{"text": "\\ud800"}': "'text' UTF-8",
    b"{'text': 'a'}": "JSON character 1",
    b'\xef\xbb\xbf{"text": "a"}': "JSON character 0",
    b'{"text": 7}': "'text' 7",
    b'{"text": ["a"]}': "'text' list",
    b'{"text": {"text": "a"}}': "'text' object",
    b'{"text": null}': "'text'",
    b'{"text": "a", "text": "b"}': "'text' duplicate",
    b'{"text": "a\tb"}': "control character 11",
    b'{"text": "a"},': "JSON character 13",
    b'{"text": "a"} {"text": "b"}': "JSON character 14",
    b'{"text": "ha': "JSON character 9",
    b"[7]": "list object",
    b"7": "7 object",
    b'{"text": ' + b"[" * 100_000: "JSON deeply",
}
"""Bad lines, as row 25 of 41."""
CSV_ROWS = {
    b"1,\xff": "'text' UTF-8",
    b"1,a\x00b": "'text' NUL",
    b"1,a,b": "line 27 3 2",
    b"a": "line 27 1 2",
    b'1,"a" b': "line 27 '\"'",
}
BINARY_ROWS = {b"a\xffb": "'text' UTF-8", "é".encode()[:1]: "'text' UTF-8", None: "'text'"}


def rows() -> Iterator[Bad]:
    """A bad row among good ones, of each format."""
    row, error = f"row {AT}", "InputError"

    def among(good: list[Any], bad: Any) -> list[Any]:
        return [*good[:AT], bad, *good[AT:]]

    for bad, says in JSON_ROWS.items():
        files = {"bad.jsonl": b"\n".join(among(GOOD.splitlines(), bad)) + b"\n"}
        yield Bad("own/bad.jsonl", f"own/bad.jsonl {row} line 26 {says}", error, files)
    fields = [b'%d,"%s"' % (number, text) for number, text in enumerate(TEXTS)]
    for bad, says in CSV_ROWS.items():
        files = {"bad.csv": b"\n".join([b"id,text", *among(fields, bad)]) + b"\n"}
        yield Bad("own/bad.csv", f"own/bad.csv {row} {says}", error, files)
    for binary, says in BINARY_ROWS.items():
        table = column_of(among(TEXTS, binary))
        for suffix, made in (("parquet", parquet(table)), ("arrow", arrow(table))):
            name = f"bad.{suffix}"
            yield Bad(f"own/{name}", f"own/{name} {row} {says}", error, {name: made})


FILES: dict[str, list[tuple[bytes, str]]] = {
    "jsonl": [
        (b"", "one document"),
        (b'{"body": "a", "id": 1}\n', "'text' body id --text"),
        (GOOD.decode().encode("utf-16"), "row 0 line 1 byte UTF-8"),
    ],
    "json": [
        (b" [ ]\n", "rows one document"),
        (b'[{"text": "a"}', "line 1 JSON"),
        (b'[{"text": "a"}, {"text" "b"}]', "line 1 character"),
    ],
    "csv": [
        (b"id,text\n", "rows one document"),
        (b"text,text\na,b\n", "'text'"),
        (b'id,text\n1,"a\n2,b\n', "line 2"),
    ],
    "parquet": [
        (parquet(column_of([])), "rows one document"),
        (GOOD, "parquet fetch"),
        (flipped(PARQUET, len(PARQUET) // 3), "parquet fetch"),
        (parquet(pa.table({"text": [1, 2]})), "row 0 'text' int64"),
    ],
    "arrow": [
        (arrow(column_of([])), "rows one document"),
        (GOOD, "arrow fetch"),
        (ARROW[:-500], "arrow fetch"),
    ],
    "jsonl.gz": [(flipped(GZ, -5), "byte fetch"), (b"plain text\n" * 99, "byte fetch")],
    "jsonl.zst": [(flipped(ZST, -5), "byte fetch"), (b"plain text\n" * 99, "byte fetch")],
    "pdf": [(b"x", ".jsonl .parquet")],
    "bin": [(b"\1\0" * 8, "own/bad.idx")],
    "ds": [(b"\1\0" * 8, "own/bad.ds.index")],
}
"""Bad files by suffix; `own/bad.SUFFIX` is in their errors too."""


def files() -> Iterator[Bad]:
    for suffix, contents in FILES.items():
        for content, says in contents:
            name = f"bad.{suffix}"
            yield Bad(f"own/{name}", f"own/{name} {says}", "InputError", {name: content})


CHAT = "--tokenizer in/chat --messages messages"
PAIRS = "in/pairs.jsonl --pairs prompt,chosen,rejected"
USER, ANSWER = ({"role": role, "content": "hi"} for role in ("user", "assistant"))
MESSAGES: list[tuple[Any, str]] = [
    (None, "'messages' null"),
    ([USER, ANSWER | {"content": ["a", {"type": "image"}]}], "part 1 message 1 'image'"),
    ([USER, ANSWER | {"train": "no"}], "message 1 'no' train"),
]
IDS = {"ids": [5, 6, 7], "labels": [-100, 6, 7], "mask": [0, 1, 1], "w": [1, 2, 3]}
OF_IDS: list[tuple[str, dict[str, Any], str]] = [
    ("ids", {"ids": [5, 9999]}, "'ids' 9999 1 319"),
    ("ids", {"ids": "5 6"}, "'ids' 319"),
    ("ids,labels:labels", {"labels": [6, 7, 8, 9]}, "'labels' 4 3 'ids'"),
    ("ids,labels:labels", {"labels": [-100, 99999, 7]}, "'labels' 99999 1 -100 6"),
    ("ids,mask:mask", {"mask": [0, 2, 1]}, "'mask' 2 1"),
    ("ids --carry w", {"w": [1]}, "'w' 1 3 'ids'"),
]
PIECES: list[tuple[Any, str]] = [
    (None, "'pieces' null"),
    ([{"text": "a", "token_ids": [5], "train": True}], "piece 0 'text' 'token_ids'"),
]
TEMPLATES: dict[bytes, tuple[str, str]] = {
    b"{% for m in messages %}": ("ConfigError", "own/x.jinja line 1"),
    b"\xff": ("ConfigError", "own/x.jinja UTF-8"),
    b"{{ raise_exception('no') }}": ("InputError", "own/bad.jsonl row 0 template"),
    b"{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}": (
        *("InputError", "own/bad.jsonl row 0 template"),
    ),
}


def of_rows() -> Iterator[Bad]:
    """Chats, ids and pieces, of which the last one is bad."""
    good = {"messages": [USER, ANSWER]}

    def bad(arguments: str, says: str, *rows: Any) -> Bad:
        place = f"own/bad.jsonl row {len(rows) - 1} line {len(rows)}"
        files = {"bad.jsonl": lines(*rows)}
        return Bad(f"own/bad.jsonl {arguments}", f"{place} {says}", "InputError", files)

    for messages, says in MESSAGES:
        yield bad(CHAT, says, good, good, {"messages": messages})
    for ids, changed, says in OF_IDS:
        rows = [{name: row[name] for name in {"ids", *changed}} for row in (IDS, IDS | changed)]
        yield bad(f"--ids {ids}", says, *rows)
    pieces = [{"text": "a", "train": False}, {"text": "b", "train": True}]
    for row, says in PIECES:
        yield bad("--pieces pieces", says, {"pieces": pieces}, {"pieces": row})
    sides = {"prompt": "a", "chosen": "b"}
    yield bad("--pairs prompt,chosen,rejected", "'rejected'", sides | {"rejected": "c"}, sides)
    yield bad("--messages q,a", "'a'", {"q": "a", "a": "b"}, {"q": "a"})
    for template, (error, says) in TEMPLATES.items():
        given = {"bad.jsonl": lines(good), "x.jinja": template}
        yield Bad(f"own/bad.jsonl {CHAT} --chat-template own/x.jinja", says, error, given)
    for content in (b"", b"x", b"{}", b"[]"):
        given = TEXT | {"t/tokenizer.json": content}
        yield Bad("own/bad.jsonl --tokenizer own/t", "own/t tokenizer.json", "InputError", given)


OF_YAML: dict[bytes, str] = {
    b"a: [": "own/x.yaml line 1",
    b"- a\n": "own/x.yaml NAME",
    b"max_lenght: 64\n": "own/x.yaml 'max_lenght' 'max_length'",
    b"seed: 1\nseed: 2\n": "own/x.yaml 'seed'",
    b"max-length: 64\nmax_length: 64\n": "own/x.yaml 'max_length'",
    b"seed: ${RECORD_NOT_SET}\n": "own/x.yaml line 1 RECORD_NOT_SET",
    b"include: gone.yaml\n": "own/x.yaml own/gone.yaml",
    b"include: x.yaml\n": "own/x.yaml 8",
    b"a: &a [1]\nb: *a\n": "own/x.yaml line 2",
    b"max_length: [1]\n": "--max-length 1 2",
}
INPUT, CONFIG = "InputError", "ConfigError"
SHORT = {"s.jsonl": b'{"text": "a"}\n' * 3}
LISTED = [
    # Places
    Bad("own/gone.jsonl", "own/gone.jsonl", INPUT),
    Bad("own/*.parquet", "own/*.parquet .jsonl", INPUT, TEXT),
    Bad("own/empty", "own/empty .jsonl", INPUT, {"empty/x.pdf": b"x"}),
    Bad("", "own/x.txt row 2 line 6", INPUT, {"x.txt": b"a\nb\n\nc\n\n\xff\n"}, {
        "sources": [{"path": "own/x.txt", "sample_by": "paragraph"}]}),
    Bad("in/a.jsonl own/bad.jsonl", "own/bad.jsonl row 0 'text' 1", INPUT, {
        "bad.jsonl": b'{"text": 1}\n'}),
    Bad("", "source", INPUT),
    Bad("own/x.bin", "own/x.idx Megatron", "FormatError", {
        "x.bin": b"\1\0" * 8, "x.idx": b"MMIDIDX\0\0" + b"\1" * 20}),
    Bad("own/x.jsonl", "train 3", INPUT, {"x.jsonl": b'{"text": ""}\n' * 3}),
    # Values of options
    Bad("in/a.jsonl --max-length 1", "--max-length '1' 2"),
    Bad("in/a.jsonl --strategy best", "--strategy 'best' 'best_fit'"),
    Bad("in/a.jsonl --strategy balanced:3", "balanced 3 235"),
    Bad("in/a.jsonl --overflow cut", "--overflow 'cut' truncate"),
    Bad("in/a.jsonl --overflow truncate:middle", "--overflow 'truncate:middle' truncate:left"),
    Bad("in/a.jsonl --overflow error", "in/a.jsonl row 2 112 64 --overflow", INPUT),
    Bad("own/s.jsonl in/a.jsonl --overflow error", "in/a.jsonl row 2 112 64", INPUT, SHORT),
    Bad("in/a.jsonl --stride 64", "--stride 64"),
    Bad("in/a.jsonl --order random", "--order 'random' shuffle"),
    Bad("in/a.jsonl --holdout 1", "--holdout '1'"),
    Bad("in/a.jsonl --holdout 0.5 --limit 2", "train 2 holdout", INPUT),
    Bad("in/a.jsonl --min-pack-tokens 65", "--min-pack-tokens 65 --max-length 64"),
    Bad("in/a.jsonl --pad-to-multiple 3", "--max-length 64 --pad-to-multiple 3"),
    Bad("in/a.jsonl --multiple 0", "--multiple '0' 1"),
    Bad("in/c.jsonl --multiple 5000", "train 121 60 5000", INPUT),
    Bad("in/a.jsonl --bos <no>", "--bos '<no>' in/tiny"),
    Bad("in/a.jsonl --turns all", "--turns 'all' each"),
    Bad("in/a.jsonl", "--max-memory 'much'", yaml={"max_memory": "much"}),
    Bad("in/a.jsonl", "--engine 'rust' fastokens", yaml={"engine": "rust"}),
    Bad("in/a.jsonl", "--truncate-at '(' 0", yaml={"truncate_at": "("}),
    Bad("in/packed_ids.jsonl --ids ids", "--split-at 'pad' eos", yaml={"split_at": "pad"}),
    Bad("", "in/a.jsonl limit 0 1", yaml={"sources": [{"path": "in/a.jsonl", "limit": 0}]}),
    Bad("in/a.jsonl --columns labels", "--columns 'labels' position_ids"),
    Bad("in/a.jsonl in/b.jsonl --weights 1", "--weights 1 2"),
    Bad("in/rows.jsonl --carry stars:complex", "--carry 'stars:complex' int32"),
    Bad("in/rows.jsonl --carry price", "in/rows.jsonl 'price' stars --carry", INPUT),
    Bad("in/rows.jsonl --carry title", "in/rows.jsonl 'title' string", INPUT),
    Bad("in/rows.jsonl --carry quality:int32", "in/rows.jsonl row 1 'quality' 0.142857", INPUT),
    Bad("in/rows.jsonl --text {title", "--text '{title'"),
    Bad("in/rows.jsonl --text {title!r}{body:>9}", "--text '{title!r}{body:>9}' {title}"),
    *(Bad(f"{rows} --max-length 64", "in/x.jsonl text sample_by", yaml={"sources": [
        {"path": "in/x.jsonl", "text": "body"} | own]})
        for rows, own in (("--messages m", {}), ("--pairs a,b", {}), ("", {"ids": "ids"}))),
    Bad("in/ids.jsonl --tokenizer in/chat --messages auto", "in/ids.jsonl messages ids", INPUT),
    Bad("in/openai.jsonl --messages messages", "--chat-template"),
    Bad(f"in/openai.jsonl {CHAT} --chat-template own/gone.jinja", "own/gone.jinja"),
    Bad("in/a.jsonl --tokenizer own/gone", "own/gone", INPUT),
    Bad("in/a.jsonl --tokenizer in/bare", "in/bare BOS --bos"),
    Bad("in/a.jsonl --tokenizer own/t", "own/t/x.tiktoken line 2 base64", INPUT, {
        "t/x.tiktoken": b"IQ== 0\nx 1 7\n", "t/tokenizer_config.json": b'{"pat_str": "a"}'}),
    Bad("in/a.jsonl --max-lenght 64", "'--max-lenght' '--max-length'"),
    # Options that exclude each other
    Bad("in/rows.jsonl --text body --text {body}", "--text twice"),
    Bad(f"in/openai.jsonl {CHAT} --ids ids", "--messages --ids"),
    Bad(f"in/openai.jsonl {CHAT} --bos <s>", "--bos template"),
    Bad(f"in/openai.jsonl {CHAT} --turns each --train-on all", "--turns --train-on"),
    Bad(f"in/openai.jsonl {CHAT}", "--truncate-at messages", yaml={"truncate_at": "x"}),
    Bad(f"{PAIRS} --overflow split", "--overflow split pairs"),
    Bad(f"{PAIRS} --max-segments 1", "pair 2 1"),
    Bad(f"{PAIRS} --columns hf", "--columns hf --pairs"),
    Bad("in/pairs.jsonl --pairs prompt,chosen,chosen", "--pairs 'prompt,chosen,chosen'"),
    Bad("in/a.jsonl --strategy wrapped --stride 4", "--strategy wrapped --stride"),
    Bad("in/a.jsonl --stride 4 --overflow truncate", "--overflow truncate --stride"),
    Bad("in/a.jsonl --overflow truncate:balanced", "--overflow truncate:balanced"),
    Bad("in/a.jsonl --min-document-tokens 9 --max-document-tokens 8", "8 9"),
    Bad("in/a.jsonl --tokenizer 500", "--tokenizer --ids"),
    Bad("in/a.jsonl", "--split-at ids text", yaml={"split_at": "eos"}),
    # Other commands
    Bad("bulid in/a.jsonl", "'bulid'"),
    Bad("in/a.jsonl -c own/gone.yaml", "own/gone.yaml"),
    Bad("pack own/gone --max-length 64 -o out", "own/gone", INPUT),
    Bad("verify own/gone", "own/gone", INPUT),
    Bad("show own/gone", "own/gone", "FormatError"),
    Bad("export own/gone -o x --to parquet", "own/gone", "FormatError"),
]  # fmt: skip

CASES = [
    *(*rows(), *files(), *of_rows(), *LISTED),
    *(
        Bad("in/a.jsonl -c own/x.yaml", says, files={"x.yaml": content})
        for content, says in OF_YAML.items()
    ),
]
