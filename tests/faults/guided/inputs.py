"""Targets that are sources of a build, and the chat templates and options that it reads."""

import csv
import gzip
import io
import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from packprep import BuildConfig
from packprep.chat.conversations import Conversation, Message
from packprep.chat.marks import with_texts
from packprep.chat.rendering.traced_text import Recording
from packprep.chat.rendering.value_limits import MAX_SIZE
from packprep.chat.template import ChatTemplate, load_chat_template
from packprep.chat.turns import TurnFinder
from packprep.config.yaml_file import from_yaml, to_yaml
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from tests.faults.fuzz import Target, change_json, joined, parted
from tests.faults.kinds import write_arrow, write_parquet
from tests.helpers.corpus import resolved, rows_in, save_tokenizer
from tests.helpers.files import config
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron, write_npy

LARGEST_ROW = 1 << 20
TABLE = pa.table({"id": [1, 2, 3], "text": ["a", "b\nc", "日本"]})


def rows_read(path: Path, finder: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Rows of a source with bad ones skipped, as a build reads them."""
    settings = config(sources=[path], on_error="skip", max_row_size=LARGEST_ROW, **options)
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for source in resolved(settings, scratch):
        for table in rows_in(source, settings, scratch, vocab_size=1 << 30, finder=finder):
            rows += table.to_pylist()
    return rows


def compare(rows: Sequence[dict[str, Any]], expected: Sequence[str | None]) -> None:
    """Every row has the expected text, or a problem. expected: None where no text is right."""
    assert len(rows) == len(expected), f"{len(rows)} rows of {len(expected)}"
    for number, (row, text) in enumerate(zip(rows, expected, strict=True)):
        if row["problem"] is None:
            assert row["text"] is not None, f"row {number} has neither text nor problem"
            assert row["text"] == text, f"row {number} is {row['text']!r}, not {text!r}"


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# Text of every format ----------------------------------------------------------------------


def _text_of(value: Any) -> str | None:
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return None
    return text if text.encode(errors="replace").decode() == text else None  # no lone surrogates


def _parsed(content: bytes) -> Any:
    """A value of JSON, without texts that are there twice; None for what is no JSON.

    Bytes that are not UTF-8 matter only where they are the text.
    """
    try:
        text = content.decode(errors="surrogateescape")
        return json.loads(text, object_pairs_hook=_table)
    except (ValueError, RecursionError):
        return None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = sum(key == "text" for key, _ in pairs) > 1
    return dict(pairs) | ({"text": None} if twice else {})


def _check_json(data: bytes, folder: Path) -> bool:
    rows = rows_read(_written(folder, "a.jsonl", data))
    content = data.removeprefix(b"\xef\xbb\xbf")
    whole = _parsed(content)
    if content.lstrip()[:1] == b"[":
        if isinstance(whole, list):
            compare(rows, [_text_of(value) for value in whole])
        return True
    lines = [line for line in content.split(b"\n") if line.strip()]
    if isinstance(whole, dict) and len(rows) == 1:
        compare(rows, [_text_of(whole)])
    else:
        compare(rows, [_text_of(_parsed(line)) for line in lines])
    return True


def _json_seeds(_: Path) -> list[bytes]:
    rows = TABLE.to_pylist()
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    odd = b'{"text": "\\u00e9\\ud83d\\ude00\\n", "id": [1, {"a": null}]}\r\n\n{"text": null}\n'
    return [lines, lines + b"\n" + odd, json.dumps(rows, indent=1).encode(), odd]


def _check_csv(data: bytes, folder: Path) -> bool:
    rows = rows_read(_written(folder, "a.csv", data))
    text = data.decode("utf-8-sig", "surrogateescape")
    try:
        read = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error:
        return True
    place = read[0].index("text")
    width = len(read[0])
    compare(rows, [row[place] if len(row) == width else None for row in read[1:]])
    return True


def _check_text(data: bytes, folder: Path) -> bool:
    path = _written(folder, "a.txt", data)
    text = data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    compare(rows_read(path, sample_by="document"), [text])
    compare(rows_read(path, sample_by="line"), lines[:-1] if lines[-1] == "" else lines)
    paragraphs = [each for each in text.split("\n\n") if each]
    compare(rows_read(path, sample_by="paragraph"), paragraphs)
    return True


def _unzstd(data: bytes) -> bytes:
    """Frames one after another. Raises for one that is cut."""
    content = b""
    while data and len(content) < LARGEST_ROW:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        content += reader.decompress(data)
        assert reader.eof, "the data ends within a frame"
        data = reader.unused_data
    return content


def _check_packed(suffix: str, unpack: Callable[[bytes], bytes]) -> Callable[[bytes, Path], bool]:
    def check(data: bytes, folder: Path) -> bool:
        rows = rows_read(_written(folder, f"a.txt.{suffix}", data), sample_by="line")
        content = unpack(data)
        if len(content) < LARGEST_ROW:
            plain = rows_read(_written(folder, "b.txt", content), sample_by="line")
            assert [row["text"] for row in rows] == [row["text"] for row in plain]
        return True

    return check


def _check_column(name: str, read: Callable[[Path], pa.Table]) -> Callable[[bytes, Path], bool]:
    """Of a binary format: the column of text as Arrow reads it at once."""

    def check(data: bytes, folder: Path) -> bool:
        path = _written(folder, name, data)
        rows = rows_read(path)
        compare(rows, [text for chunk in read(path)["text"].chunks for text in _strings(chunk)])
        return True

    return check


def _read_text_of_parquet(path: Path) -> pa.Table:
    return pq.read_table(path, columns=["text"])  # another column may be damaged


def _strings(array: Any) -> Iterator[str | None]:
    """Texts of an array; None for null and for bytes that are not UTF-8."""
    if isinstance(array, pa.DictionaryArray):
        texts = [*_strings(array.dictionary)]
        yield from (None if at is None else texts[at] for at in array.indices.to_pylist())
        return
    large = pa.types.is_large_string(array.type)
    for value in array.view(pa.large_binary() if large else pa.binary()).to_pylist():
        try:
            yield None if value is None else value.decode()
        except UnicodeDecodeError:
            yield None


def _read_arrow(path: Path) -> pa.Table:
    is_file = path.read_bytes()[:6] == b"ARROW1"
    with pa.OSFile(str(path), "r") as file:
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()


def _arrow_seeds(_: Path) -> list[bytes]:
    encoded = TABLE.set_column(1, "text", TABLE["text"].dictionary_encode())
    large = TABLE.set_column(1, "text", TABLE["text"].cast(pa.large_string()))
    packed = [write_arrow(TABLE, compression=name) for name in ("lz4", "zstd")]
    plain = map(write_arrow, (TABLE, encoded, large))
    return [*plain, write_arrow(TABLE, is_file=True), *packed]


def _parquet_seeds(_: Path) -> list[bytes]:
    options: list[dict[str, Any]] = [
        {"write_page_checksum": False},
        {"compression": "zstd"},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    ]
    return [write_parquet(TABLE, **each) for each in options]


# Token ids ---------------------------------------------------------------------------------


def _documents(tokens: Any, ends: Sequence[int]) -> list[list[int]]:
    return [tokens[first:last].tolist() for first, last in pairwise([0, *ends])]


def _megatron_documents(data: bytes, index: bytes) -> list[list[int]]:
    _, _, code, sequences, ends = struct.unpack_from("<9sQBQQ", index)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    assert len(index) in (34 + 12 * sequences + 8 * ends, 34 + 13 * sequences + 8 * ends)
    dtype = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}[code]
    return _documents(np.frombuffer(data, dtype), np.cumsum(lengths, dtype=np.int64).tolist())


def _npy_documents(data: bytes, offsets: bytes) -> list[list[int]]:
    ends = np.load(io.BytesIO(offsets), allow_pickle=False).astype(np.int64)
    if data.startswith(b"\x93NUMPY"):
        tokens = np.load(io.BytesIO(data), allow_pickle=False)
    else:
        tokens = np.frombuffer(data, f"<u{len(data) // max(int(ends[-1]), 1) or 1}")
    return _documents(tokens, ends[1:].tolist())


def _datatrove_documents(data: bytes, index: bytes) -> list[list[int]]:
    ends = np.frombuffer(index, "<u8").astype(np.int64).tolist()
    tokens = np.frombuffer(data, "<u2" if len(data) == 2 * ends[-1] else "<u4")
    return _documents(tokens, ends)


_TOKEN_FILES: list[tuple[str, str, Callable[[bytes, bytes], list[list[int]]]]] = [
    ("x.bin", "x.idx", _megatron_documents),
    ("x.npy", "x.offsets.npy", _npy_documents),
    ("x.ds", "x.ds.index", _datatrove_documents),
]


def _check_tokens(data: bytes, folder: Path) -> bool:
    kind, *files = parted(data, 5)
    name, index, expected = _TOKEN_FILES[(kind or b"\0")[0] % 3]
    path = _written(folder, name, files[0])
    _written(folder, index, files[1])
    beside = {"x.npy": ("x.csv.gz", "x.label_mask.npy"), "x.ds": ("x.ds.metadata", "x.ds.loss")}
    for ending, content in zip(beside.get(name, ()), files[2:], strict=False):
        if content:
            _written(folder, ending, content)
    mask = "mask" if files[3] and name != "x.bin" else None
    rows = rows_read(path, input_ids_column="input_ids", loss_mask_column=mask)
    documents = expected(files[0], files[1])
    if name == "x.npy" and files[2]:  # the offsets are those of packs of these documents
        tokens = [token for document in documents for token in document]
        lines = gzip.decompress(files[2]).decode().splitlines()
        spans = [map(int, line.split(",")[:2]) for line in lines]
        documents = [tokens[start:end] for start, end in spans]
    assert len(rows) == len(documents)
    for number, (row, document) in enumerate(zip(rows, documents, strict=True)):
        ids = row["ids"]
        assert row["problem"] is not None or ids == document, f"document {number} is {ids}"
    return True


def _token_seeds(folder: Path) -> list[bytes]:
    documents = [[1, 2, 3], [], [4, 5], [6]]
    seeds = []
    for number, write in ((0, write_megatron), (1, write_npy), (2, write_datatrove)):
        for dtype in ("u2", "u4" if number else "i4"):
            path = write(folder / f"{number}{dtype}", documents, dtype)
            index = path.parent / _TOKEN_FILES[number][1]
            more = path.parent / "x.ds.metadata"
            rest = more.read_bytes() if more.exists() else b""
            seeds.append(joined(bytes([number]), path.read_bytes(), index.read_bytes(), rest, b""))
    dolma = write_dolma(folder / "dolma", documents)
    lines = (folder / "dolma" / "x.csv.gz").read_bytes()
    write_npy(folder / "dolma", documents)
    offsets = (folder / "dolma" / "x.offsets.npy").read_bytes()
    return [*seeds, joined(b"\1", dolma.read_bytes(), offsets, lines, bytes([0, 1, 1, 0, 1, 0]))]


# Conversations, templates, options ---------------------------------------------------------

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_TEMPLATES = Path(__file__).parents[2] / "helpers" / "templates"
_CHAT = [Message(role="user", content="Hi é"), Message(role="assistant", content="Hello\n")]
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@cache
def _finders() -> list[tuple[TurnFinder, TurnFinder]]:
    """For each template: one that composes rows of a known shape, and one that renders all."""
    sources = [CHATML, (_TEMPLATES / "qwen3.jinja").read_text()]
    pairs = []
    for source in sources:
        template = ChatTemplate(sources={"default": source}, variables={"bos_token": "<s>"})
        composing, rendering = (TurnFinder(template, ("<s>", "<|im_end|>")) for _ in range(2))
        for name in ("text", "plain", "rows"):
            setattr(rendering._composer, name, lambda *_: None)
        pairs.append((composing, rendering))
    return pairs


def _check_messages(data: bytes, folder: Path) -> bool:
    path = _written(folder, "a.jsonl", data + b"\n" + data)
    for finders in _finders():
        composed, rendered = (rows_read(path, each, messages_column="auto") for each in finders)
        assert composed == rendered
    return True


def _message_seeds(_: Path) -> list[bytes]:
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    answered = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    rows: list[Any] = [
        *(_CHAT, [{"role": "system", "content": "S"}, *_CHAT, *_CHAT]),
        *([_CHAT[0], called, answered], [parts, _CHAT[1] | {"train": True}]),
        [_CHAT[0], _CHAT[1] | {"reasoning_content": "hm"}],
        [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
    ]
    beside: list[Any] = [{}, {"tools": [{"type": "function", "function": {"name": "f"}}]}]
    return [json.dumps({"messages": row} | more).encode() for row in rows for more in beside]


@cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(save_tokenizer(Path(folder)))


def _check_template(data: bytes, folder: Path) -> bool:
    template = load_chat_template(_tokenizer(), _written(folder, "a.jinja", data))
    chat = Conversation(_CHAT)
    text = template.render(chat)
    assert len(text) <= MAX_SIZE
    recording = Recording()
    traced, texts = with_texts(chat, recording.text)
    trace = template.trace(traced, recording)
    composed = None if trace is None else trace.compose([each.text for each in texts])
    assert composed in (None, text) or b"random" in data or b"lipsum" in data
    return True


def _template_seeds(_: Path) -> list[bytes]:
    return [CHATML.encode(), *(path.read_bytes() for path in sorted(_TEMPLATES.glob("*.jinja")))]


_JINJA = (
    "{% for m in messages %}|{% endfor %}|{{ |}}|{% set x = |{% if |{% endif %}|{% macro f(x) %}|"
    "{% endmacro %}|messages|content|namespace(|range(|dict(|cycler(|joiner(|lipsum(|.format(|"
    ".__class__|__globals__|__init__|attr('|map(attribute='|join(|replace(|tojson|indent(|center(|"
    "loop.|recursive|{% filter |{% call |caller()|.split(|.strip(|~|**|*|% |groupby(|sort(|batch(|"
    "slice(|unique|xmlattr|urlize|striptags|wordwrap(|pprint|{% generation %}|{% endgeneration %}|"
    "raise_exception(|{% break %}|{% raw %}|{% include |{% import |{% extends |{% block |self.|"
    "99999|truncate(|random|first|last|sum(|int|float|round(|select(|reject(|string|safe|escape"
)


def _check_options(data: bytes, folder: Path) -> bool:
    settings = BuildConfig(**from_yaml(_written(folder, "build.yaml", data)))
    written = _written(folder, "again.yaml", to_yaml(settings).encode())
    assert BuildConfig(**from_yaml(written)) == settings
    return True


def _option_seeds(_: Path) -> list[bytes]:
    paths = [{"path": ["a.jsonl"], "weight": 0.5}, {"path": ["b.jsonl"], "weight": 2}]
    mix = {"sources": paths, "max_length": 64, "max_tokens": 1000000}
    phases = {"sources": ["a.jsonl"], "phases": {"by_length": [32, 64]}}
    phases["columns"] = ["position_ids"]
    plain = to_yaml(config(sources=["a.jsonl"], holdout=0.1, overflow="split"))
    return [json.dumps(mix).encode(), json.dumps(phases).encode(), plain.encode()]


_JSON_WORDS = (b'{"text": "', b'"}\n', b"\\u", b"\\ud83d", b"\xef\xbb\xbf", b"null", b"[", b"],")
_CSV_WORDS = (b'"', b'""', b"\r\n", b"\n", b"text", b",", b"\xef\xbb\xbf", b"\0")
_TEXT_WORDS = (b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xa8", b"\0")
_CSV_SEEDS = [b'id,text\n1,a\n2,"b\nc"\n3,\xe6\x97\xa5\n', b'text\r\n"a""b"\r\n']
_TEXT_SEEDS = [b"a\nb\n\nc\r\n", "\ufeffé\r\r日本".encode()]
_WORDS_OF_JINJA = [word.encode() for word in _JINJA.split("|") if word]
_GZIP, _ZSTD = gzip.compress(b"a\nbc\n", mtime=0), zstandard.compress(b"a\nbc\n")
_UNSIZED = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
_GZIP_SEEDS = [_GZIP, _GZIP + _GZIP + bytes(64), gzip.compress(b"ab" * 5000, 9, mtime=0)]
_ZSTD_SEEDS = [_ZSTD, _ZSTD + _ZSTD, _UNSIZED.compress(b"ab" * 5000)]
INPUTS = {
    "json": Target(seeds=_json_seeds, check=_check_json, words=_JSON_WORDS),
    "csv": Target(seeds=lambda _: _CSV_SEEDS, check=_check_csv, words=_CSV_WORDS),
    "text": Target(seeds=lambda _: _TEXT_SEEDS, check=_check_text, words=_TEXT_WORDS),
    "gzip": Target(seeds=lambda _: _GZIP_SEEDS, check=_check_packed("gz", gzip.decompress)),
    "zstd": Target(seeds=lambda _: _ZSTD_SEEDS, check=_check_packed("zst", _unzstd)),
    "parquet": Target(
        seeds=_parquet_seeds, check=_check_column("a.parquet", _read_text_of_parquet)
    ),
    "arrow": Target(seeds=_arrow_seeds, check=_check_column("a.arrow", _read_arrow)),
    "tokens": Target(seeds=_token_seeds, check=_check_tokens),
    "messages": Target(seeds=_message_seeds, check=_check_messages, mutate=change_json),
    "template": Target(seeds=_template_seeds, check=_check_template, words=_WORDS_OF_JINJA),
    "options": Target(seeds=_option_seeds, check=_check_options, mutate=change_json),
}
