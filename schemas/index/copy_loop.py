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
    runs: NDArray[np.int64],
    like: NDArray[Any],
    first: int,
    last: int,
    before: float,
    after: float,
    out: Out[NDArray[Any]],
) -> None:
    """Copy runs first..last - 1 into `out`; see `packprep.schemas.index.runs.Copy`.

    runs: `Runs.packed`. like: empty, of the type of the values.
    """
    cursor = 0
    for run in range(first, last):
        address, count = runs[4 * run], runs[4 * run + 1]
        end = cursor + runs[4 * run + 3]
        if runs[4 * run + 2] != 0:
            out[cursor] = before
            cursor += 1
        if count > 0:
            values = carray(pointer(address), count, like.dtype)
            part = out[cursor : cursor + count]
            for place in range(len(part)):
                part[place] = values[place]
            cursor += count
        for rest in range(cursor, end):
            out[rest] = after
        cursor = end
