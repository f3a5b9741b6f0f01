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
    columns: NDArray[np.int64],
    like: NDArray[Any],
    first: int,
    last: int,
    before: float,
    after: float,
    out: Out[NDArray[Any]],
) -> None:
    """Copy runs first..last - 1 into `out`; see `packprep.schemas.index.runs.Copy`.

    columns: see `Runs.columns`; one array costs less in a call than six. like: empty, of the type
    of the values.
    """
    address = carray(pointer(columns[0]), last, np.int64)
    count = carray(pointer(columns[1]), last, np.int64)
    bos = carray(pointer(columns[2]), last, np.int8)
    padded = carray(pointer(columns[3]), last, np.int64)
    mask = carray(pointer(columns[4]), last, np.int64)
    head = carray(pointer(columns[5]), last, np.int64)
    has_mask, has_head = columns[4] != 0, columns[5] != 0
    cursor, skipped = 0, out.dtype.type(after)
    for run in range(first, last):
        begin, end = cursor, cursor + padded[run]
        if bos[run]:
            out[cursor] = before
            cursor += 1
        if count[run] > 0:
            values = carray(pointer(address[run]), count[run], like.dtype)
            part = out[cursor : cursor + count[run]]
            if has_mask:
                kept = carray(pointer(mask[run]), count[run], np.int8)
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
        if has_head:
            for place in range(begin, begin + head[run]):
                out[place] = skipped
        cursor = end
