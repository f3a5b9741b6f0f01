"""Shared parts of the compiled kernels: random numbers, growable arrays, bitmaps.

Kernels take arrays and ints and return arrays. They release the GIL and are cached on disk; the
first call of a new installation compiles for some seconds. They have no state and no threads, so a
plan depends only on its arguments.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import njit, types
from numba.core import event
from numba.core.cgutils import true_bit
from numba.extending import intrinsic

from packprep.support.arrays import Int32, Int64, UInt64
from packprep.support.hashing import GOLDEN, scrambled

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", Int32, Int64)

_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_LOW, _ALL = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


def kernel(function: F) -> F:
    """Compile a function of arrays and ints at its first call, or load it from the cache."""
    compiled: F = njit(cache=True, nogil=True)(function)
    return compiled


class _FirstCompiled(event.Listener):  # type: ignore[misc,unused-ignore]
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._reported = False

    def on_start(self, _: event.Event) -> None:
        if not self._reported:
            self._reported = True
            self._say("compiling kernels; this takes some seconds, once after an installation")

    def on_end(self, _: event.Event) -> None:
        pass


def compiling(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Report once, by `say`, that kernels that are not in the cache are compiled."""
    listening: AbstractContextManager[None] = event.install_listener(
        "numba:compile", _FirstCompiled(say)
    )
    return listening


_finish = kernel(scrambled)


@kernel
def hash64(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Number `counter` of the random sequence `key`: uint64, uint64 -> uint64.

    This is splitmix64 (Steele and others, 2014).
    """
    return _finish(key + (counter + _1) * GOLDEN)


@kernel
def _hashes(words: UInt64, key: np.uint64, first: np.uint64) -> None:
    """words[i] = number first + i of the sequence.

    A separate loop, which the compiler turns into vector code.
    """
    for i in range(words.size):
        words[i] = hash64(key, first + np.uint64(i))


@kernel
def shuffle(values: A, start: int, stop: int, key: np.uint64) -> None:
    """Fisher-Yates shuffle of values[start:stop] in place.

    Fewer than 2**31 values: one hash gives two draws of 32 bits. The sequence of random numbers is
    read from `start` on, so ranges of one array are shuffled independently.
    """
    base, remaining = np.uint64(start), np.uint64(max(0, stop - start))
    counter = base
    words = np.empty(min(256, (stop - start) // 2 + 1), np.uint64)
    while remaining > _1:
        draws = min(np.uint64(words.size), remaining >> _1)
        _hashes(words[:draws], key, counter)
        counter += draws
        for w in range(draws):
            i = base + ((words[w] >> _32) * remaining >> _32)
            remaining -= _1
            last = base + remaining
            values[i], values[last] = values[last], values[i]
            i = base + ((words[w] & _LOW) * remaining >> _32)
            remaining -= _1
            last = base + remaining
            values[i], values[last] = values[last], values[i]


@kernel
def grown(values: A, size: int) -> A:
    """Return `values` if it has `size` elements, else a copy of at least twice its size."""
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


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def set_bits(_typing: Any, word: Any) -> Any:
    """Number of set bits of a uint64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def smaller_of_16(_typing: Any, values: Any, start: Any, limit: Any) -> Any:
    """Bit i is values[start + i] < limit, for i in 0..15: int32 array, uint64, int32 -> uint64.

    One vector comparison in portable LLVM; the compiler picks the instructions of the machine. All
    16 values must be in the array.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(32), 16)
        nothing, zero = ir.Constant(lanes, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        loaded = builder.load(
            builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        )
        loaded.align = 4
        limits = builder.insert_element(nothing, arguments[2], zero)
        limits = builder.shuffle_vector(limits, nothing, ir.Constant(lanes, [0] * 16))
        bits = builder.bitcast(builder.icmp_signed("<", loaded, limits), ir.IntType(16))
        return builder.zext(bits, ir.IntType(64))

    return types.uint64(values, types.uint64, types.int32), generate


@kernel
def next_set(words: UInt64, summary: UInt64, start: int) -> int:
    """Smallest set bit >= start of a bitmap, or -1.

    Bit w of the summary is set if words[w] is not 0.
    """
    w = start >> 6
    word = words[w] & (_ALL << np.uint64(start & 63))
    if word != _0:
        return (w << 6) + int(lowest_bit(word))
    w += 1
    s = w >> 6
    if s >= summary.size:
        return -1
    word = summary[s] & (_ALL << np.uint64(w & 63))
    while word == _0:
        s += 1
        if s == summary.size:
            return -1
        word = summary[s]
    w = (s << 6) + int(lowest_bit(word))
    return (w << 6) + int(lowest_bit(words[w]))


@kernel
def set_bit(words: UInt64, summary: UInt64, bit: int) -> None:
    words[bit >> 6] |= _1 << np.uint64(bit & 63)
    summary[bit >> 12] |= _1 << np.uint64((bit >> 6) & 63)


@kernel
def clear_bit(words: UInt64, summary: UInt64, bit: int) -> None:
    words[bit >> 6] &= ~(_1 << np.uint64(bit & 63))
    if words[bit >> 6] == _0:
        summary[bit >> 12] &= ~(_1 << np.uint64((bit >> 6) & 63))
