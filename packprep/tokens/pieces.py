"""Documents of pieces to tokens: the engine's ids, and the mask that the trained spans give."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..chat.types import PIECES
from ..schemas.arrays import Int8, Int32, Int64


class Encoded(NamedTuple):
    """ids int32 [tokens], offsets int64 [documents + 1], mask int8 [tokens] or None."""

    ids: Int32
    offsets: Int64
    mask: Int8 | None


def encode_pieces(
    documents: Any, encode: Callable[[Any], tuple[Int32, Int64]], sizes: Int32 | None
) -> Encoded:
    """Tokens of documents of type PIECES.

    encode: the engine, with special tokens parsed. sizes: of tokens, see `token_sizes`.
    """
    bounds = documents.offsets.to_numpy().astype(np.int64)
    pieces = documents.values.slice(bounds[0], bounds[-1] - bounds[0])
    own, sizes_of_ids = _flat(pieces.field("ids"))
    of_ids = pieces.field("ids").is_valid().to_numpy(False)
    ids, offsets = encode(pieces.field("text"))  # empty where a piece is ids
    lengths = np.diff(offsets) + sizes_of_ids
    ends = np.append(0, np.cumsum(lengths))
    merged = np.empty(ends[-1], ids.dtype)
    is_own = np.repeat(of_ids, lengths)
    merged[is_own], merged[~is_own] = own, ids
    if documents.type != PIECES:
        return Encoded(merged, ends[bounds - bounds[0]], None)
    places, counts = _flat(pieces.field("trained"))
    if (in_text := np.repeat(~of_ids, counts)).any():
        assert sizes is not None, "spans are of ids where tokens are not the bytes of the text"
        places[in_text] = _tokens_of(
            places[in_text], sizes[ids], offsets, np.where(of_ids, 0, counts)
        )
        # From tokens of all texts to those of all pieces.
        before = np.repeat(ends[:-1] - offsets[:-1], counts)
        places[in_text] += before[in_text]
    places[~in_text] += np.repeat(ends[:-1], counts)[~in_text]
    steps = np.zeros(ends[-1] + 1, np.int64)
    np.add.at(steps, places[::2], 1)
    np.add.at(steps, places[1::2], -1)
    everything = pieces.field("trained").is_null().to_numpy(False)
    mask = (np.cumsum(steps)[:-1] > 0) | np.repeat(everything, lengths)
    return Encoded(merged, ends[bounds - bounds[0]], mask.astype(np.int8))


def _flat(lists: Any) -> tuple[Int64, Int64]:
    """Values of lists, and how many each has; null has none."""
    counts = pa.compute.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return lists.flatten().to_numpy().astype(np.int64), counts


def _tokens_of(places: Int64, sizes: Int32, offsets: Int64, counts: Int64) -> Int64:
    """Tokens at which spans of bytes begin and end: those that have a byte of the span.

    places: bytes of a text at which its spans begin and end, in turn, counts of them for each text.
    sizes: bytes of each token of the texts; offsets: first token of each text, [texts + 1].
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    places = places + np.repeat(np.append(0, ends)[offsets[:-1]], counts)
    tokens = np.empty(len(places), np.int64)
    tokens[::2] = np.searchsorted(ends, places[::2], "right")
    tokens[1::2] = np.searchsorted(ends[:-1], places[1::2], "left") + (places[1::2] > 0)
    # An empty span has no token, and a token may belong to two spans.
    tokens[1::2] = np.maximum(tokens[::2], tokens[1::2])
    return tokens


def token_sizes(parsed: dict[str, Any]) -> Int32 | None:
    """Bytes of each token of a byte-level BPE that takes every text as it is; None for others."""
    model, normalizer = parsed["model"], parsed.get("normalizer")
    splitter = parsed.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [splitter])
    added = parsed.get("added_tokens", [])
    if (
        model.get("type") != "BPE"
        or model.get("dropout")
        or normalizer not in (None, {"type": "NFC"})
        or [step for step in steps if step.get("type") not in ("ByteLevel", "Split", "Digits")]
        or [step for step in steps if step.get("behavior") == "Removed"]
        or [step for step in steps if step.get("add_prefix_space")]
        or not [step for step in steps if step.get("type") == "ByteLevel"]
        or [token for token in added if token.get("lstrip") or token.get("rstrip")]
    ):
        return None
    sizes = {id_: len(token) for token, id_ in model["vocab"].items()}
    sizes |= {token["id"]: len(token["content"].encode()) for token in added}
    table = np.zeros(max(sizes, default=0) + 1, np.int32)
    table[[*sizes]] = [*sizes.values()]
    return table
