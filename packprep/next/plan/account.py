"""The account: sums of tokens, documents and packs. Windows, sources and outputs add up the same.

For all documents: tokens_in + overlap + continuation_bos + filler == tokens_packed + truncated +
sum(dropped).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..schemas.arrays import Bools, Int32, Int64
from .types import Dropped, Packs

_LEDGER = ("tokens_in", "overlap", "continuation_bos", "filler", "tokens_packed", "truncated")


@dataclass(kw_only=True)
class Sums:
    """Counts of a window, a source or an output; `+` adds two of them.

    documents: of rows and their parts; empty: without tokens. dropped, dropped_documents: by
    reason. bos_found, eos_found: documents that begin with BOS, or end with EOS, read from the
    tokens. loss_tokens: labels; None if rows have none. trained_tokens: tokens in packs of the
    training split. planned: packs before small ones were dropped, and multiples made.
    """

    tokens_in: int = 0
    overlap: int = 0
    continuation_bos: int = 0
    filler: int = 0
    tokens_packed: int = 0
    truncated: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    empty: int = 0
    dropped_documents: Counter[str] = field(default_factory=Counter)
    bos_added: int = 0
    eos_added: int = 0
    bos_found: int = 0
    eos_found: int = 0
    segments: int = 0
    loss_tokens: int | None = None
    trained_tokens: int = 0
    packs: int = 0
    planned: int = 0
    bound: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        """The sum of both."""
        added = {}
        for spec in fields(self):
            one, two = getattr(self, spec.name), getattr(other, spec.name)
            added[spec.name] = one if two is None else two if one is None else one + two
        return Sums(**added)

    @staticmethod
    def total(parts: "Iterable[Sums]") -> "Sums":
        """The sum of all of them."""
        return sum(parts, Sums())

    def as_dict(self) -> dict[str, Any]:
        """The sums as plain JSON values."""
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self).items()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Sums":
        """Sums from the JSON of `vars`."""
        counters = ("dropped", "dropped_documents")
        made: dict[str, Any] = {k: Counter(v) if k in counters else v for k, v in value.items()}
        return Sums(**made)

    @property
    def ledger(self) -> dict[str, Any]:
        """The terms of the equation, with the reasons that dropped something."""
        dropped = {reason: count for reason, count in sorted(self.dropped.items()) if count}
        return {name: getattr(self, name) for name in _LEDGER} | {"dropped": dropped}

    @property
    def tokens_lost(self) -> int:
        """Tokens of the input that are in no pack."""
        return self.truncated + self.dropped.total()

    @property
    def balanced(self) -> bool:
        """True if the equation holds."""
        put_in = self.tokens_in + self.overlap + self.continuation_bos + self.filler
        return put_in == self.tokens_packed + self.tokens_lost


def account(
    packs: Packs, planned: Packs, split: str, ends: Mapping[str, int | None]
) -> dict[int, Sums]:
    """Account of one window by number of source; -1 counts packs and filler packs.

    packs: as they are written. planned: before packs were left out to make a multiple. ends: ids of
    BOS and EOS, looked for in the tokens; None is not added.
    """
    documents, segments, lost = packs.documents, packs.segments, packs.lost
    source, of_segment = documents.source, documents.source[segments.document]
    placed, small = packs.placed, ~planned.placed
    left_out = planned.placed & ~placed
    has_ids, size = documents.length > 0, int(source.max(initial=-1)) + 1

    def by(numbers: Int32, counts: Int32 | Int64 | Bools) -> Int64:
        return np.bincount(numbers, weights=counts, minlength=size).astype(np.int64)

    kept = np.where(placed, packs.padded, 0)
    counts = {
        "documents": by(source, np.ones_like(has_ids)),
        "empty": by(source, ~has_ids),
        "tokens_in": by(source, documents.length),
        "truncated": by(source, lost.truncated),
        "overlap": by(source, lost.overlap),
        "continuation_bos": by(source, lost.bos),
        "segments": by(of_segment, placed),
        "tokens_packed": by(of_segment, kept),
        "filler": by(of_segment, np.where(placed, packs.padded - segments.lengths, 0)),
        "trained_tokens": by(of_segment, np.where(placed, segments.lengths, 0))
        * (split == "train"),
    }
    for end, token in ends.items():
        if token is not None:
            counts[f"{end}_added"] = by(source, has_ids)
            some = documents.take(has_ids)
            last = some.length - 1 if end == "eos" else np.zeros_like(some.length)
            # Read the tokens, do not rely on what was added: a gate must check the real ones.
            matches = some.tokens.shifted(last).read() == token
            counts[f"{end}_found"] = by(some.source, matches)
    if segments.trained is not None:
        counts["loss_tokens"] = by(of_segment, np.where(placed, segments.trained, 0))
    dropped = {reason: by(source, tokens) for reason, tokens in lost.dropped.items()}
    dropped_documents = {reason: by(source, tokens > 0) for reason, tokens in lost.dropped.items()}
    for reason, which in ((Dropped.SMALL_PACK, small), (Dropped.REMAINDER, left_out)):
        dropped[reason] = by(of_segment, np.where(which, segments.lengths, 0))
    fillers = int((packs.order < 0).sum())
    rest = Sums(segments=fillers, tokens_packed=fillers, filler=fillers, packs=len(packs))
    rest.planned, rest.bound = packs.planned, packs.bound
    return {
        number: Sums(
            **{name: int(count[number]) for name, count in counts.items()},
            dropped=_counter(dropped, number),
            dropped_documents=_counter(dropped_documents, number),
        )
        for number in np.unique(source).tolist()
    } | {-1: rest}


def _counter(counts: Mapping[Dropped, Int64], source: int) -> Counter[str]:
    return Counter({str(r): int(c[source]) for r, c in counts.items() if c[source]})
