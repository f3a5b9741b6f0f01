"""Engines turn text into ids: the reference, and a fast one that gives the same ids.

    hf         `tokenizers`, the reference: reads every tokenizer.json; 2-4 MB per core-second
    fastokens  BPE only; 30-130 MB per core-second

The fast engine is trusted only after `gate` has compared it with the reference, so the reference
may take small inputs: it loads faster. Several threads may call an engine at once: both release the
interpreter lock.
"""

import array
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..support.ahead import ahead, ranges
from ..support.errors import ConfigError, InputError
from ..support.limits import usable_cores
from .tokenizer import Tokenizer

CALL_BYTES = 1 << 19  # of text in a call of `tokenizers`, which keeps 65 bytes a token meanwhile
SMALL = 500_000  # bytes that `tokenizers` encodes before fastokens is loaded

Ids = tuple[NDArray[np.int32], NDArray[np.int64]]

os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # threads that wait for each other cost 2-10 %


class Engine(Protocol):
    """What turns text into ids."""

    name: str
    version: str

    def encode(self, texts: Any) -> Ids:
        """Ids of all texts, int32 [tokens], and where each begins, int64 [texts + 1].

        texts: large_string without nulls. Special tokens that a text spells out stay text, unless
        the engine was loaded to parse them. No BOS and no EOS. Raises InputError.
        """

    def compare_sample(self, rows: pa.Table, tokens: pa.Table, tokenizer: Tokenizer) -> None:
        """Encode some documents of a table again with the reference, unless it made them.

        rows, tokens: before and after `encode`. Raises InputError at the first whose ids differ.
        """


class Reference:
    """`tokenizers`."""

    name = "hf"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it gets its threads from here
        import tokenizers

        self.version = tokenizers.__version__
        with _as_sentence(f"tokenizers {self.version} cannot read this tokenizer.json"):
            self.tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = not parse_special_tokens

    def encode(self, texts: Any) -> Ids:
        """See `Engine.encode`."""
        documents = texts.to_pylist()
        sizes = np.array([len(text) for text in documents], np.int64)
        parts = [documents[first:last] for first, last in ranges(sizes, CALL_BYTES)]
        ids, lengths = [], []
        # One part is encoded by this thread, which remembers words of the calls before.
        encoded: Iterator[Any] = map(self._encoded, parts)
        if len(parts) > 1:
            encoded = ahead(self._encoded, parts, usable_cores())
        for flat, of in encoded:
            ids.append(flat)
            lengths += of
        offsets = np.append(0, np.cumsum(np.array(lengths, np.int64)))
        return (np.concatenate(ids) if ids else np.empty(0, np.int32)), offsets

    def compare_sample(self, *_: Any) -> None:
        """Do nothing."""

    def _encoded(self, texts: list[str]) -> tuple[NDArray[np.int32], list[int]]:
        with _as_sentence(f"tokenizers {self.version} cannot encode a text"):
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = array.array("I")
        for encoding in encodings:
            ids.fromlist(encoding.ids)  # the fastest conversion: 16 ns a token
        return np.frombuffer(ids, np.int32), [len(each) for each in encodings]


class Fastokens:
    """`fastokens`: returns two flat buffers, which are used without a copy."""

    name = "fastokens"

    def __init__(self, tokenizer_json: bytes, *, parse_special_tokens: bool = False) -> None:
        try:
            import fastokens
        except ImportError:
            raise ConfigError(
                "engine fastokens needs the package fastokens: pip install packprep[fast]"
            ) from None
        self.version = importlib.metadata.version("fastokens")
        with _as_sentence(f"fastokens {self.version} cannot read this tokenizer.json"):
            self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._keep = not parse_special_tokens

    def encode(self, texts: Any) -> Ids:
        """See `Engine.encode`."""
        with _as_sentence(f"fastokens {self.version} cannot encode a text (use engine hf)"):
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts.to_pylist(), add_special_tokens=False, split_special_tokens=self._keep
            )
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)


@contextmanager
def _as_sentence(fault: str) -> Iterator[None]:
    """Turn any error of a Rust library into InputError; a panic is a BaseException."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        reason: Any = str(error).splitlines()[:1] or [type(error).__name__]
        raise InputError(f"{fault}: {reason[0]}") from error


def choose_engine(
    tokenizer: Tokenizer, requested: str, size: int, *, parse_special_tokens: bool = False
) -> tuple[Engine, list[str]]:
    """The engine of a build, and notes about it for the user.

    requested: auto takes the fast engine where it passes the gate and the input has `size` bytes to
    gain from it, else the reference; hf or fastokens take that one. Raises ConfigError or
    InputError if it cannot be taken.
    """
    if tokenizer.json is None:
        raise ConfigError("--tokenizer is a number, and rows are text; name a tokenizer")
    reference = partial(Reference, tokenizer.json, parse_special_tokens=parse_special_tokens)
    if requested == "hf" or (requested == "auto" and size <= SMALL):
        return reference(), []
    from .gate import gated

    try:
        fast = Fastokens(tokenizer.json, parse_special_tokens=parse_special_tokens)
        return gated(fast, reference, tokenizer, parse_special_tokens), []
    except (ConfigError, InputError) as error:
        if requested != "auto":
            raise
        return reference(), [f"tokenizers itself tokenizes this build, which is slower: {error}"]
