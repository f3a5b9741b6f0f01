"""Engines: what turns text into token ids. One small protocol, three implementations of it.

A batch of text comes in as an Arrow array, flat ids and offsets go out; no document becomes a list of Python ints
except inside `tokenizers`, which has no other way out (16 of its 1100 ns per token).

    hf         `tokenizers`, the reference: reads every tokenizer.json; 2-4 MB of text per core-second
    fastokens  BPE, exact on every code point tried; 30-130 MB per core-second, SentencePiece BPE 2-8
    gigatoken  BPE, newer Unicode tables than the reference; 40-160 MB per core-second, SentencePiece BPE 10

Every engine uses the cores by itself inside a call, and every engine lets several threads call it at once: all three
release the interpreter lock, keep their caches per thread and share nothing else that changes, so none needs a lock
(tests/test_engines.py holds them to it). A fast engine is trusted only after `packprep.parity` compared it with `hf`.
"""

from __future__ import annotations

import array
import importlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep import cuts
from packprep.errors import ConfigError, InputError

EngineName = Literal["hf", "fastokens", "gigatoken"]
Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]

# `tokenizers` holds about 65 bytes per token until a call is over: 10 MB for each core's half megabyte of text.
SUB_BATCH_BYTES = min(os.cpu_count() or 1, 16) << 19
SUB_BATCH_DOCUMENTS = 8192


class Engine(Protocol):
    """Text in, ids out. `encode` may be called by several threads at once on one engine.

    name and version say what made the ids; notes are sentences for the user that encoding gave rise to, each once.
    """

    name: str
    version: str
    notes: list[str]

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """Token ids of each document, without BOS, EOS or any other token that the text itself does not give.

        texts: string or large_string array without nulls, [documents]. Returns ids int32 [tokens], possibly read-only,
        and offsets int64 [documents + 1]: document i is ids[offsets[i]:offsets[i + 1]]. Raises InputError.
        """


class HfEngine:
    """`tokenizers`: documents go in about `SUB_BATCH_BYTES` at a time, longer ones in pieces (`packprep.cuts`)."""

    name = "hf"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        tokenizers, self.version = _package(self.name, "tokenizers")
        with _as_sentence(f"tokenizers {self.version} cannot read this tokenizer.json"):
            self._tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = not parse_special_tokens
        self._cuts_refused: str | None = "unknown"
        self.notes: list[str] = []

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        starts = text_starts(texts)
        offsets = np.zeros(len(texts) + 1, np.int64)
        parts: list[Ids] = []
        tokens = 0
        for first, last in _sub_batches(starts):
            if starts[last] - starts[first] > SUB_BATCH_BYTES:  # one long document
                for ids, _ in self._encode_long(_character_buffer(texts)[starts[first] : starts[last]]):
                    tokens += len(ids)
                    parts.append(ids)
                offsets[last] = tokens
            else:
                ids, ends = self._encode_some(texts.slice(first, last - first).to_pylist())
                offsets[first + 1 : last + 1] = ends + tokens
                tokens += len(ids)
                parts.append(ids)
        return (np.concatenate(parts) if parts else np.empty(0, np.int32)), offsets

    def _encode_some(self, documents: list[str]) -> tuple[Ids, Offsets]:
        """Ids of all documents, and where each ends."""
        with _as_sentence(f"tokenizers {self.version} cannot encode a text"):
            encodings = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        ids = array.array("I")
        for encoding in encodings:
            ids.fromlist(encoding.ids)  # the cheapest way out: 16 ns per token, np.array 25
        return as_int32(np.frombuffer(ids, np.uint32)), np.cumsum([len(encoding) for encoding in encodings])

    def _encode_long(self, document: memoryview) -> Iterator[tuple[Ids, Offsets]]:
        """Ids of one document, a sub-batch of pieces at a time; in one go where cutting is not proven harmless."""
        if self._cuts_refused == "unknown":
            self._cuts_refused = cuts.why_not(self._tokenizer)
        if self._cuts_refused is not None:
            note = f"documents over {SUB_BATCH_BYTES:,} bytes are encoded on one core and whole: {self._cuts_refused}"
            if note not in self.notes:
                self.notes.append(note)
            yield self._encode_some([str(document, "utf-8")])
            return
        group: list[str] = []
        size = 0
        for piece in cuts.pieces(document, SUB_BATCH_BYTES // 8):
            group.append(str(piece, "utf-8"))
            size += len(piece)
            if size >= SUB_BATCH_BYTES:
                yield self._encode_some(group)
                group, size = [], 0
        if group:
            yield self._encode_some(group)


class FastokensEngine:
    """`fastokens`: two flat buffers out, used as they are; splits a long document over its threads by itself."""

    name = "fastokens"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        fastokens, self.version = _package(self.name)
        with _as_sentence(f"fastokens {self.version} cannot read this tokenizer.json"):
            self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._split_special_tokens = not parse_special_tokens
        self.notes: list[str] = []

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        text_starts(texts)
        with _as_sentence(f"fastokens {self.version} cannot encode a text (use the engine hf)"):
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts.to_pylist(), add_special_tokens=False, split_special_tokens=self._split_special_tokens
            )
        return as_int32(np.frombuffer(ids, np.uint32)), np.frombuffer(offsets, np.int64)


class GigatokenEngine:
    """`gigatoken`: has no switch for special tokens in text, so unless they are parsed it never hears of them."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        gigatoken, self.version = _package(self.name)
        with _as_sentence(f"gigatoken {self.version} cannot read this tokenizer.json"):
            text = tokenizer_json.decode()
            self._tokenizer = gigatoken.Tokenizer.from_json(text if parse_special_tokens else _without_specials(text))
        self.notes: list[str] = []

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        if not text_starts(texts)[-1]:  # nothing but empty texts: it would answer with an array without offsets
            return np.empty(0, np.int32), np.zeros(len(texts) + 1, np.int64)
        with _as_sentence(f"gigatoken {self.version} cannot encode a text (use the engine hf)"):
            layout = self._tokenizer.encode_batch(texts.to_pylist()).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data, np.uint32)
        return as_int32(ids[offsets[0] : offsets[-1]]), offsets - offsets[0] if offsets[0] else offsets


_ENGINES: dict[str, type[HfEngine] | type[FastokensEngine] | type[GigatokenEngine]] = {
    engine.name: engine for engine in (HfEngine, FastokensEngine, GigatokenEngine)
}


def load_engine(name: EngineName, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> Engine:
    """The engine of this name for this tokenizer; truncation and padding kept in the file are switched off.

    parse_special_tokens: False keeps text that spells a special token as text, True gives that token's id.
    Raises ConfigError for an unknown engine or one that is not installed, InputError for a file it cannot read.
    """
    if name not in _ENGINES:
        raise ConfigError(f"engine {name!r} is unknown; choose one of {', '.join(_ENGINES)}")
    return _ENGINES[name](tokenizer_json, parse_special_tokens=parse_special_tokens)


def text_starts(texts: pa.Array) -> NDArray[np.int64]:
    """Where each document starts in the array's character buffer: int64 [documents + 1], bytes of UTF-8."""
    if texts.null_count:
        raise InputError(f"{texts.null_count} of {len(texts)} texts are null; an engine takes text only")
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise InputError(f"an engine takes string or large_string, not {texts.type}")
    if len(texts) == 0:
        return np.zeros(1, np.int64)
    width = np.dtype(np.int32 if pa.types.is_string(texts.type) else np.int64)
    skipped = texts.offset * width.itemsize
    return np.frombuffer(texts.buffers()[1], width, len(texts) + 1, skipped).astype(np.int64)


def as_int32(ids: NDArray[np.uint32]) -> Ids:
    """The same memory as int32; an id of 2^31 or more would turn negative, so it is an error."""
    signed = ids.view(np.int32)
    if len(signed) and signed.min() < 0:
        raise InputError(f"the tokenizer gave the id {int(ids.max()):,}; ids must be below {2**31:,}")
    return signed


def _character_buffer(texts: pa.Array) -> memoryview:
    return memoryview(texts.buffers()[2])


def _sub_batches(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of documents of at most SUB_BATCH_BYTES; a longer document stands alone."""
    first, documents = 0, len(starts) - 1
    while first < documents:
        last = int(np.searchsorted(starts, starts[first] + SUB_BATCH_BYTES, side="right")) - 1
        last = min(max(last, first + 1), first + SUB_BATCH_DOCUMENTS, documents)
        yield first, last
        first = last


def _package(engine: str, module: str | None = None) -> tuple[Any, str]:
    """The engine's module and its version."""
    module = module or engine
    try:
        return importlib.import_module(module), importlib.metadata.version(module)
    except ImportError:
        raise ConfigError(f"engine {engine} needs the package {module}: pip install packprep[fast]") from None


@contextmanager
def _as_sentence(what: str) -> Iterator[None]:
    """Whatever a Rust engine raises, as InputError: they raise bare Exception, and a panic is a BaseException."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error


def added_tokens(tokenizer_json: bytes) -> list[dict[str, Any]]:
    """The `added_tokens` of a tokenizer.json (`id`, `content`, `special` and more), without parsing its model."""
    start, stop = _added_tokens_span(tokenizer_json.decode())
    tokens: list[dict[str, Any]] = json.loads(tokenizer_json.decode()[start:stop] or "[]")
    return tokens


def _without_specials(tokenizer_json: str) -> str:
    """The same tokenizer.json with the special ones gone from its `added_tokens`."""
    start, stop = _added_tokens_span(tokenizer_json)
    tokens = json.loads(tokenizer_json[start:stop] or "[]")
    kept = [token for token in tokens if not token.get("special")]
    return tokenizer_json[:start] + (json.dumps(kept) if start < stop else "") + tokenizer_json[stop:]


def _added_tokens_span(tokenizer_json: str) -> tuple[int, int]:
    """Where the list stands in the text; (0, 0) without one. Quotes inside JSON strings are escaped: only the key fits."""
    found = re.search(r'"added_tokens"\s*:\s*(?=\[)', tokenizer_json)
    if found is None:
        return 0, 0
    return found.end(), json.JSONDecoder().raw_decode(tokenizer_json, found.end())[1]
