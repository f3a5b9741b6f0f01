"""A batch from plain rows of `load_from_disk`, so that every adapter is a collate_fn too."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from packprep.schemas.boundaries import check_boundaries
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.errors import FormatError

from .batch import PackedBatch

Rows = Sequence[Mapping[str, Any]]


def batch_from_rows(rows: Rows) -> PackedBatch:
    """The rows' packs, one behind the other: what PackedLoader makes of them, labels "hf".

    rows: dicts with tokens and cu_seqlens, or TRL's input_ids and seq_lengths; also labels,
    document_ids, segment_lengths, pair_ids and pair_sides if there are any. Lists, arrays or
    tensors. FormatError if a row's boundaries are not its tokens'.
    """
    if not rows:
        raise ValueError("a batch of no rows was asked for; expected one at least")
    boundaries, at = [np.zeros(1, np.int32)], 0
    for number, row in enumerate(rows):
        tokens, cu_seqlens = _tokens(row), _boundaries(row)
        check_boundaries(cu_seqlens, len(tokens), f"row {number} of the batch")
        boundaries.append(cu_seqlens[1:] + np.int32(at))
        at += len(tokens)
    cu_seqlens = np.concatenate(boundaries)
    tokens = np.concatenate([_tokens(row) for row in rows])
    given = ["labels" in row for row in rows]
    labels = (
        np.concatenate([np.asarray(row["labels"], np.int64) for row in rows])
        if all(given)
        else tokens.copy()
    )
    if len(labels) != len(tokens) or any(given) != all(given):
        raise FormatError(
            f"the rows have {len(labels)} labels for {len(tokens)} tokens; expected one each, or "
            "none"
        )
    labels[cu_seqlens[:-1]] = NO_LOSS
    lengths = np.diff(cu_seqlens)
    pairs = {
        "pair_ids": _joined(rows, "pair_ids", np.int64),
        "pair_sides": _joined(rows, "pair_sides", np.int8),
    }
    return PackedBatch(
        tokens=tokens,
        position_ids=np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1], lengths),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()),
        labels=labels,
        document_ids=_joined(rows, "document_ids", np.int64),
        segment_lengths=_joined(rows, "segment_lengths", np.int32),
        extra={name: values for name, values in pairs.items() if values is not None},
    )


def _tokens(row: Mapping[str, Any]) -> Any:
    if "tokens" not in row and "input_ids" not in row:
        raise FormatError(
            f"a row has the columns {', '.join(row)}; expected tokens and cu_seqlens, or input_ids "
            "and seq_lengths "
            "(set remove_unused_columns=False if the trainer took them away)"
        )
    return np.asarray(row["tokens"] if "tokens" in row else row["input_ids"], np.int64)


def _boundaries(row: Mapping[str, Any]) -> Any:
    if "cu_seqlens" in row:
        return np.asarray(row["cu_seqlens"], np.int32)
    if "seq_lengths" in row:
        return np.array([*accumulate(np.asarray(row["seq_lengths"]).tolist(), initial=0)], np.int32)
    raise FormatError(
        f"a row has the columns {', '.join(row)}; expected cu_seqlens or seq_lengths among them"
    )


def _joined(rows: Rows, name: str, dtype: Any) -> Any:
    return (
        np.concatenate([np.asarray(row[name], dtype) for row in rows])
        if all(name in row for row in rows)
        else None
    )
