"""The test of isolation for trees: each row alone, against its path in the pack."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from packprep.schemas.trees import path_tokens

from ..batch import PackedBatch


class RowDifference(NamedTuple):
    """Largest difference of a logit between a row alone and its path in the pack.

    leaking: the same in a call without boundaries.
    segment: with the largest difference, or None.
    """

    largest: float
    leaking: float
    segment: int | None


def compare_rows(
    batch: PackedBatch,
    packed: Any,
    unbounded: Any,
    alone: Callable[[Any], Any],
    difference: Callable[[Any, Any], float],
) -> RowDifference:
    """Compare the logits of all rows of a batch of trees.

    packed, unbounded: [T, vocabulary]. alone: f(tokens [1, n]) -> logits [n, vocabulary].
    """
    arrays = batch.numpy()
    boundaries = arrays.cu_seqlens.astype(np.int64)
    last = np.asarray(arrays.rows["row_segments"], np.int64)
    tokens, rows = path_tokens(arrays.segment_parents, boundaries, last)
    if len(last) < 2:
        raise ValueError("the batch has one row, so none can leak; use a batch with several rows")
    largest, leaking, segment = 0.0, 0.0, None
    for start, end in pairwise(rows.tolist()):
        path = tokens[start:end]
        expected = alone(batch.tokens[None, path])
        leak = difference(unbounded[path], expected)
        leaking = max(leaking, 0.0 if leak == float("inf") else leak)
        segments = np.searchsorted(boundaries, path, side="right") - 1
        for number in np.unique(segments).tolist():
            here = np.flatnonzero(segments == number)
            found = difference(packed[path[here]], expected[here])
            if found > largest:
                largest, segment = found, number
    return RowDifference(largest, leaking, segment)


def cause_of(call: Mapping[str, object]) -> str:
    """Likely cause of a difference."""
    if call.get("attention_mask") is None:
        return (
            "its tokens do not see exactly their path; call the model with to_hf_4d(batch, "
            "model.config), or attention with to_flex_block_mask(batch) and batch.position_ids"
        )
    return (
        "its tokens do not see exactly their path, or have other positions; make mask and "
        "position_ids from this batch, and use an attention implementation that takes a 4-D mask"
    )
