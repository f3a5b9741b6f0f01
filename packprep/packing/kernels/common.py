"""Shared parts of the kernels: random numbers and bitmaps."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import types
from numba.core.cgutils import true_bit
from numba.extending import intrinsic

from packprep.packing.kernels.compiled import Out, inlined, kernel
from packprep.support.arrays import Int32, Int64, UInt64
from packprep.support.hashing import GOLDEN, scrambled

_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_LOW, _ALL = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)


_finish = inlined(scrambled)


def shuffle(values: Int32, start: int, stop: int, key: np.uint64) -> None:
    """Fisher-Yates shuffle of values[start:stop] in place.

    The sequence of random numbers is read from `start` on, so ranges of one array are shuffled
    independently.
    """
    shuffle_ranges(values, np.array([start, stop], np.int64), key)


def shuffle_ranges(values: Int32, starts: Int64, key: np.uint64) -> None:
    """Shuffle values[starts[k]:starts[k + 1]] in place for every k, see `shuffle`."""
    _shuffle_ranges(values, starts, key, np.empty(256, np.uint64))


@kernel
def _shuffle_ranges(values: Out[Int32], starts: Int64, key: np.uint64, words: Out[UInt64]) -> None:
    """Shuffle ranges of fewer than 2**31 values: one hash gives two draws of 32 bits.

    Number `counter` of the random sequence `key` is splitmix64 (Steele and others, 2014). words:
    scratch for random numbers.
    """
    for k in range(starts.size - 1):
        base = np.uint64(starts[k])
        remaining = np.uint64(larger(0, starts[k + 1] - starts[k]))
        counter = base
        while remaining > _1:
            draws = np.uint64(smaller(words.size, remaining >> _1))
            # A separate loop, which the compiler turns into vector code.
            for w in range(draws):
                words[w] = _finish(key + (counter + w + _1) * GOLDEN)
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


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def smaller(_typing: Any, first: Any, second: Any) -> Any:
    """The smaller of two int64. numba would compile its `min` for each kernel."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed("<", *arguments), *arguments)

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def larger(_typing: Any, first: Any, second: Any) -> Any:
    """The larger of two int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return types.int64(types.int64, types.int64), generate


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


def bitmap(bits: int) -> tuple[UInt64, UInt64]:
    """An empty bitmap and its summary, for the functions below."""
    words = np.zeros((bits >> 6) + 1, np.uint64)
    return words, np.zeros((words.size >> 6) + 1, np.uint64)


@inlined
def next_set(words: UInt64, summary: UInt64, start: int) -> int:
    """Smallest set bit >= start of a bitmap, or -1.

    Bit w of the summary is set if words[w] is not 0.
    """
    w = start >> 6
    word = words[w] & (_ALL << np.uint64(start & 63))
    if word != _0:
        return int((w << 6) + lowest_bit(word))
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
    w = (s << 6) + lowest_bit(word)
    return int((w << 6) + lowest_bit(words[w]))


@inlined
def put_bit(words: UInt64, summary: UInt64, bit: int, value: bool) -> None:
    """Set or clear a bit of a bitmap."""
    w, one = bit >> 6, _1 << np.uint64(bit & 63)
    words[w] = words[w] | one if value else words[w] & ~one
    one = _1 << np.uint64(w & 63)
    summary[w >> 6] = summary[w >> 6] | one if words[w] != _0 else summary[w >> 6] & ~one
