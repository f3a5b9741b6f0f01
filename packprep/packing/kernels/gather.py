"""Copy values of token files into columns of packs.

All indices are int64: mixing in int32 takes twice as long. The loops run over views from 0 on: if
an index might be negative, the compiler does not vectorise, which takes four times as long. A copy
takes about 0.4 nanoseconds a token.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.arrays import Int64, Out
from ...schemas.gather import Runs
from .common import array_at, kernel


def copy_compiled(runs: Runs, before: int, after: int, out: NDArray[Any]) -> None:
    """`schemas.gather.copy_runs`, compiled."""
    none = np.zeros(0, np.int64)
    _copy_runs(
        runs.values.address,
        np.empty(0, runs.values.dtype),
        runs.count,
        runs.bos,
        runs.padded,
        none if runs.mask is None else runs.mask.address,
        none if runs.head is None else runs.head,
        before,
        after,
        np.empty(0, np.int8),
        out,
    )


@kernel
def _copy_runs(
    address: Int64,
    like: NDArray[Any],
    count: Int64,
    bos: NDArray[np.bool_],
    padded: Int64,
    mask: Int64,
    head: Int64,
    before: float,
    after: float,
    like_mask: NDArray[np.int8],
    out: Out[NDArray[Any]],
) -> None:
    """See `schemas.gather.Copy`; before and after are floats for columns of floats."""
    cursor, skipped = 0, out.dtype.type(after)
    for run in range(len(count)):
        begin, end = cursor, cursor + padded[run]
        if bos[run]:
            out[cursor] = before
            cursor += 1
        if count[run] > 0:
            values = array_at(address[run], count[run], like)
            part = out[cursor : cursor + count[run]]
            if len(mask) > 0:
                kept = array_at(mask[run], count[run], like_mask)
                for place in range(len(part)):
                    # Of two types, the compiler would branch: that takes four times as long.
                    value = out.dtype.type(values[place])
                    part[place] = value if kept[place] != 0 else skipped
            else:
                for place in range(len(part)):
                    part[place] = values[place]
            cursor += count[run]
        for rest in range(cursor, end):
            out[rest] = skipped
        if len(head) > 0:
            for place in range(begin, begin + head[run]):
                out[place] = skipped
        cursor = end
