"""What the compiled kernels share: random numbers that are the same everywhere, growable arrays, the lowest set bit.

Kernels take arrays and ints and return arrays, release the GIL and are cached on disk (the first call of a new
installation compiles for some seconds). None keeps state or uses threads, so a plan depends on its arguments only.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numba.core.cgutils import true_bit
from numba.extending import intrinsic
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", Int32s, Int64s)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def kernel(function: F) -> F:
    """Compiles a function of arrays and ints at its first call; later runs of Python find it in the cache."""
    compiled: F = njit(cache=True, nogil=True)(function)
    return compiled


@kernel
def hash64(seed: np.uint64, counter: np.uint64) -> np.uint64:
    """Number `counter` of the random sequence `seed` (splitmix64, Steele et al. 2014): uint64, uint64 -> uint64."""
    x = seed + (counter + np.uint64(1)) * _GOLDEN
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


def sub_seed(seed: int, purpose: int) -> np.uint64:
    """An independent seed for one purpose of a plan, so that e.g. shuffling packs tells nothing of shuffling documents.

    Seeds may be any integers; they are taken modulo 2**64.
    """
    x = (seed * 0xD1342543DE82EF95 + purpose * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64
    x = ((x ^ (x >> 32)) * 0xDABA0B6EB09322E3) % 2**64
    return np.uint64(x ^ (x >> 32))


@kernel
def shuffle(values: A, start: int, stop: int, seed: np.uint64) -> None:
    """Fisher-Yates on values[start:stop] in place; fewer than 2**31 values (one hash serves two draws of 32 bits)."""
    remaining = stop - start
    counter = np.uint64(start)
    while remaining > 1:
        bits = hash64(seed, counter)
        counter += np.uint64(1)
        i = start + np.int64(((bits >> _32) * np.uint64(remaining)) >> _32)
        remaining -= 1
        values[i], values[start + remaining] = values[start + remaining], values[i]
        # With one value left the second draw is that value itself: no branch needed.
        i = start + np.int64(((bits & _LOW) * np.uint64(remaining)) >> _32)
        remaining -= 1
        values[i], values[start + remaining] = values[start + remaining], values[i]


@kernel
def grown(values: A, size: int) -> A:
    """`values` if it holds `size` elements, else a copy that holds at least twice as many as before."""
    if size <= values.size:
        return values
    bigger = np.empty(max(size, 2 * values.size), values.dtype)
    bigger[: values.size] = values
    return bigger


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def lowest_bit(_typing: Any, word: Any) -> Any:
    """Position of the lowest set bit of a uint64 that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], true_bit)

    return types.int64(types.uint64), generate
