"""Trees of a batch in arrays: paths of rows, the tokens that a token sees, and weights of rows.

A segment of a tree continues the segment that is its parent, and a row is the path from a root to
the segment at which it ends. Segments are in depth-first order, so the tokens that see a token are
one run: from the token itself to the end of the last segment below its own.
"""

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS

_Int64 = NDArray[np.int64]


def refuse_trees(has_trees: bool, what: str) -> None:
    """Raise ValueError if `what` would read trees as documents."""
    if has_trees:
        raise ValueError(
            f"{what} reads segments as documents, and these are nodes of trees, which share their "
            "prefixes; pass batch.unshared(), or use to_flex_block_mask or to_hf_4d with tree_loss"
        )


def previous_tokens(parents: _Int64, boundaries: _Int64) -> _Int64:
    """Position whose logits predict each token, [T]: the one before it on its path, -1 at a root.

    boundaries: [S + 1].
    """
    previous = np.arange(-1, boundaries[-1] - 1)
    starts = boundaries[:-1]
    previous[starts] = np.where(parents >= 0, boundaries[1:][parents] - 1, -1)
    return previous


def subtree_ends(parents: _Int64, boundaries: _Int64) -> _Int64:
    """End of the last segment below each, [S]; its own end if there is none below it."""
    numbers = np.arange(len(parents))
    last, at = numbers.copy(), parents
    while len(inside := np.flatnonzero(at >= 0)):
        np.maximum.at(last, at[inside], inside)
        at = np.where(at >= 0, parents[at], -1)
    ends: _Int64 = boundaries[1:][last]
    return ends


def row_weights(
    mode: str | int, tokens: _Int64, labels: _Int64, rows: _Int64, units: _Int64, total: int
) -> NDArray[np.float32]:
    """Weight of each token's loss, [total]: the sum over the rows that train it.

    mode: "token", "segment" (a row is a unit), "document" or a number of rows. labels: of the rows'
    tokens. units: [rows], the document of each row.
    """
    trained = labels != NO_LOSS
    counts = np.diff(np.append(0, np.cumsum(trained))[rows])
    if mode == "token":
        each = np.ones(len(counts))
    else:
        unit = np.unique(units, return_inverse=True)[1] if mode == "document" else None
        if isinstance(mode, int):
            unit = np.arange(len(counts)) // mode
        sums = counts if unit is None else np.bincount(unit, counts)[unit]
        each = 1 / np.maximum(sums, 1)
    weights = np.repeat(each, np.diff(rows)) * trained
    return np.bincount(tokens, weights, total).astype(np.float32)
