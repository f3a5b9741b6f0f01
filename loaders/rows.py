"""A batch from rows of `load_from_disk`, which makes every adapter a collate_fn too."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int32, Int64
from ..schemas.columns import NO_LOSS
from ..schemas.files import FormatError
from .batch import PackedBatch

Rows = Sequence[Mapping[str, object]]
BoundaryKind = Literal["eos", "bos", "positions"]
_OF_SEGMENTS = {"pair_ids": np.int64, "pair_sides": np.int8, "turn_ids": np.int32}


def batch_from_rows(
    rows: Rows,
    *,
    boundaries: BoundaryKind | None = None,
    token: int | None = None,
    pad_token: int | None = None,
) -> PackedBatch:
    """Batch of the packs of these rows, as PackedLoader makes it with labels="hf".

    rows: dicts with tokens and cu_seqlens, or TRL's input_ids and seq_lengths; optional are labels,
    document_ids, segment_lengths, pair_ids, pair_sides and turn_ids. Values are lists, arrays or
    tensors.

    boundaries: how rows that another tool packed mark their documents; None if they have
    cu_seqlens or seq_lengths. "eos": each ends with `token`; a run of them gives documents of one
    token. "bos": each begins with it. "positions": position_ids are 0 at the first token of each.
    pad_token: the id that fills such rows at their end, for no loss; an attention_mask of the row
    says so too. Positions restart in every segment, in padding too.

    FormatError if the boundaries of a row do not fit its tokens.
    """
    if not rows:
        raise ValueError("the batch has no rows; expected one or more")
    if boundaries is not None:
        rows = [
            _bounded(row, boundaries, token, pad_token, f"row {number} of the batch")
            for number, row in enumerate(rows)
        ]
    elif token is not None or pad_token is not None:
        raise ValueError(
            f"token is {token} and pad_token is {pad_token} without boundaries; pass "
            "boundaries='eos', 'bos' or 'positions'"
        )
    batch = _joined_rows(rows)
    if boundaries is not None and batch.num_real_tokens == len(batch):
        batch.segment_lengths = None
    return batch


def boundaries_of(values: NDArray[Any], kind: BoundaryKind, token: int | None = None) -> Int32:
    """Boundaries of a row that another tool packed, from its ids: cu_seqlens, int32 [segments + 1].

    values: token ids [tokens]; for kind "positions" the position ids. The rest: `batch_from_rows`.
    What follows the last EOS is a segment too, and a row always begins a segment.

    Example: [5, 2, 2, 7] with "eos" and token 2 -> [0, 2, 3, 4]
    """
    if kind not in get_args(BoundaryKind):
        raise ValueError(
            f"boundaries is {kind!r}; expected one of {', '.join(get_args(BoundaryKind))}"
        )
    if (kind == "positions") != (token is None):
        raise ValueError(
            f"boundaries is {kind!r} and token is {token}; pass the id of EOS or BOS, and none "
            "for positions"
        )
    begins = values == token
    if kind != "bos":
        begins[1:] = values[:-1] == token if kind == "eos" else values[1:] != values[:-1] + 1
    begins[:1] = False
    return np.concatenate([[0], np.flatnonzero(begins), [len(values)]]).astype(np.int32)


def _bounded(
    row: Mapping[str, object],
    kind: BoundaryKind,
    token: int | None,
    pad_token: int | None,
    where: str,
) -> Mapping[str, object]:
    """The row with cu_seqlens from its ids, and with labels and segment_lengths without padding."""
    tokens = row_tokens(row)
    values = tokens
    if kind == "positions":
        values = np.asarray(row.get("position_ids", ()), np.int64)
        if len(values) != len(tokens):
            raise FormatError(
                f"{where} has {len(values)} position_ids for {len(tokens)} tokens; expected one "
                "per token"
            )
    cu_seqlens = boundaries_of(values, kind, token)
    real = _real_tokens(row, tokens, token if kind == "eos" else None, pad_token, where)
    starts = cu_seqlens[:-1]
    if kind == "positions" and (late := values[starts] * (starts < real)).any():
        place = int(starts[np.flatnonzero(late)[0]])
        raise FormatError(
            f"{where} has position {values[place]} at token {place}, where positions do not "
            "continue; expected 0, the first of a document"
        )
    labels = np.array(row.get("labels", tokens), np.int64)
    labels[real:] = NO_LOSS
    return {
        "tokens": tokens,
        "cu_seqlens": cu_seqlens,
        "labels": labels,
        "segment_lengths": np.clip(real - starts, 0, np.diff(cu_seqlens)),
    }


def _real_tokens(
    row: Mapping[str, object], tokens: Any, end: int | None, pad_token: int | None, where: str
) -> int:
    """Tokens before the padding at the end of the row.

    end: the id that ends documents. If that is the padding too, the last document keeps one.
    """
    real = len(tokens)
    if "attention_mask" in row:
        mask = np.asarray(row["attention_mask"])
        real = int((mask != 0).sum())
        if len(mask) != len(tokens) or not mask[:real].all():
            raise FormatError(
                f"{where} has an attention_mask of {len(mask)} values, {real} of them not 0, for "
                f"{len(tokens)} tokens; expected one per token, and 0 only at the end of the row"
            )
    if pad_token is None:
        return real
    others = np.flatnonzero(tokens[:real] != pad_token)
    last = int(others[-1]) + 1 if len(others) else 0
    return min(last + (pad_token == end and last > 0), real)


def _joined_rows(rows: Rows) -> PackedBatch:
    """The batch of rows that have boundaries."""
    ends, total = [np.zeros(1, np.int32)], 0
    pack_ends = np.zeros(len(rows) + 1, np.int32)
    for number, row in enumerate(rows):
        tokens, cu_seqlens = row_tokens(row), row_boundaries(row)
        first, last = (cu_seqlens[0], cu_seqlens[-1]) if len(cu_seqlens) > 1 else (-1, -1)
        if first != 0 or last != len(tokens) or not (np.diff(cu_seqlens) > 0).all():
            raise FormatError(
                f"row {number} of the batch: cu_seqlens are {cu_seqlens.tolist()[:8]}; expected "
                f"0, rising, to the pack's {len(tokens)} tokens"
            )
        ends.append(cu_seqlens[1:] + np.int32(total))
        pack_ends[number + 1] = total = total + len(tokens)
    cu_seqlens = np.concatenate(ends)
    tokens = np.concatenate([row_tokens(row) for row in rows])
    labels = _joined(rows, "labels", np.int64)
    if labels is None:
        labels = tokens.copy()
    if len(labels) != len(tokens):
        raise FormatError(
            f"the rows have {len(labels)} labels for {len(tokens)} tokens; expected one per token"
        )
    labels[cu_seqlens[:-1]] = NO_LOSS
    lengths = np.diff(cu_seqlens)
    extra = {name: _joined(rows, name, dtype) for name, dtype in _OF_SEGMENTS.items()}
    extra = {name: values for name, values in extra.items() if values is not None}
    return PackedBatch(
        tokens=tokens,
        position_ids=np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1], lengths),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()),
        labels=labels,
        document_ids=_joined(rows, "document_ids", np.int64),
        segment_lengths=_joined(rows, "segment_lengths", np.int32),
        extra=extra,
        kinds=dict.fromkeys(extra, "segment"),
        pack_boundaries=pack_ends,
    )


def row_tokens(row: Mapping[str, object]) -> Int64:
    """Token ids of a row in either spelling, int64 [tokens]."""
    if "tokens" not in row and "input_ids" not in row:
        raise FormatError(
            f"a row has the columns {', '.join(row)}; expected tokens and cu_seqlens, or input_ids "
            "and seq_lengths (set remove_unused_columns=False if the trainer removed them)"
        )
    return np.asarray(row["tokens"] if "tokens" in row else row["input_ids"], np.int64)


def row_boundaries(row: Mapping[str, object]) -> Int32:
    """Boundaries of a row in either spelling, int32 [segments + 1]."""
    if "cu_seqlens" in row:
        return np.asarray(row["cu_seqlens"], np.int32)
    if "seq_lengths" in row:
        return np.array([*accumulate(np.asarray(row["seq_lengths"]).tolist(), initial=0)], np.int32)
    raise FormatError(
        f"a row has the columns {', '.join(row)}; expected cu_seqlens or seq_lengths among them"
    )


def _joined(rows: Rows, name: str, dtype: Any) -> Any:
    """A column of all rows; None if none of them has it."""
    having = sum(name in row for row in rows)
    if having not in (0, len(rows)):
        raise FormatError(f"{having} of {len(rows)} rows have {name}; expected all, or none")
    return np.concatenate([np.asarray(row[name], dtype) for row in rows]) if having else None
