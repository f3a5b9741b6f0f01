"""Documents of pieces to tokens: the engine's ids, and the mask that the trained spans give."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Bools, Int8, Int32, Int64

PIECES = pa.list_(
    pa.struct(
        [
            ("text", pa.large_string()),
            ("ids", pa.list_(pa.int32())),
            ("trained", pa.list_(pa.int32())),
        ]
    )
)
"""Pieces of a document. trained: bytes of the text, or ids, at which trained spans begin and end,
in turn; null where everything is trained."""


class Encoded(NamedTuple):
    """ids int32 [tokens], offsets int64 [documents + 1], mask int8 [tokens]."""

    ids: Int32
    offsets: Int64
    mask: Int8


def encode_pieces(
    documents: Any, encode: Callable[[Any], tuple[Int32, Int64]], sizes: Int32 | None
) -> Encoded:
    """Tokens of documents of type PIECES.

    encode: the engine, with special tokens parsed. sizes: of tokens, see `ExactEncoder.sizes`.
    """
    bounds = documents.offsets.to_numpy().astype(np.int64)
    pieces = documents.values.slice(bounds[0], bounds[-1] - bounds[0])
    given, has_ids = pieces.field("ids"), pieces.field("ids").is_valid().to_numpy(False)
    everything = pieces.field("trained").is_null().to_numpy(False)
    places, counts = _flat(pieces.field("trained"))
    ids, offsets = encode(pieces.field("text"))
    lengths = np.diff(offsets)
    mask = np.repeat(everything, lengths)
    if (of_text := np.where(has_ids, 0, counts)).any():
        assert sizes is not None, "spans are of ids where tokens are not the bytes of the text"
        mask |= mask_of_bytes(sizes, ids, offsets, places[np.repeat(~has_ids, counts)], of_text)
    if has_ids.any():
        own, sizes_of = _flat(given)  # the texts of these pieces are empty
        trained = np.repeat(everything, sizes_of)
        of_ids = np.where(has_ids, counts, 0)
        begins = np.repeat(np.cumsum(sizes_of) - sizes_of, of_ids)
        trained |= _inside(places[np.repeat(has_ids, counts)] + begins, len(own))
        lengths = lengths + sizes_of
        which = np.repeat(has_ids, lengths)
        ids, mask = _merged(which, own, ids), _merged(which, trained, mask)
    ends = np.append(0, np.cumsum(lengths))
    return Encoded(ids, ends[bounds - bounds[0]], mask.astype(np.int8))


def _flat(lists: Any) -> tuple[Int64, Int64]:
    """Values of lists, and how many each has; null has none."""
    counts = pa.compute.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return lists.flatten().to_numpy().astype(np.int64), counts


def _inside(places: Int64, size: int) -> Bools:
    """Mask of what is in spans. places: where they begin and end, in turn."""
    steps = np.zeros(size + 1, np.int64)
    np.add.at(steps, places[::2], 1)
    np.add.at(steps, places[1::2], -1)
    return np.cumsum(steps)[:-1] > 0


def _merged(which: Bools, chosen: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Values of two arrays in one. which: True for a value of the first."""
    merged = np.empty(len(which), others.dtype)
    merged[which], merged[~which] = chosen, others
    return merged


def mask_of_bytes(sizes: Int32, ids: Int32, offsets: Int64, places: Int64, counts: Int64) -> Bools:
    """Mask of the tokens that have a byte of a trained span, [tokens].

    sizes: see `token_sizes`. ids, offsets: tokens of texts, [tokens], [texts + 1]. places: bytes of
    a text at which its trained spans begin and end, in turn, counts of them for each text.
    """
    ends = np.cumsum(sizes[ids], dtype=np.int64)
    places = places + np.repeat(np.append(0, ends)[offsets[:-1]], counts)
    # Tokens from the first that ends after a beginning to the last that begins before the end.
    bounds: NDArray[np.int64] = np.empty(len(places), np.int64)
    bounds[::2] = np.searchsorted(ends, places[::2], "right")
    bounds[1::2] = np.searchsorted(ends[:-1], places[1::2], "left") + (places[1::2] > 0)
    # A token may belong to two spans: no bound is before an earlier one.
    bounds = np.concatenate([[0], np.maximum.accumulate(bounds), [len(ids)]])
    mask: Bools = np.repeat(np.arange(len(bounds) - 1) % 2 == 1, np.diff(bounds))
    return mask
