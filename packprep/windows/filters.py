"""Filters of whole documents: a row for each reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from packprep.config.stages import Cutting
from packprep.packing.account import Dropped
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Bools, Int32


@dataclass(frozen=True, kw_only=True)
class Uncut:
    """Documents before they are cut.

    parts: [parts, documents], see `Documents.parts`. ends: number of tokens added to a part, BOS
    and EOS. tokens: [documents], the first token of each; None if lengths alone are known.
    skipped: [documents], True for those of rows that skip_rows lists; None if it lists none.
    """

    parts: Int32
    ends: int
    tokens: Pointers | None
    skipped: Bools | None = None


def _in_skip_rows(uncut: Uncut, cutting: Cutting) -> Bools:
    return np.zeros((1, 1), np.bool_) if uncut.skipped is None else uncut.skipped[None]


def _too_short(uncut: Uncut, cutting: Cutting) -> Bools:
    return uncut.parts < max(cutting.min_document_tokens + uncut.ends, 1)


def _too_long(uncut: Uncut, cutting: Cutting) -> Bools:
    most = 2**31 if cutting.max_document_tokens is None else cutting.max_document_tokens
    return uncut.parts > most + uncut.ends


FILTERS: Mapping[Dropped, Callable[[Uncut, Cutting], Bools]] = {
    Dropped.SKIP_ROWS: _in_skip_rows,
    Dropped.TOO_SHORT: _too_short,
    Dropped.TOO_LONG: _too_long,
}
"""Functions that say which parts, [parts, documents], drop their document. The first one counts.

One row of a mask is for all parts, one column for all documents.
"""


def filtered(uncut: Uncut, cutting: Cutting) -> tuple[Bools, dict[Dropped, Bools]]:
    """Documents with tokens that no filter drops, [documents], and those that each drops."""
    kept: Bools = np.any(uncut.parts, axis=0)
    dropped: dict[Dropped, Bools] = {}
    for reason, drops in FILTERS.items():
        dropped[reason] = kept & np.any(drops(uncut, cutting), axis=0)
        kept = kept & ~dropped[reason]
    return kept, dropped


def tokens_of(rows: Mapping[Dropped, Bools], lengths: Int32) -> dict[Dropped, Int32]:
    """Tokens of each document by the reason that drops it, without reasons that drop none."""
    return {
        reason: np.where(dropped, lengths, 0).astype(np.int32)
        for reason, dropped in rows.items()
        if dropped.any()
    }
