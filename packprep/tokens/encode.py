"""The batched function that `datasets.map` calls: a table of documents to a table of tokens.

BOS and EOS are added, once each document. No Python int per token: ids are flat arrays, and ends
are added by index arithmetic into one array that is allocated before. Documents of pieces are the
engine's ids, and the mask that their trained spans give.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..read.values import one_array
from ..schemas.arrays import Int8, Int32, Int64
from ..schemas.columns import NO_LOSS
from ..schemas.views import ListView, list_array
from ..support.ahead import ranges
from ..support.errors import InputError
from .engine import Engine
from .tokenizer import Tokenizer

BATCH_BYTES = 1 << 20  # of text in one call of an engine; it reuses the memory of the call before


def encode(table: pa.Table, tokenizer: Tokenizer, engine: Engine | None) -> pa.Table:
    """Tokens of documents: columns of a token file, see `schemas.tokens`.

    table: columns of `read.types.Batch.documents`, with `text` (null has no tokens), `ids` or
    `pieces`, which may get a `mask`; other columns are kept, and lists stay aligned with the
    tokens. engine: None for ids. Raises InputError for ids that the vocabulary does not have.
    """
    names = [name for name in table.column_names if name not in ("text", "pieces")]
    rest = {name: one_array(table[name]) for name in names}
    if "text" in table.column_names:
        assert engine is not None
        return pa.table({"tokens": _encoded(table["text"], tokenizer, engine), **rest})
    if "pieces" in table.column_names:
        assert engine is not None
        made = encode_pieces(one_array(table["pieces"]), engine.encode, tokenizer.token_sizes)
        rest["ids"] = lists(made.ids, made.offsets)
        if made.mask is not None:
            rest["mask"] = lists(made.mask, made.offsets)
    tokens, rest = _ended(rest, tokenizer)
    return pa.table({"tokens": tokens, **rest})


def _encoded(text: Any, tokenizer: Tokenizer, engine: Engine) -> Any:
    """Tokens of text, list of the tokenizer's id type, [documents]."""
    text = text.fill_null("") if text.null_count else text
    sizes = pc.binary_length(text).to_numpy().astype(np.int64)
    bos, eos = tokenizer.end_ids
    left, ids, ends = int(sizes.sum()), np.empty(0, tokenizer.id_type), [np.zeros(1, np.int64)]
    for first, last in ranges(sizes, BATCH_BYTES):
        new, offsets = engine.encode(one_array(text.slice(first, last - first)))
        check_ids(new, tokenizer)
        lengths = np.diff(offsets)
        wider = np.append(0, np.cumsum(lengths + ((bos >= 0) + (eos >= 0)) * (lengths > 0)))
        begin, count, size = int(ends[-1][-1]), int(wider[-1]), int(sizes[first:last].sum())
        left -= size
        if begin + count > len(ids):
            # Room for the rest, if it is like this batch; room that is not used costs nothing.
            grown = np.empty(begin + count + int(1.1 * count * left / max(size, 1)), ids.dtype)
            grown[:begin] = ids[:begin]
            ids = grown
        _place(new, wider, bos, eos, ids[begin : begin + count])
        ends.append(wider[1:] + begin)
    offsets = np.concatenate(ends)
    return lists(ids[: offsets[-1]], offsets)


def _place(ids: Int32, offsets: Int64, bos: int, eos: int, out: NDArray[Any]) -> None:
    """Write ids to `out` with BOS before and EOS after each document that has any.

    offsets: where documents begin in `out`, [documents + 1]. bos, eos: id, or -1 for none. As fast
    as a compiled loop, which would be loaded here for builds that need no other.
    """
    some = offsets[1:] > offsets[:-1]
    inside = np.ones(len(out), np.bool_)
    for end, places in ((bos, offsets[:-1][some]), (eos, offsets[1:][some] - 1)):
        if end >= 0:
            out[places], inside[places] = end, False
    out[inside] = ids


def _ended(columns: dict[str, Any], tokenizer: Tokenizer) -> tuple[Any, dict[str, Any]]:
    """Tokens of `ids` with BOS and EOS where they are missing, and the other columns.

    An added BOS has no loss; an added EOS has one if the token before it has. Carried lists are 0
    at both.
    """
    bos, eos = tokenizer.end_ids
    ids, offsets = flat(columns.pop("ids"))
    check_ids(ids, tokenizer)
    if bos < 0 and eos < 0:
        return lists(ids.astype(tokenizer.id_type, copy=False), offsets), columns
    first, last = offsets[:-1], offsets[1:] - 1
    some = last >= first
    no_bos, no_eos = some & (bos >= 0), some & (eos >= 0)
    no_bos[some] &= ids[first[some]] != bos
    no_eos[some] &= ids[last[some]] != eos
    wider = np.append(0, np.cumsum(np.diff(offsets) + no_bos + no_eos))
    to = np.arange(len(ids)) + np.repeat(wider[:-1] + no_bos - first, np.diff(offsets))

    def placed(values: NDArray[Any], of_bos: float, of_eos: NDArray[Any] | float) -> Any:
        out = np.empty(wider[-1], values.dtype)
        out[to] = values
        if no_bos.any():
            out[wider[:-1][no_bos]] = of_bos
        if no_eos.any():
            out[wider[1:][no_eos] - 1] = of_eos
        return lists(out, wider)

    tokens = placed(ids.astype(tokenizer.id_type), bos, eos)
    for name, column in columns.items():
        if pa.types.is_list(column.type):
            values, _ = flat(column)
            nothing = NO_LOSS if name == "labels" else 0
            of_eos: Any = 0
            if name in ("labels", "mask"):
                trained = values[last[no_eos]] != nothing
                of_eos = np.where(trained, eos if name == "labels" else 1, nothing)
            columns[name] = placed(values, nothing, of_eos)
    return tokens, columns


def check_ids(ids: NDArray[Any], tokenizer: Tokenizer) -> None:
    """Raise InputError for an id that the vocabulary does not have.

    As unsigned, a negative id is a large one.
    """
    if len(ids) and int(ids.view(f"u{ids.itemsize}").max()) >= tokenizer.vocab_size:
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise InputError(
            f"the id {wrong:,} is not in the vocabulary of {tokenizer.vocab_size:,} ids; choose "
            "the tokenizer that made these ids"
        )


def flat(column: Any) -> tuple[NDArray[Any], Int64]:
    """Values of a list array, and offsets from 0, int64 [lists + 1]."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    return column.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]


def lists(values: NDArray[Any], offsets: Int64 | Int32) -> Any:
    """A list array; InputError if it has more values than Arrow's offsets reach."""
    if len(values) >= 2**31:
        raise InputError(
            f"the documents of a split have {len(values):,} tokens, more than an Arrow list holds; "
            "cut the file"
        )
    return list_array(ListView(offsets.astype(np.int32), np.ascontiguousarray(values)))


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
    from ..chat.types import PIECES

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
