"""Shared parts of the kernels: random numbers and bitmaps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.arrays import Int32, Int64, UInt64
from ...schemas.tokens import span
from ...support.hashing import GOLDEN, scrambled
from .compiled import Out, inlined, kernel

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


def smaller(first: Any, second: Any) -> Any:
    """The smaller of two int64. numba would compile its `min` for each kernel."""
    return first if first < second else second


def larger(first: Any, second: Any) -> Any:
    """The larger of two int64."""
    return first if first > second else second


def lowest_bit(word: np.uint64) -> int:
    """Position of the lowest set bit of a uint64 that is not 0."""
    number = int(word)
    return (number & -number).bit_length() - 1


def set_bits(word: np.uint64) -> np.uint64:
    """Number of set bits of a uint64."""
    return np.uint64(int(word).bit_count())


def smaller_of_16(values: Int32, start: Any, limit: int) -> np.uint64:
    """Bit i is values[start + i] < limit, for i in 0..15; all 16 values must be in the array."""
    first, bits = int(start), 0
    for place, value in enumerate(values[first : first + 16].tolist()):
        bits |= int(value < limit) << place
    return np.uint64(bits)


def array_at(address: int, count: int, like: NDArray[Any]) -> NDArray[Any]:
    """Array of `count` values of the type of `like` at an address."""
    return span(address, count, like.dtype)


def copy_values(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values to out, which has the same length."""
    out[:] = values


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
