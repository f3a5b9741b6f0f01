"""The account: sums of tokens, documents and packs, and the figures of report.json.

Windows, sources and outputs add up the same. For all documents: tokens_in + overlap +
continuation_bos + filler == tokens_packed + truncated + sum(dropped).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..schemas.arrays import Bools, Int32, Int64
from ..schemas.manifest import TERMS
from ..schemas.tokens import Documents
from .types import Dropped, Packs

BATCH = 8
"""Documents of a batch of `padding_of_batch`: the default of transformers and TRL for a device."""


@dataclass(kw_only=True)
class Sums:
    """Counts of a window, a source or an output; `+` adds two of them.

    documents: of rows and their parts, once each; empty: without tokens. dropped,
    dropped_documents: by reason. bos_found, eos_found: documents that begin with BOS, or end with
    EOS, read from the tokens of those that are drawn. loss_tokens: labels; None if rows have none.
    trained_tokens: tokens in packs of the training split. planned: packs before small ones were
    dropped, and multiples made.
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

    def as_dict(self) -> dict[str, Any]:
        """The sums as plain JSON values."""
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self).items()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Sums":
        """Sums from the JSON of `as_dict`."""
        made: dict[str, Any] = {
            k: Counter(v) if isinstance(v, dict) else v for k, v in value.items()
        }
        return Sums(**made)

    @property
    def ledger(self) -> dict[str, Any]:
        """The terms of the equation, with the reasons that dropped something."""
        dropped = {reason: count for reason, count in sorted(self.dropped.items()) if count}
        return {name: getattr(self, name) for name in TERMS} | {"dropped": dropped}

    @property
    def drawn(self) -> int:
        """Tokens of the documents that were drawn."""
        return self.tokens_in - self.dropped[Dropped.NOT_DRAWN]

    @property
    def tokens_lost(self) -> int:
        """Tokens of documents that were drawn and are in no pack."""
        return self.truncated + self.dropped.total() - self.dropped[Dropped.NOT_DRAWN]

    def rate(self, end: str) -> float:
        """Share of the drawn documents with tokens that have BOS, or EOS. end: bos or eos."""
        return _share(getattr(self, f"{end}_found"), getattr(self, f"{end}_added"))


def account(packs: Packs, planned: Packs, split: str, ends: tuple[int, int]) -> dict[int, Sums]:
    """Account of one window by number of source; -1 counts packs and filler packs.

    packs: as they are written. planned: before packs were left out to make a multiple. ends: ids of
    BOS and EOS, looked for in the tokens; -1 is not added.
    """
    documents, segments, lost = packs.documents, packs.segments, packs.lost
    source, of_segment = documents.source, documents.source[segments.document]
    placed, lengths = packs.placed, segments.lengths
    whole = (documents.part != 1) | (segments.atom is None)  # a pair is one document
    has_ids, size = documents.length > 0, int(source.max(initial=-1)) + 1

    def by(numbers: Int32, counts: Int32 | Int64 | Bools) -> Int64:
        return np.bincount(numbers, weights=counts, minlength=size).astype(np.int64)

    counts = {
        "documents": by(source, whole),
        "empty": by(source, whole & ~has_ids),
        "tokens_in": by(source, documents.length),
        "truncated": by(source, lost.truncated),
        "continuation_bos": by(of_segment, segments.bos),
        "segments": by(of_segment, placed),
        "tokens_packed": by(of_segment, packs.padded * placed),
        "filler": by(of_segment, (packs.padded - lengths) * placed),
        "trained_tokens": by(of_segment, lengths * (placed & (split == "train"))),
    }
    if segments.repeated is not None:
        counts["overlap"] = by(of_segment, segments.repeated)
    if segments.trained is not None:
        counts["loss_tokens"] = by(of_segment, segments.trained * placed)
    for end, token in zip(("bos", "eos"), ends, strict=True):
        if token >= 0:
            counts[f"{end}_added"] = by(source, has_ids)
            some = documents.take(has_ids)
            last = some.length - 1 if end == "eos" else np.zeros_like(some.length)
            # Read the tokens, do not rely on what was added: a gate must check the real ones.
            matches = some.tokens.shifted(last).read() == token
            counts[f"{end}_found"] = by(some.source, matches)
    dropped = {reason: by(source, tokens) for reason, tokens in lost.dropped.items()}
    dropped_documents = {r: by(source, whole & (tokens > 0)) for r, tokens in lost.dropped.items()}
    left_out = {Dropped.SMALL_PACK: ~planned.placed, Dropped.REMAINDER: planned.placed & ~placed}
    for reason, which in left_out.items():
        dropped[reason] = by(of_segment, lengths * which)
    fillers = int((packs.order < 0).sum())
    rest = Sums(segments=fillers, tokens_packed=fillers, filler=fillers, packs=len(packs))
    rest.planned, rest.bound = packs.planned, packs.bound

    def of_source(counts: Mapping[Dropped, Int64], number: int) -> Counter[str]:
        return Counter({str(r): int(c[number]) for r, c in counts.items() if c[number]})

    return {
        number: Sums(
            **{name: int(count[number]) for name, count in counts.items()},
            dropped=of_source(dropped, number),
            dropped_documents=of_source(dropped_documents, number),
        )
        for number in np.unique(source).tolist()
    } | {-1: rest}


def beside(left: Iterable[Documents], again: Iterable[Documents]) -> dict[int, Sums]:
    """Account by number of source of what windows cannot know.

    left: documents that are in no window. again: those that windows count once more.
    """
    by_source: dict[int, Sums] = {}
    for parts, sign in ((left, 1), (again, -1)):
        for documents in parts:
            for number in np.unique(documents.source).tolist():
                lengths = documents.length[documents.source == number]
                tokens, some = int(lengths.sum(dtype=np.int64)), int((lengths > 0).sum())
                sums = Sums(documents=sign * len(lengths), empty=sign * (len(lengths) - some))
                if parts is left:
                    sums.tokens_in = tokens
                    sums.dropped[str(Dropped.NOT_DRAWN)] = tokens
                    sums.dropped_documents[str(Dropped.NOT_DRAWN)] = some
                by_source[number] = by_source.get(number, Sums()) + sums
    return by_source


def _share(part: float, total: float, if_empty: float = 0.0) -> float:
    return part / total if total else if_empty


FIGURES: dict[str, Callable[[Sums, int], float | None]] = {
    "utilization": lambda s, n: _share(s.tokens_packed - s.filler, s.packs * n, 1.0),
    "tokens_lost": lambda s, _: s.tokens_lost,
    "tokens_lost_share": lambda s, _: _share(s.tokens_lost, s.drawn),
    "packs": lambda s, _: s.packs,
    "segments": lambda s, _: s.segments,
    "loss_tokens": lambda s, _: s.loss_tokens,
    "loss_utilization": lambda s, n: (
        None if s.loss_tokens is None else _share(s.loss_tokens, s.packs * n, 1.0)
    ),
    "bos_rate": lambda s, _: s.rate("bos"),
    "eos_rate": lambda s, _: s.rate("eos"),
    "bound": lambda s, _: s.bound,
    "gap": lambda s, _: s.planned - s.bound,
    "gap_share": lambda s, _: _share(s.planned - s.bound, s.bound),
}
"""Computed numbers of report.json: f(sums, max_length), None if there is none."""
MEANS = {"bias": "segments", "straggler": "packs", "padding_of_batch": "tokens"}
"""Figures of windows, and the number of a window by which their mean is weighted."""


def padding(lengths: Int32, max_length: int, batch: int) -> float:
    """Share of padding if so many documents were padded to their longest; those of 0 left out."""
    cut = np.minimum(lengths[lengths > 0], max_length)
    starts = np.arange(0, len(cut), batch)
    if not len(starts):
        return 0.0
    places = np.maximum.reduceat(cut, starts) * np.minimum(len(cut) - starts, batch)
    return float(1 - cut.sum(dtype=np.int64) / places.sum(dtype=np.int64))


def figures_of(
    sums: Sums, max_length: int, windows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """The computed numbers of report.json. windows: facts of each, with their figures."""
    computed = {name: figure(sums, max_length) for name, figure in FIGURES.items()}
    values = {name: value for name, value in computed.items() if value is not None}
    for name, of in MEANS.items():
        terms = sum(window[of] * window[name] for window in windows)
        values[name] = _share(terms, sum(window[of] for window in windows))
    return values
