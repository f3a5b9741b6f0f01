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
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..support.errors import InputError
from ..support.hashing import Purpose, drawn, stream
from ..support.limits import cache_folder, keep
from . import probes as _probes
from .encode import flat
from .engine import Fastokens, Ids, Reference
from .tokenizer import Tokenizer

DIFFERENT = "\u017f"
"""Characters for which some version of fastokens gives other ids than `tokenizers`."""

SHARE = 0.001  # of the documents, compared during a build; 2 % of its time


class Gated:
    """A fast engine that passed the gate; the reference encodes texts with known characters."""

    def __init__(self, fast: Fastokens, load_reference: Callable[[], Reference]) -> None:
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

    def compare_sample(self, rows: pa.Table, tokens: pa.Table, tokenizer: Tokenizer) -> None:
        """See `Engine.compare_sample`."""
        chosen = drawn(stream(0, Purpose.VERIFY_ENGINE), np.arange(len(rows)), SHARE)
        places = np.flatnonzero(chosen).tolist()
        is_text = "text" in rows.column_names
        if not places or not (is_text or tokenizer.end_ids == (-1, -1)):
            return  # of pieces, some have ends of their own and others got them
        column = _rows(rows["text" if is_text else "pieces"], places)
        if is_text:
            expected = self.reference.encode(column.fill_null(""))
        else:
            from .encode import encode_pieces

            made = encode_pieces(column, self.reference.encode, tokenizer.token_sizes)
            expected = made.ids, made.offsets
        ids, offsets = flat(_rows(tokens["tokens"], places))
        bos, eos = (int(end >= 0) for end in tokenizer.end_ids)
        some = np.diff(offsets) > 0
        begins, ends = offsets[:-1] + bos * some, offsets[1:] - eos * some
        ours = [ids[first:last] for first, last in zip(begins, ends, strict=True)]
        lengths = np.append(0, np.cumsum(ends - begins))
        bad = unequal((np.concatenate(ours), lengths), expected)
        if len(bad):
            raise InputError(
                f"{self.name} {self.version} gives other ids than tokenizers for a document that "
                f"begins with {str(column[int(bad[0])])[:60]!a}; build with engine: hf"
            )


def _rows(column: Any, rows: Sequence[int]) -> Any:
    """Some rows of a column, as one array. `take` would copy a column of several chunks whole."""
    return pa.concat_arrays([part for row in rows for part in column.slice(row, 1).chunks])


def gated(
    fast: Fastokens, load_reference: Callable[[], Reference], tokenizer: Tokenizer, parses: bool
) -> Gated:
    """The fast engine behind the gate. parses: special tokens in texts are parsed.

    Raises InputError if its ids differ on a probe. The verdict is kept in the cache.
    """
    engine = Gated(fast, load_reference)
    versions = [f"{engine.name} {engine.version}", importlib.metadata.version("tokenizers")]
    decided_by = json.dumps([versions, tokenizer.sha256, parses]).encode()
    digest = hashlib.sha256(decided_by + Path(str(_probes.__file__)).read_bytes())
    path = cache_folder("gate") / f"{digest.hexdigest()}.json"
    try:
        difference = str(json.loads(path.read_bytes())["difference"])
    except (OSError, ValueError, KeyError, TypeError):
        added = json.loads(tokenizer.json or b"{}").get("added_tokens", [])
        texts = _probes.probes([token["content"] for token in added if token.get("content")])
        array = pa.array(texts, pa.large_string())
        bad = unequal(engine.encode(array), engine.reference.encode(array))
        difference = ascii(texts[bad[0]])[:80] if len(bad) else ""
        keep(path, json.dumps({"difference": difference}).encode())
    if difference:
        raise InputError(
            f"{engine.name} {engine.version} gives other ids than tokenizers on {difference}; use "
            "engine hf or auto"
        )
    return engine


def unequal(ids: Ids, expected: Ids) -> Any:
    """Documents whose ids differ, ascending."""
    (ours, offsets), (theirs, of_theirs) = ids, expected
    if len(offsets) != len(of_theirs):
        return np.arange(max(len(of_theirs) - 1, 1))
    if np.array_equal(offsets, of_theirs) and np.array_equal(ours, theirs):
        return np.empty(0, np.int64)
    bounds = zip(offsets[:-1], offsets[1:], of_theirs[:-1], of_theirs[1:], strict=True)
    return np.flatnonzero([not np.array_equal(ours[a:b], theirs[c:d]) for a, b, c, d in bounds])
