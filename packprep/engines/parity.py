"""Comparison of a fast engine's ids with the reference's.

A fast engine is trusted because its ids were compared, never because of its name.

`choose_engine` is the gate before a build: `packprep.engines.probes` and a sample of the real
documents, encoded by both. One different id, and `auto` takes the reference. It costs 0.1
CPU-seconds and the loading of the reference. `verify_batch` is the check during a build: of every
batch, documents chosen by their number alone are encoded again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.engines.backends import Engine, EngineName, Ids, Offsets, added_tokens, load_engine
from packprep.engines.probes import probes
from packprep.support.ahead import RenewedThreads
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream

# The sample of real documents: the first 2 kB of each, until there are 32 kB; 0.01 CPU-seconds of
# the reference.
SAMPLE_DOCUMENT, SAMPLE_TOTAL = 2 << 10, 32 << 10

# Text that a thread encodes before another one replaces it: fastokens caches up to 100 MB of words
# for each thread. The empty cache of a new thread costs less than 1 % of the instructions of a
# build.
THREAD_BYTES = 24 << 20

Reference = Callable[[], Engine]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The engine of a build, and why it was chosen.

    reference: returns the `hf` engine, loaded at the first call and shared by all threads. gate:
    for the `run` part of the manifest. notes: sentences for the user. threads: those that call the
    engine in a build.
    """

    engine: Engine
    reference: Reference
    gate: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    threads: RenewedThreads = field(default_factory=lambda: RenewedThreads(THREAD_BYTES))


@dataclass(frozen=True)
class EngineDifference:
    """A text, as short as possible, on which two engines differ, and the ids of both."""

    text: str
    ids: list[int]
    expected: list[int]

    def __str__(self) -> str:
        return (
            f"on the text {_shown(self.text)} it gives {_shown(self.ids)} and the reference "
            f"{_shown(self.expected)}"
        )


def choose_engine(
    requested: Literal["auto"] | EngineName,
    tokenizer_json: bytes,
    *,
    parse_special_tokens: bool = False,
    sample: Sequence[str] = (),
) -> EngineChoice:
    """The engine for a build, compared with the reference where it is another one.

    requested: `auto` takes the first fast engine that is installed and reads the tokenizer, and the
    reference where there is none or where an id differs; a name takes that engine or raises.
    sample: documents of the build; the beginnings of the first few are compared. Raises ConfigError
    where a named engine is not installed, InputError where it cannot read the tokenizer or differs.
    """
    reference = _load_once(
        lambda: load_engine("hf", tokenizer_json, parse_special_tokens=parse_special_tokens)
    )
    candidates = _candidates(tokenizer_json) if requested == "auto" else [requested]
    if candidates == ["hf"]:
        return _choice(reference(), reference, "reference", [])
    fast, refusal = _load_first(candidates, requested, tokenizer_json, parse_special_tokens)
    if fast is None:
        return _choice(reference(), reference, "no fast engine", [refusal])

    texts = probes(added_tokens(tokenizer_json))
    documents = list(_sampled(sample))
    start = time.perf_counter()
    reference()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        difference: EngineDifference | InputError | None = first_difference(
            fast, reference(), [*texts, *documents]
        )
    except InputError as error:
        difference = error
    measured = {
        "probes": len(texts),
        "sample_documents": len(documents),
        "reference_load_seconds": round(wall - start, 4),
        "seconds": round(time.perf_counter() - wall, 4),
        "cpu_seconds": round(time.process_time() - cpu, 4),
    }
    if difference is None:
        return _choice(fast, reference, "equal", [], **measured)
    note = f"engine {fast.name} {fast.version} differs from the reference: {difference}"
    if requested != "auto":
        raise InputError(f"{note}; use --engine hf or auto")
    rejected = {"rejected": f"{fast.name} {fast.version}", "difference": str(difference)}
    return _choice(
        reference(), reference, "different", [f"{note}; the engine is hf"], **rejected, **measured
    )


def trusted_engine(
    name: EngineName, tokenizer_json: bytes, *, parse_special_tokens: bool = False
) -> EngineChoice:
    """The engine that another process of this build has chosen, not compared again."""
    reference = _load_once(
        lambda: load_engine("hf", tokenizer_json, parse_special_tokens=parse_special_tokens)
    )
    if name == "hf":
        return _choice(reference(), reference, "reference", [])
    fast = load_engine(name, tokenizer_json, parse_special_tokens=parse_special_tokens)
    return _choice(fast, reference, "chosen before", [])


def first_difference(
    engine: Engine, reference: Engine, texts: Sequence[str]
) -> EngineDifference | None:
    """First difference between two engines' ids, on a text as short as possible; None if equal."""
    array = pa.array(texts, pa.large_string())
    bad = unequal(*engine.encode(array), *reference.encode(array))
    return _narrowed(engine, reference, texts[bad[0]]) if len(bad) else None


def unequal(
    ids: Ids, offsets: Offsets, expected: Ids, expected_offsets: Offsets
) -> NDArray[np.int64]:
    """Documents that differ between two encodings of the same texts.

    int64, ascending; empty if all ids are equal.
    """
    documents = len(expected_offsets) - 1
    if len(offsets) != documents + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
        return np.arange(max(documents, 1), dtype=np.int64)
    if np.array_equal(offsets, expected_offsets):
        if np.array_equal(ids, expected):
            return np.empty(0, np.int64)
        tokens = np.flatnonzero(ids != expected)
        return np.unique(np.searchsorted(offsets, tokens, side="right") - 1)
    bad = np.diff(offsets) != np.diff(expected_offsets)
    for document in np.flatnonzero(~bad):
        ours = ids[offsets[document] : offsets[document + 1]]
        theirs = expected[expected_offsets[document] : expected_offsets[document + 1]]
        bad[document] = not np.array_equal(ours, theirs)
    return np.flatnonzero(bad)


def verify_batch(
    engine: Engine,
    ids: Ids,
    offsets: Offsets,
    texts: pa.Array[Any],
    documents: NDArray[np.int64],
    reference: Reference,
    *,
    share: float,
    seed: int = 0,
) -> int:
    """Compare a share of a batch with the reference.

    Returns how many documents were compared, 0 for `hf` itself.

    ids, offsets: result of `engine` for texts. documents: their numbers, int64 [documents]. Only
    these, seed and share decide which documents are compared, so batches and workers do not matter.
    share: 0 (none) to 1 (all). Raises InputError naming the first document whose ids differ.
    """
    if not len(texts) == len(documents) == len(offsets) - 1:
        raise InputError(
            f"engine {engine.name} {engine.version} returned {len(offsets) - 1} results for "
            f"{len(texts)} documents"
        )
    rows = np.flatnonzero(drawn(stream(seed, Purpose.VERIFY_ENGINE), documents, share))
    if len(rows) == 0 or engine.name == "hf":
        return 0
    expected, expected_offsets = reference().encode(
        texts if len(rows) == len(texts) else texts.take(pa.array(rows, pa.int64()))
    )
    for row, start, stop in zip(rows, expected_offsets[:-1], expected_offsets[1:], strict=True):
        ours, theirs = ids[offsets[row] : offsets[row + 1]], expected[start:stop]
        if not np.array_equal(ours, theirs):
            raise InputError(_mismatch(engine, reference(), int(documents[row]), ours, theirs))
    return len(rows)


def _candidates(tokenizer_json: bytes) -> list[EngineName]:
    """Fast engines in the order to try.

    BPE with byte fallback comes from SentencePiece; gigatoken is faster on it.
    """
    from_sentencepiece = (
        b'"byte_fallback":true' in tokenizer_json or b'"byte_fallback": true' in tokenizer_json
    )
    return ["gigatoken", "fastokens"] if from_sentencepiece else ["fastokens", "gigatoken"]


def _load_first(
    candidates: list[EngineName], requested: str, tokenizer_json: bytes, parse_special_tokens: bool
) -> tuple[Engine | None, str]:
    """The first engine that is installed and reads the tokenizer; or None and the reason."""
    refusals = []
    for name in candidates:
        try:
            return load_engine(name, tokenizer_json, parse_special_tokens=parse_special_tokens), ""
        except (ConfigError, InputError) as error:
            if requested != "auto":
                raise
            if isinstance(error, InputError):
                refusals.append(str(error))
    if refusals:
        return None, f"the engine is hf: {refusals[0]}"
    return None, "the engine is hf: no fast engine is installed (pip install packprep[fast])"


def _choice(
    engine: Engine, reference: Reference, verdict: str, notes: list[str], **measured: Any
) -> EngineChoice:
    gate = {"engine": engine.name, "version": engine.version, "verdict": verdict, **measured}
    return EngineChoice(engine=engine, reference=reference, gate=gate, notes=notes)


def _load_once(load: Callable[[], Engine]) -> Reference:
    lock = threading.Lock()
    loaded: list[Engine] = []

    def reference() -> Engine:
        with lock:
            if not loaded:
                loaded.append(load())
        return loaded[0]

    return reference


def _sampled(sample: Sequence[str]) -> Iterator[str]:
    total = 0
    for document in sample:
        if total >= SAMPLE_TOTAL:
            return
        text = document[:SAMPLE_DOCUMENT]
        total += len(text.encode())
        yield text


def _narrowed(engine: Engine, reference: Engine, text: str) -> EngineDifference:
    """Halve the text while one of its halves, or its middle, still differs."""
    while True:
        middle, quarter = len(text) // 2, len(text) // 4
        parts = [
            text[:middle],
            text[middle:],
            text[quarter : quarter + middle],
            text[1:],
            text[:-1],
        ]
        parts = [part for part in parts if len(part) < len(text)]
        array = pa.array(parts, pa.large_string())
        bad = unequal(*engine.encode(array), *reference.encode(array))
        if len(bad) == 0 or not text:
            break
        text = parts[bad[0]]
    batch = pa.array([text], pa.large_string())
    return EngineDifference(
        text, engine.encode(batch)[0].tolist(), reference.encode(batch)[0].tolist()
    )


def _mismatch(engine: Engine, reference: Engine, document: int, ours: Ids, theirs: Ids) -> str:
    shorter = min(len(ours), len(theirs))
    place = int(np.argmax(np.append(ours[:shorter] != theirs[:shorter], True)))
    window = slice(place, place + 4)
    return (
        f"document {document}: from token {place:,} on engine {engine.name} {engine.version} gave "
        f"{ours[window].tolist()} and {reference.name} {reference.version} "
        f"{theirs[window].tolist()} "
        f"({len(ours):,} and {len(theirs):,} tokens); build with --engine hf"
    )


def _shown(value: object) -> str:
    """One short line, ASCII only: `'\\u088f'`."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-16:]}"
