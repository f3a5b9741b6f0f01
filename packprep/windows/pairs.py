"""Preference pairs: two sides of one row that share a pack, such as a chosen and a rejected answer.

A row is one document: the tokens of its first side, then those of its second. It is drawn, held out
and counted as one. It becomes two segments, which are an atom for the packer, or none: a pair that
is too long is truncated on both sides, dropped or refused.

Example: sides of 6 and 2 tokens, max_length=6, truncate -> 4 and 2 tokens at 0 and 6 of the row.
"""

import numpy as np

from packprep.config.stages import Cutting
from packprep.packing.account import Dropped
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Int32, Int64
from packprep.windows.filters import Uncut, filtered, tokens_of
from packprep.windows.labels import Labels, proportional
from packprep.windows.segments import DocumentAccount, Segments, TooLongError

SPLIT = "pair_split"
"""Column of token files: number of tokens in the first side of each row."""


def cut_pairs(
    lengths: Int32,
    split: Int32,
    ends: int,
    cutting: Cutting,
    multiple: int = 1,
    labels: Labels | None = None,
    tokens: Pointers | None = None,
) -> tuple[Segments, DocumentAccount]:
    """Two segments for each pair that is kept, and the account.

    lengths: [rows], tokens of both sides. split: [rows], tokens of the first side. ends: number of
    tokens added to a side, BOS and EOS. tokens: see `Uncut`. Filters apply to each side. Both sides
    must fit a pack together, with their padding to a multiple of `multiple` tokens. Raises
    TooLongError for a pair longer than max_length with overflow error.
    """
    sides = np.stack([split, lengths - split], axis=1).astype(np.int64)
    kept, dropped = filtered(Uncut(parts=sides, ends=ends, tokens=tokens), cutting)
    over = kept & (_padded(sides, multiple).sum(axis=1) > cutting.max_length)
    if cutting.too_long.name == "error" and over.any():
        raise TooLongError(int(np.flatnonzero(over)[0]), int(lengths[over][0]))
    dropped[Dropped.OVERFLOW] = over & (cutting.too_long.name == "drop")
    kept = kept & ~dropped[Dropped.OVERFLOW]
    count = sides.copy()
    if cutting.too_long.name == "truncate" and over.any():
        count[over] = _truncated(sides[over], cutting.max_length, multiple)
    cut = sides - count
    start = np.stack([np.zeros_like(split), split], axis=1) + (
        cut if cutting.too_long.side == "left" else 0
    )
    rows = np.flatnonzero(kept)
    segments = Segments(
        document=np.repeat(rows, 2).astype(np.int32),
        start=start[rows].ravel().astype(np.int32),
        count=count[rows].ravel().astype(np.int32),
        bos=np.zeros(2 * len(rows), np.bool_),
    )
    if labels is not None:
        few = (
            segments.trained(labels, cutting.train_overlap).reshape(-1, 2) < cutting.min_loss_tokens
        ).any(axis=1)
        dropped[Dropped.FEW_LOSS_TOKENS] = np.isin(np.arange(len(lengths)), rows[few])
        segments = segments.take(np.repeat(~few, 2))
        kept = kept & ~dropped[Dropped.FEW_LOSS_TOKENS]
    zeros = np.zeros(len(lengths), np.int32)
    return segments, DocumentAccount(
        truncated=np.where(kept, cut.sum(axis=1), 0).astype(np.int32),
        overlap=zeros.astype(np.int64),
        continuation_bos=zeros,
        dropped=tokens_of(dropped, lengths),
    )


def _padded(tokens: Int64, multiple: int) -> Int64:
    return -(-tokens // multiple) * multiple


def _truncated(sides: Int64, most: int, multiple: int) -> Int64:
    """Tokens kept of each side, [pairs, 2], cut in proportion.

    A side of less than half a pack is not cut.
    """
    first = proportional(sides[:, 0], sides[:, 1], most).astype(np.int64)
    # A pack is a number of whole multiples; each multiple is for one side.
    taken = np.clip(_padded(first, multiple), multiple, most - multiple)
    kept: Int64 = np.minimum(sides, np.stack([taken, most - taken], axis=1))
    return kept
