"""Comparison of a fast engine's ids with the reference's.

A fast engine is trusted because its ids were compared, never because of its name.

`choose_engine` is the gate before a build: `packprep.engines.probes` and a sample of the real
documents, encoded by both. Texts with a character of the engine's guard may differ, because the
reference encodes them (`packprep.engines.guard`). One different id elsewhere, and `auto` takes the
next engine, at last the reference. It costs 0.1 CPU-seconds and the loading of the reference, and 2
once for a tokenizer whose guard is not known. `verify_batch` is the check during a build: of every
batch, documents chosen by their number alone are encoded again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.engines.backends import (
    Engine,
    EngineName,
    Ids,
    Offsets,
    added_tokens,
    load_engine,
    text_starts,
)
from packprep.engines.compare import first_difference, unequal
from packprep.engines.guard import Guard, GuardedEngine
from packprep.engines.known_guards import guard_for
from packprep.engines.probes import probes
from packprep.engines.sweep import LIMIT, unswept
from packprep.support.ahead import RenewedThreads
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream

# The sample of real documents: the first 2 kB of each, until there are 32 kB; 0.01 CPU-seconds of
# the reference.
SAMPLE_DOCUMENT, SAMPLE_TOTAL = 2 << 10, 32 << 10

# An engine is refused if the reference would encode a larger share of the sampled text: there the
# reference, 20 to 50 times slower, decides the speed.
GUARDED_SHARE = 0.01

# Bytes of a tokenizer.json, of some 60,000 tokens, from which on gigatoken is preferred.
LARGE_TOKENIZER = 4 << 20

# Text that a thread encodes before another one replaces it: fastokens caches up to 100 MB of words
# for each thread. The empty cache of a new thread costs less than 1 % of the instructions of a
# build.
THREAD_BYTES = 24 << 20

_SLOWER = "tokenizers itself tokenizes this build, which takes longer"

Reference = Callable[[], Engine]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The engine of a build, and why it was chosen.

    reference: returns the `hf` engine, loaded at the first call and shared by all threads.
    gate: for the `run` part of the manifest.
    notes: sentences for the user.
    threads: those that call the engine in a build.
    """

    engine: Engine
    reference: Reference
    gate: dict[str, object]
    notes: list[str] = field(default_factory=list)
    threads: RenewedThreads = field(default_factory=lambda: RenewedThreads(THREAD_BYTES))

    def as_dict(self) -> dict[str, str]:
        """Facts with which another process loads the same engine: see `trusted_engine`."""
        guard = self.engine.guard if isinstance(self.engine, GuardedEngine) else Guard()
        return {"engine": self.engine.name, "guard": str(guard)}


def choose_engine(
    requested: Literal["auto"] | EngineName,
    tokenizer_json: bytes,
    *,
    parse_special_tokens: bool = False,
    sample: Sequence[str] = (),
) -> EngineChoice:
    """The engine for a build, compared with the reference where it is another one.

    requested: `auto` takes the first fast engine that is installed, reads the tokenizer and passes
    the gate, and the reference where there is none; a name takes that engine or raises. sample:
    documents of the build; the beginnings of the first few are compared. Raises ConfigError where a
    named engine is not installed, InputError where it cannot read the tokenizer or differs.
    """
    reference = _load_once(
        lambda: load_engine("hf", tokenizer_json, parse_special_tokens=parse_special_tokens)
    )

    def load(name: Any, tokenizer: bytes) -> Engine:
        if name == "hf" and tokenizer is tokenizer_json:
            return reference()
        return load_engine(name, tokenizer, parse_special_tokens=parse_special_tokens)

    candidates = _candidates(tokenizer_json) if requested == "auto" else [requested]
    if candidates == ["hf"]:
        return _choice(reference(), reference, "reference", [])
    unread: list[str] = []
    refusals: list[str] = []
    rejected: dict[str, object] = {}
    for name in candidates:
        try:
            fast = load(name, tokenizer_json)
        except (ConfigError, InputError) as error:
            if requested != "auto":
                raise
            unread += [str(error)] if isinstance(error, InputError) else []
            continue
        start = time.perf_counter()
        reference()
        wall, cpu = time.perf_counter(), time.process_time()
        guard, difference = _compared(fast, reference(), tokenizer_json, sample, load)
        measured = {
            "probes": len(probes(added_tokens(tokenizer_json))),
            "sample_documents": len(list(_sampled(sample))),
            "reference_load_seconds": round(wall - start, 4),
            "seconds": round(time.perf_counter() - wall, 4),
            "cpu_seconds": round(time.process_time() - cpu, 4),
        }
        if difference is None:
            return _guarded(fast, reference, guard, refusals, **rejected | measured)
        note = f"{fast.name} {fast.version} gives other ids than tokenizers: {difference}"
        if requested != "auto":
            raise InputError(f"{note}; use --engine hf or auto")
        refusals.append(note)
        if not rejected:
            rejected = {"rejected": f"{fast.name} {fast.version}", "difference": difference}
    if refusals:
        notes = [f"{note}; {_SLOWER}" for note in refusals]
        return _choice(reference(), reference, "different", notes, **rejected | measured)
    refusal = unread[0] if unread else "no fast engine is installed (pip install packprep[fast])"
    return _choice(reference(), reference, "no fast engine", [f"{_SLOWER}: {refusal}"])


def _compared(
    fast: Engine,
    reference: Engine,
    tokenizer_json: bytes,
    sample: Sequence[str],
    load: Callable[[str, bytes], Engine],
) -> tuple[Guard, str | None]:
    """The engine's guard, and the reason why the engine is refused, None if it is not."""
    texts = [*probes(added_tokens(tokenizer_json)), *_sampled(sample)]
    array = pa.array(texts, pa.large_string())
    try:
        bad = unequal(*fast.encode(array), *reference.encode(array))
        plain = [row for row in bad if texts[row].isascii()]  # no guard holds ASCII characters
        guard = Guard() if plain else guard_for(fast, tokenizer_json, load)
        if guard is None:
            return Guard(), f"for more than {LIMIT:,} characters"
        left = set(bad.tolist()) - set(guard.with_(unswept()).rows(array).tolist())
        if left:
            difference = first_difference(fast, reference, [texts[min(left)]])
            return guard, str(difference)
    except InputError as error:
        return Guard(), str(error)
    documents = pa.array(sample, pa.large_string())
    rows = guard.rows(documents)
    sizes = np.diff(text_starts(documents))
    share = sizes[rows].sum() / max(sizes.sum(), 1)
    if len(rows) > 1 and share > GUARDED_SHARE:
        return guard, (f"for documents with {guard.characters()}, {share:.1%} of the first ones")
    return guard, None


def _guarded(
    fast: Engine, reference: Reference, guard: Guard, notes: list[str], **measured: object
) -> EngineChoice:
    """A fast engine that passed the gate."""
    engine = GuardedEngine(fast, reference, guard.with_(unswept()))
    if not guard:
        return _choice(engine, reference, "equal", notes, **measured)
    note = (
        f"{fast.name} tokenizes this build, and tokenizers the documents with "
        f"{guard.characters()}, for which {fast.name} gives other ids"
    )
    measured = {"guard": str(guard), "guard_characters": len(guard), **measured}
    return _choice(engine, reference, "guarded", [*notes, note], **measured)


def trusted_engine(
    chosen: Mapping[str, str], tokenizer_json: bytes, *, parse_special_tokens: bool = False
) -> EngineChoice:
    """The engine that another process of this build has chosen, not compared again.

    chosen: of `EngineChoice.as_dict`.
    """
    name: Any = chosen["engine"]
    reference = _load_once(
        lambda: load_engine("hf", tokenizer_json, parse_special_tokens=parse_special_tokens)
    )
    if name == "hf":
        return _choice(reference(), reference, "reference", [])
    fast = load_engine(name, tokenizer_json, parse_special_tokens=parse_special_tokens)
    engine = GuardedEngine(fast, reference, Guard.from_text(chosen["guard"]))
    return _choice(engine, reference, "chosen before", [])


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
) -> NDArray[np.int64]:
    """Compare a share of a batch with the reference.

    Returns the places in texts of those that were compared, none for `hf` itself.

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
        return rows[:0]
    expected, expected_offsets = reference().encode(
        texts if len(rows) == len(texts) else texts.take(pa.array(rows, pa.int64()))
    )
    for row, start, stop in zip(rows, expected_offsets[:-1], expected_offsets[1:], strict=True):
        ours, theirs = ids[offsets[row] : offsets[row + 1]], expected[start:stop]
        if not np.array_equal(ours, theirs):
            raise InputError(_mismatch(engine, reference(), int(documents[row]), ours, theirs))
    return rows


def _candidates(tokenizer_json: bytes) -> list[EngineName]:
    """Fast engines in the order to try, the faster first.

    gigatoken is two to three times as fast on BPE with byte fallback, which comes from
    SentencePiece. On other tokenizers both encode at about one speed, but fastokens needs a second
    more to load a large one. scripts/bench/guarded.py compares whole builds.
    """
    from_sentencepiece = (
        b'"byte_fallback":true' in tokenizer_json or b'"byte_fallback": true' in tokenizer_json
    )
    if from_sentencepiece or len(tokenizer_json) > LARGE_TOKENIZER:
        return ["gigatoken", "fastokens"]
    return ["fastokens", "gigatoken"]


def _choice(
    engine: Engine, reference: Reference, verdict: str, notes: list[str], **measured: object
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
