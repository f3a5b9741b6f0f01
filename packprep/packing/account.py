"""The account: sums of tokens, documents and packs, and the figures computed from them.

Windows, sources, plans and outputs fill the same `Sums`. Sums can be added; shares, rates and means
cannot. These are computed from sums in this module only, so report.json, a merge, the rows of a
plan and the statistics of an output agree on them; `packprep.packing.figures` lists them.
"""

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Literal

from packprep.schemas.report import Ledger
from packprep.support.clock import START
from packprep.support.from_json import from_json

Takes = Literal["whole documents", "tails", "any part"]


class Dropped(StrEnum):
    """Reason why tokens of documents are in no pack; the value is its name in the ledger.

    takes: the part of a document that is dropped.
    words: the reason for people.
    place: where the tokens are, with the values of the options that drop them.
    cure: what keeps them.
    """

    SKIP_ROWS = (
        "skip_rows",
        "whole documents",
        "rows of skip_rows",
        "in rows that {skip_rows} lists",
        "take lines out of the file of skip_rows",
    )
    TOO_SHORT = (
        "too_short",
        "whole documents",
        "too short",
        "in documents shorter than min_document_tokens {min_document_tokens:,}",
        "lower min_document_tokens",
    )
    TOO_LONG = (
        "too_long",
        "whole documents",
        "too long",
        "in documents longer than max_document_tokens {max_document_tokens:,}",
        "raise max_document_tokens",
    )
    OVERFLOW = (
        "overflow",
        "whole documents",
        "longer than a pack",
        "in documents longer than max_length {max_length:,}",
        "raise max_length or choose overflow split or truncate",
    )
    SHORT_TAIL = (
        "short_tail",
        "tails",
        "short last pieces",
        "in last pieces shorter than min_document_tokens {min_document_tokens:,}",
        "lower min_document_tokens",
    )
    FEW_LOSS_TOKENS = (
        "few_loss_tokens",
        "any part",
        "few loss tokens",
        "in segments with fewer trained tokens than min_loss_tokens {min_loss_tokens:,}",
        "lower min_loss_tokens",
    )
    SMALL_PACK = (
        "small_pack",
        "any part",
        "packs with few tokens",
        "in packs smaller than min_pack_tokens {min_pack_tokens:,}",
        "lower min_pack_tokens",
    )
    REMAINDER = (
        "remainder",
        "any part",
        "left-over packs",
        "in packs beyond a multiple of {packs_multiple_of:,}",
        "choose packs_multiple_of N:fill or a smaller packs_multiple_of",
    )
    NOT_DRAWN = (
        "not_drawn",
        "whole documents",
        "not drawn",
        "not drawn",
        "take more of each source",
    )

    takes: Takes
    words: str
    place: str
    cure: str

    def __new__(cls, value: str, *row: str) -> "Dropped":
        reason = str.__new__(cls, value)
        reason._value_ = value
        for name, each in zip(("takes", "words", "place", "cure"), row, strict=False):
            setattr(reason, name, each)
        return reason


DROPPING = frozenset(
    name for reason in Dropped for _, name, *_ in Formatter().parse(reason.place) if name
)
"""Options that decide what is dropped."""


@dataclass(kw_only=True)
class Sums:
    """Counts of a window, a source, a plan or an output; `+` adds two of them.

    The ledger always balances: tokens_in + overlap + continuation_bos + filler == tokens_packed +
    shared + truncated + sum(dropped).

    dropped: tokens by reason.
    documents: rows.
    empty: rows without tokens.
    bos_found, eos_found: documents that begin with BOS, or end with EOS, read from the tokens.
    loss_tokens: labels; None if rows have none.
    trained_tokens: tokens in packs of the training split.
    repeated_documents, repeated_tokens: extra copies that a mix draws.
    max_length: tokens a pack can hold; 0 if packs are not counted.
    shorter: places that packs of phases with a smaller max_length lack.
    planned: packs before small ones were dropped, and remainders dropped or filled.
    bound: lower bound on the packs of any plan.
    measured: by figure, a weighted term for each window; see `mean`.
    """

    tokens_in: int = 0
    overlap: int = 0
    continuation_bos: int = 0
    filler: int = 0
    tokens_packed: int = 0
    truncated: int = 0
    shared: int = 0
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
    repeated_documents: int = 0
    repeated_tokens: int = 0
    max_length: int = 0
    shorter: int = 0
    packs: int = 0
    planned: int = 0
    bound: int = 0
    measured: dict[str, list[float]] = field(default_factory=dict)

    def __add__(self, other: "Sums") -> "Sums":
        """The sum of both. Raises ValueError if their packs differ in length."""
        if self.max_length and other.max_length and self.max_length != other.max_length:
            raise ValueError(
                f"packs of {self.max_length} tokens and packs of {other.max_length} tokens cannot "
                "be added"
            )
        added = {name: operator.add(getattr(self, name), getattr(other, name)) for name in _ADDED}
        labels = [sums.loss_tokens for sums in (self, other) if sums.loss_tokens is not None]
        loss_tokens = sum(labels) if labels else None
        return Sums(
            **added,
            loss_tokens=loss_tokens,
            max_length=self.max_length or other.max_length,
            measured={
                name: self.measured.get(name, []) + other.measured.get(name, [])
                for name in self.measured | other.measured
            },
        )

    @staticmethod
    def total(parts: "Iterable[Sums]") -> "Sums":
        """The sum of all of them."""
        return sum(parts, Sums())

    @staticmethod
    def of_ledger(ledger: Mapping[str, object]) -> "Sums":
        """Sums from the ledger of a report.json or a manifest, with BOS and EOS if it counts them.

        Reasons of a later version are accepted: a ledger that is only read needs no known reasons.
        """
        counts = {key: ledger[key] for key in (*_LEDGER, "dropped")}
        counts |= {
            key: ledger[key] for key in ("shared", "bos_added", "eos_added") if key in ledger
        }
        return from_json(Sums, counts)

    @property
    def ledger(self) -> Ledger:
        """The terms of the ledger's equation, with the reasons that dropped something."""
        dropped = {
            reason: self.dropped[reason] for reason in sorted(self.dropped) if self.dropped[reason]
        }
        terms: Ledger = {
            "tokens_in": self.tokens_in,
            "overlap": self.overlap,
            "continuation_bos": self.continuation_bos,
            "filler": self.filler,
            "tokens_packed": self.tokens_packed,
            "truncated": self.truncated,
            "dropped": dropped,
        }
        if self.shared:
            terms["shared"] = self.shared
        return terms

    @property
    def tokens_put_in(self) -> int:
        """The left side of the ledger's equation."""
        return self.tokens_in + self.overlap + self.continuation_bos + self.filler

    @property
    def tokens_kept(self) -> int:
        """Tokens in packs, without padding."""
        return self.tokens_packed - self.filler

    @property
    def tokens_lost(self) -> int:
        """Tokens of the input that are in no pack."""
        return self.truncated + self.dropped.total()

    @property
    def tokens_lost_share(self) -> float:
        return _share(self.tokens_lost, self.tokens_in, 0.0)

    @property
    def drawn(self) -> "Sums":
        """These sums without the tokens that a mix does not draw."""
        not_drawn = self.dropped[Dropped.NOT_DRAWN]
        dropped = self.dropped - Counter({Dropped.NOT_DRAWN: not_drawn})
        return dataclasses.replace(self, tokens_in=self.tokens_in - not_drawn, dropped=dropped)

    @property
    def places(self) -> int:
        """Tokens that the packs can hold."""
        return self.packs * self.max_length - self.shorter

    @property
    def utilization(self) -> float:
        """Share of the places that hold tokens of documents, 0..1; 1 without packs."""
        return _share(self.tokens_kept, self.places, 1.0)

    @property
    def loss_utilization(self) -> float:
        """Share of the places that have a label, 0..1; 1 without packs."""
        return _share(self.loss_tokens or 0, self.places, 1.0)

    @property
    def gap(self) -> int:
        """Packs above the bound."""
        return self.planned - self.bound

    @property
    def gap_share(self) -> float:
        return _share(self.gap, self.bound, 0.0)

    def mean(self, name: str, weight: str) -> float:
        """Mean over windows of a figure; its terms in `measured` are figure x weight."""
        return _share(sum(self.measured.get(name, ())), getattr(self, weight), 0.0)

    @property
    def documents_with_tokens(self) -> int:
        return self.documents - self.empty

    @property
    def bos_rate(self) -> float:
        """Share of the documents with tokens that begin with BOS; 0 if there are none."""
        return _share(self.bos_found, self.documents_with_tokens, 0.0)

    @property
    def eos_rate(self) -> float:
        """Share of the documents with tokens that end with EOS; 0 if there are none."""
        return _share(self.eos_found, self.documents_with_tokens, 0.0)

    def tokens_per_second(self, seconds: Mapping[str, float]) -> float:
        """Tokens in over the seconds of a build without its start; seconds: of report.json."""
        return round(self.tokens_in / max(seconds["total"] - seconds.get(START, 0.0), 1e-9), 1)


_FIELDS = tuple(spec.name for spec in dataclasses.fields(Sums))
_ADDED = tuple(name for name in _FIELDS if name not in ("loss_tokens", "max_length", "measured"))
_LEDGER = ("tokens_in", "overlap", "continuation_bos", "filler", "tokens_packed", "truncated")


def _share(part: float, total: int, if_empty: float) -> float:
    return part / total if total else if_empty
