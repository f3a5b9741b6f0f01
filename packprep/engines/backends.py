"""Engines turn text into token ids: one small protocol, three implementations.

Input is a batch of text as an Arrow array, output flat ids and offsets. No document becomes a list
of Python ints, except inside `tokenizers`, which offers nothing else (16 of its 1100 ns per token).

    hf         `tokenizers`, the reference: reads every tokenizer.json; 2-4 MB per core-second
    fastokens  BPE, differs on one code point of o200k; 30-130 MB, SentencePiece BPE 2-8
    gigatoken  BPE, newer Unicode tables; 40-160 MB, SentencePiece BPE 10

Several threads may call an engine at once: all three release the interpreter lock and guard their
caches, so none needs a lock here (tests/engines/test_backends.py checks that with cold caches).
gigatoken also uses several cores inside a call. fastokens is set not to: threads that wait for each
other and one more cache cost a build 2 to 10 % of its cycles. `tokenizers` is set not to by the
command line (TOKENIZERS_PARALLELISM) and gets its threads from here: with threads of its own, one
frees the memory of another, which was 8 % of the time of a build. A fast engine is trusted only
after `packprep.engines.parity` has compared it with `hf`.
"""

from __future__ import annotations

import array
import importlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.engines import cut_points
from packprep.engines.tokenizer_files import AddedToken
from packprep.support.ahead import RenewedThreads, ahead
from packprep.support.errors import ConfigError, InputError
from packprep.support.limits import usable_cores

EngineName = Literal["hf", "fastokens", "gigatoken"]
Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]

# Characters of a call: `tokenizers` holds about 65 bytes per token until the call returns.
SUB_BATCH = 1 << 19
SUB_BATCH_PIECES = 8192
# Longer documents are cut: a whole one would keep a single core busy and need 130 times its size in
# memory while it is encoded.
PIECE_BYTES = 1 << 18


os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # read at the first call in a process


class Engine(Protocol):
    """Text in, ids out. `encode` may be called by several threads at once on one engine.

    name, version: of the library.
    notes: sentences for the user about encoding, each once.
    """

    name: str
    version: str
    notes: list[str]

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """Token ids of the text of each document, without BOS and EOS.

        texts: string or large_string array without nulls, [documents]. Returns ids int32 [tokens],
        possibly read-only, and offsets int64 [documents + 1]: document i is
        ids[offsets[i]:offsets[i + 1]]. Raises InputError.
        """


def reference_tokenizer(tokenizer_json: bytes, parse_special_tokens: bool) -> Any:
    """The tokenizer of `tokenizers`, with truncation and padding switched off."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not parse_special_tokens
    return tokenizer


class HfEngine:
    """`tokenizers`, about SUB_BATCH characters a call.

    Documents over PIECE_BYTES are encoded in pieces (`packprep.engines.cut_points`). As many
    threads call it as `tokenizers` would use itself: RAYON_NUM_THREADS, or one for each core.
    """

    name = "hf"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        _, self.version = _package(self.name, "tokenizers")
        with _as_sentence(f"tokenizers {self.version} cannot read this tokenizer.json"):
            self._tokenizer = reference_tokenizer(tokenizer_json, parse_special_tokens)
        self._cores = int(os.environ.get("RAYON_NUM_THREADS", 0)) or usable_cores().value
        self._threads = RenewedThreads()
        self.notes: list[str] = []

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        tokens = np.zeros(len(texts) + 1, np.int64)
        parts: list[Ids] = []

        def submit(batch: tuple[list[str], list[int]]) -> Future[tuple[list[int], list[int], Ids]]:
            return self._threads.submit(self._cores, 0, self._encoded, *batch)

        for documents, lengths, ids in ahead(submit, self._sub_batches(texts), self._cores):
            np.add.at(tokens, np.array(documents) + 1, lengths)
            parts.append(ids)
        return (np.concatenate(parts) if parts else np.empty(0, np.int32)), np.cumsum(tokens)

    def _encoded(self, pieces: list[str], documents: list[int]) -> tuple[list[int], list[int], Ids]:
        """The documents, the tokens of each piece, and their ids."""
        with _as_sentence(f"tokenizers {self.version} cannot encode a text"):
            encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        ids = array.array("I")
        for encoding in encodings:
            ids.fromlist(encoding.ids)  # the fastest conversion: 16 ns per token, np.array 25
        return (
            documents,
            [len(encoding) for encoding in encodings],
            as_int32(np.frombuffer(ids, np.uint32)),
        )

    def _sub_batches(self, texts: pa.Array[Any]) -> Iterator[tuple[list[str], list[int]]]:
        """Pieces of text and the document each belongs to.

        SUB_BATCH characters or SUB_BATCH_PIECES at a time.
        """
        pieces: list[str] = []
        documents: list[int] = []
        size = 0
        for document, piece in self._pieces(texts):
            pieces.append(piece)
            documents.append(document)
            size += len(piece)
            if size >= SUB_BATCH or len(pieces) >= SUB_BATCH_PIECES:
                yield pieces, documents
                pieces, documents, size = [], [], 0
        if pieces:
            yield pieces, documents

    def _pieces(self, texts: pa.Array[Any]) -> Iterator[tuple[int, str]]:
        """Documents in order, whole or in pieces."""
        starts = text_starts(texts)
        long = np.diff(starts) > PIECE_BYTES
        last = 0
        while last < len(texts):
            first, last = last, int(np.searchsorted(starts, starts[last] + SUB_BATCH))
            last = max(first + 1, min(last, first + SUB_BATCH_PIECES, len(texts)))
            if not long[first:last].any():
                yield from enumerate(texts.slice(first, last - first).to_pylist(), first)
                continue
            characters = text_characters(texts)
            for document in range(first, last):
                text = characters[starts[document] : starts[document + 1]]
                cut = long[document] and self._may_cut
                for piece in cut_points.text_pieces(text, PIECE_BYTES // 4) if cut else [text]:
                    yield document, str(piece, "utf-8")

    @cached_property
    def _may_cut(self) -> bool:
        """True if long documents may be cut.

        Evaluated only for a long document, because it may read the whole vocabulary.
        """
        reason = cut_points.why_not(self._tokenizer)
        note = f"documents over {PIECE_BYTES:,} bytes are encoded whole and on one core: {reason}"
        if reason is not None and note not in self.notes:
            self.notes.append(note)
        return reason is None


class FastokensEngine:
    """`fastokens`: returns two flat buffers, which are used without a copy."""

    name = "fastokens"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        fastokens, self.version = _package(self.name)
        with _as_sentence(f"fastokens {self.version} cannot read this tokenizer.json"):
            self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._split_special_tokens = not parse_special_tokens
        self.notes: list[str] = []

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        text_starts(texts)
        with _as_sentence(f"fastokens {self.version} cannot encode a text (use the engine hf)"):
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts.to_pylist(),
                add_special_tokens=False,
                split_special_tokens=self._split_special_tokens,
            )
        return as_int32(np.frombuffer(ids, np.uint32)), np.frombuffer(offsets, np.int64)


class GigatokenEngine:
    """`gigatoken`, which cannot switch off special tokens in text.

    They are removed from its tokenizer.json, unless they are to be parsed.
    """

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        gigatoken, self.version = _package(self.name)
        _package(
            self.name, "awkward"
        )  # type of its results; 0.2 s to import, not in the first call
        with _as_sentence(f"gigatoken {self.version} cannot read this tokenizer.json"):
            text = tokenizer_json.decode()
            self._tokenizer = gigatoken.Tokenizer.from_json(
                text if parse_special_tokens else _without_specials(text)
            )
        self.notes: list[str] = []

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        text_starts(texts)
        with _as_sentence(f"gigatoken {self.version} cannot encode a text (use the engine hf)"):
            layout = self._tokenizer.encode_batch(texts.to_pylist()).layout
        return as_int32(np.asarray(layout.content.data, np.uint32)), np.asarray(
            layout.offsets.data, np.int64
        )


_ENGINES: dict[str, type[HfEngine] | type[FastokensEngine] | type[GigatokenEngine]] = {
    engine.name: engine for engine in (HfEngine, FastokensEngine, GigatokenEngine)
}


def load_engine(
    name: EngineName, tokenizer_json: bytes, *, parse_special_tokens: bool = False
) -> Engine:
    """The engine of this name for this tokenizer.

    Truncation and padding in the file are switched off.

    parse_special_tokens: False keeps text that spells a special token as text, True gives that
    token's id. Raises ConfigError for an unknown engine or one that is not installed, InputError
    for a file it cannot read.
    """
    if name not in _ENGINES:
        raise ConfigError(f"engine {name!r} is unknown; choose one of {', '.join(_ENGINES)}")
    return _ENGINES[name](tokenizer_json, parse_special_tokens=parse_special_tokens)


def text_starts(texts: pa.Array[Any]) -> NDArray[np.int64]:
    """Offset of each document in the array's character buffer.

    int64 [documents + 1], bytes of UTF-8.
    """
    if texts.null_count:
        raise InputError(
            f"{texts.null_count} of {len(texts)} texts are null; an engine takes text only"
        )
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise InputError(f"an engine takes string or large_string, not {texts.type}")
    if len(texts) == 0:
        return np.zeros(1, np.int64)
    width = np.dtype(np.int32 if pa.types.is_string(texts.type) else np.int64)
    skipped = texts.offset * width.itemsize
    starts: NDArray[Any] = np.frombuffer(_buffer(texts, 1), width, len(texts) + 1, skipped)
    return starts.astype(np.int64)


def text_characters(texts: pa.Array[Any]) -> memoryview:
    """UTF-8 of an array of text that is not empty; `text_starts` are places in it."""
    return _buffer(texts, 2)


def _buffer(texts: pa.Array[Any], place: int) -> memoryview:
    """Buffer of an array of text: 1 has the offsets, 2 the characters."""
    buffer = texts.buffers()[place]
    assert buffer is not None
    return memoryview(buffer)


def as_int32(ids: NDArray[np.uint32]) -> Ids:
    """The same memory as int32. An id of 2^31 or more would become negative, so it is an error."""
    signed = ids.view(np.int32)
    if len(signed) and signed.min() < 0:
        raise InputError(
            f"the tokenizer returned the id {int(ids.max()):,}; ids must be below {2**31:,}"
        )
    return signed


def _package(engine: str, module: str | None = None) -> tuple[Any, str]:
    """The engine's module and its version."""
    module = module or engine
    try:
        return importlib.import_module(module), importlib.metadata.version(module)
    except ImportError:
        raise ConfigError(
            f"engine {engine} needs the package {module}: pip install packprep[fast]"
        ) from None


@contextmanager
def _as_sentence(fault: str) -> Iterator[None]:
    """Turn any error of a Rust engine into InputError.

    They raise bare Exception, and a panic is a BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise InputError(
            f"{fault}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def added_tokens(tokenizer_json: bytes) -> list[AddedToken]:
    """The `added_tokens` of a tokenizer.json, without parsing its model."""
    start, stop = _added_tokens_span(tokenizer_json.decode())
    tokens: list[AddedToken] = json.loads(tokenizer_json.decode()[start:stop] or "[]")
    return tokens


def _without_specials(tokenizer_json: str) -> str:
    """The tokenizer.json without the special ones of its `added_tokens`."""
    start, stop = _added_tokens_span(tokenizer_json)
    tokens = json.loads(tokenizer_json[start:stop] or "[]")
    kept = [token for token in tokens if not token.get("special")]
    return (
        tokenizer_json[:start] + (json.dumps(kept) if start < stop else "") + tokenizer_json[stop:]
    )


def _added_tokens_span(tokenizer_json: str) -> tuple[int, int]:
    """Begin and end of the list in the text; (0, 0) without one.

    Quotes inside JSON strings are escaped, so only the key can match.
    """
    match = re.search(r'"added_tokens"\s*:\s*(?=\[)', tokenizer_json)
    if match is None:
        return 0, 0
    return match.end(), json.JSONDecoder().raw_decode(tokenizer_json, match.end())[1]
