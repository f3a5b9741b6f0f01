"""The copy of runs as a loop that numba compiles. Import it inside functions: numba may be missing.

All indices are int64: mixing in int32 takes twice as long. The loop runs over views from 0 on: if
an index might be negative, the compiler does not vectorise, which takes four times as long. About
0.4 nanoseconds per token.
"""

from typing import Any

import numpy as np
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..plans.arrays import Out


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """The address as a pointer that `carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


def copy_loop(
    address: NDArray[np.int64],
    count: NDArray[np.int64],
    bos: NDArray[np.bool_],
    padded: NDArray[np.int64],
    mask: NDArray[np.int64],
    head: NDArray[np.int64],
    like: NDArray[Any],
    first: int,
    last: int,
    before: float,
    after: float,
    out: Out[NDArray[Any]],
) -> None:
    """Copy runs first..last - 1 into `out`; see `packprep.schemas.index.runs.Copy`.

    address, count, bos, padded: of `Runs`. mask: addresses, and head; both may be empty. like:
    empty, of the type of the values.
    """
    cursor, skipped = 0, out.dtype.type(after)
    for run in range(first, last):
        begin, end = cursor, cursor + padded[run]
        if bos[run]:
            out[cursor] = before
            cursor += 1
        if count[run] > 0:
            values = carray(pointer(address[run]), count[run], like.dtype)
            part = out[cursor : cursor + count[run]]
            if len(mask):
                kept = carray(pointer(mask[run]), count[run], np.int8)
                for place in range(len(part)):
                    part[place] = values[place] if kept[place] else skipped
            else:
                for place in range(len(part)):
                    part[place] = values[place]
            cursor += count[run]
        for rest in range(cursor, end):
            out[rest] = skipped
        if len(head):
            for place in range(begin, begin + head[run]):
                out[place] = skipped
        cursor = end
