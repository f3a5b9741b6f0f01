"""The gate: a fast engine is trusted because its ids were compared, never because of its name.

Before a build, it encodes the probes, which differ in every known way, as the reference does; the
verdict is kept in the user's cache folder, by tokenizer and versions. During a build, one document
in 1,000 is encoded by both. Texts with a character of `DIFFERENT` are left to the reference: those
that scripts/checks/known_guards.py finds for fastokens.
"""

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..support.cache import cache_folder, keep
from ..support.errors import ConfigError, InputError
from ..support.hashing import Purpose, drawn, stream
from .encode import flat, one_array
from .engine import Engine, Fastokens, Ids, Reference
from .probes import probes
from .tokenizer import Tokenizer

DIFFERENT = "\u017f"
"""Characters for which some version of fastokens gives other ids than `tokenizers`."""

SHARE = 0.001  # of the documents, compared during a build; 2 % of its time


class Gated:
    """A fast engine that passed the gate; the reference encodes texts with known characters."""

    def __init__(self, fast: Engine, load_reference: Callable[[], Reference]) -> None:
        self.fast, self._load, self._lock = fast, load_reference, threading.Lock()
        self.name, self.version = fast.name, fast.version

    @cached_property
    def _reference(self) -> Reference:
        return self._load()

    @property
    def reference(self) -> Reference:
        """The reference, loaded when it is first needed."""
        with self._lock:
            return self._reference

    def encode(self, texts: Any) -> Ids:
        """See `Engine.encode`."""
        known = pc.match_substring_regex(texts, f"[{DIFFERENT}]")
        if not pc.any(known).as_py():
            return self.fast.encode(texts)
        rows = known.to_numpy(zero_copy_only=False)
        parts = {True: self.reference.encode(texts.filter(known))}
        parts[False] = self.fast.encode(texts.filter(pc.invert(known)))
        lengths = np.empty(len(texts), np.int64)
        for side, (_, offsets) in parts.items():
            lengths[rows == side] = np.diff(offsets)
        ids = np.empty(lengths.sum(), np.int32)
        for side, (of_side, _) in parts.items():
            ids[np.repeat(rows == side, lengths)] = of_side
        return ids, np.append(0, np.cumsum(lengths))


def choose_engine(
    tokenizer: Tokenizer, requested: str = "auto", *, parse_special_tokens: bool = False
) -> tuple[Engine, list[str]]:
    """The engine of a build, and notes about it for the user.

    requested: auto takes the fast engine where it passes the gate, else the reference; hf or
    fastokens take that one. Raises ConfigError or InputError if it cannot be taken.
    """
    content = tokenizer.json
    if content is None:
        raise ConfigError("--tokenizer is a number, and rows are text; name a tokenizer")

    def reference() -> Reference:
        return Reference(content, parse_special_tokens=parse_special_tokens)

    if requested == "hf":
        return reference(), []
    slower = "tokenizers itself tokenizes this build, which takes longer"
    try:
        fast = Fastokens(content, parse_special_tokens=parse_special_tokens)
        gated = Gated(fast, reference)
        difference = _verdict(gated, tokenizer, parse_special_tokens)
    except (ConfigError, InputError) as error:
        if requested != "auto":
            raise
        return reference(), [f"{slower}: {error}"]
    if not difference:
        return gated, []
    note = f"fastokens {fast.version} gives other ids than tokenizers on {difference}"
    if requested != "auto":
        raise InputError(f"{note}; use engine hf or auto")
    return reference(), [f"{note}; {slower}"]


def _verdict(engine: Gated, tokenizer: Tokenizer, parses: bool) -> str:
    """The first probe on which the ids differ; "" if none does. Kept in the cache."""
    versions = [f"{engine.name} {engine.version}", importlib.metadata.version("tokenizers")]
    texts = probes(_added_tokens(tokenizer))
    decided_by = json.dumps([versions, tokenizer.sha256, parses, texts], ensure_ascii=True)
    path = cache_folder("gate") / f"{hashlib.sha256(decided_by.encode()).hexdigest()}.json"
    try:
        return str(json.loads(path.read_bytes())["difference"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    array = pa.array(texts, pa.large_string())
    bad = unequal(engine.encode(array), engine.reference.encode(array))
    difference = ascii(texts[bad[0]])[:80] if len(bad) else ""
    keep(path, json.dumps({"difference": difference}).encode())
    return difference


def _added_tokens(tokenizer: Tokenizer) -> list[str]:
    """Texts of the added tokens of a tokenizer.json."""
    parsed: Any = json.loads(tokenizer.json or b"{}")
    return [token["content"] for token in parsed.get("added_tokens", []) if token.get("content")]


def unequal(ids: Ids, expected: Ids) -> Any:
    """Documents whose ids differ, ascending."""
    (ours, offsets), (theirs, of_theirs) = ids, expected
    if len(offsets) != len(of_theirs):
        return np.arange(max(len(of_theirs) - 1, 1))
    if np.array_equal(offsets, of_theirs) and np.array_equal(ours, theirs):
        return np.empty(0, np.int64)
    bounds = zip(offsets[:-1], offsets[1:], of_theirs[:-1], of_theirs[1:], strict=True)
    return np.flatnonzero([not np.array_equal(ours[a:b], theirs[c:d]) for a, b, c, d in bounds])


def compare_sample(
    engine: Engine | None, rows: pa.Table, tokens: pa.Table, tokenizer: Tokenizer
) -> None:
    """Encode some documents of a table again with the reference.

    rows, tokens: before and after `encode`. Raises InputError at the first whose ids differ.
    """
    if not isinstance(engine, Gated) or "text" not in rows.column_names:
        return
    chosen = drawn(stream(0, Purpose.VERIFY_ENGINE), np.arange(len(rows)), SHARE)
    places = np.flatnonzero(chosen)
    if not len(places):
        return
    texts = one_array(rows["text"]).fill_null("").take(pa.array(places))
    expected = engine.reference.encode(texts)
    ids, offsets = flat(one_array(tokens["tokens"]).take(pa.array(places)))
    bos, eos = (int(end >= 0) for end in tokenizer.end_ids)
    some = np.diff(offsets) > 0
    begins, ends = offsets[:-1] + bos * some, offsets[1:] - eos * some
    inside = np.zeros(len(ids) + 1, np.int64)
    np.add.at(inside, begins, 1)
    np.add.at(inside, ends, -1)
    ours = ids[np.cumsum(inside)[:-1] > 0].astype(np.int32)
    bad = unequal((ours, np.append(0, np.cumsum(ends - begins))), expected)
    if len(bad):
        raise InputError(
            f"{engine.name} {engine.version} gives other ids than tokenizers for a document that "
            f"begins with {texts[int(bad[0])].as_py()[:60]!a}; build with engine: hf"
        )
