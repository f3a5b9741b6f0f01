"""A batch from rows of `load_from_disk`, which makes every adapter a collate_fn too."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from packprep.schemas.boundaries import check_boundaries
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.errors import FormatError

from .batch import PackedBatch
from .trees import refuse_trees

Rows = Sequence[Mapping[str, Any]]


def batch_from_rows(rows: Rows) -> PackedBatch:
    """Batch of the packs of these rows, as PackedLoader makes it with labels="hf".

    rows: dicts with tokens and cu_seqlens, or TRL's input_ids and seq_lengths; optional are labels,
    document_ids, segment_lengths, pair_ids, pair_sides and turn_ids. Values are lists, arrays or
    tensors.
    FormatError if the boundaries of a row do not fit its tokens.
    """
    if not rows:
        raise ValueError("the batch has no rows; expected one or more")
    refuse_trees(any("segment_parents" in row for row in rows), "a batch of rows")
    boundaries, total = [np.zeros(1, np.int32)], 0
    for number, row in enumerate(rows):
        tokens, cu_seqlens = row_tokens(row), row_boundaries(row)
        check_boundaries(cu_seqlens, len(tokens), f"row {number} of the batch")
        boundaries.append(cu_seqlens[1:] + np.int32(total))
        total += len(tokens)
    cu_seqlens = np.concatenate(boundaries)
    tokens = np.concatenate([row_tokens(row) for row in rows])
    labelled = ["labels" in row for row in rows]
    labels = (
        np.concatenate([np.asarray(row["labels"], np.int64) for row in rows])
        if all(labelled)
        else tokens.copy()
    )
    if len(labels) != len(tokens) or any(labelled) != all(labelled):
        raise FormatError(
            f"the rows have {len(labels)} labels for {len(tokens)} tokens; expected one per token, "
            "or no labels in any row"
        )
    labels[cu_seqlens[:-1]] = NO_LOSS
    lengths = np.diff(cu_seqlens)
    extra = {
        "pair_ids": _joined(rows, "pair_ids", np.int64),
        "pair_sides": _joined(rows, "pair_sides", np.int8),
        "turn_ids": _joined(rows, "turn_ids", np.int32),
    }
    return PackedBatch(
        tokens=tokens,
        position_ids=np.arange(len(tokens)) - np.repeat(cu_seqlens[:-1], lengths),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()),
        labels=labels,
        document_ids=_joined(rows, "document_ids", np.int64),
        segment_lengths=_joined(rows, "segment_lengths", np.int32),
        extra={name: values for name, values in extra.items() if values is not None},
    )


def row_tokens(row: Mapping[str, Any]) -> Any:
    """Token ids of a row in either spelling, int64 [tokens]."""
    if "tokens" not in row and "input_ids" not in row:
        raise FormatError(
            f"a row has the columns {', '.join(row)}; expected tokens and cu_seqlens, or input_ids "
            "and seq_lengths (set remove_unused_columns=False if the trainer removed them)"
        )
    return np.asarray(row["tokens"] if "tokens" in row else row["input_ids"], np.int64)


def row_boundaries(row: Mapping[str, Any]) -> Any:
    """Boundaries of a row in either spelling, int32 [segments + 1]."""
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
