"""Shared by kernels: how they are compiled, random numbers and bitmaps.

A kernel is a function of arrays and numbers that numba compiles once, for types known in advance.

The annotations of a kernel are its signature. So a kernel is compiled once whatever it is called
with, and it can be compiled before it is called, in another thread while text is read. Kernels
allocate nothing and call no numpy function, because numba would compile numpy's own code for each
of them.

Types: `Int32` and its like are arrays that are only read, and may be read-only. `Out[...]` are
arrays that are written. An array of `Any` may have any type of elements; there is a variant for
each. All arrays are contiguous. int is int64, float is float64.
"""

import contextvars
import itertools
import threading
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...schemas.arrays import Int32, Int64, UInt64
from ...schemas.arrays import Out as Out
from ...schemas.tokens import span
from ...support.hashing import GOLDEN, scrambled

F = TypeVar("F", bound=Callable[..., Any])
Variant = tuple[np.dtype[Any], ...]
"""Types of the elements of those arrays of a kernel that may have any."""

NUMBERS = (int, float, bool, np.uint64)
FEW, MANY, SHORT = 2000, 100_000, 1 << 15
"""Documents, and tokens of a pack, up to which kernels run as plain Python.

MANY is for kernels with a plain form of their own, or whose steps are lengths, not documents.
"""

_items = contextvars.ContextVar("items", default=1 << 62)


@contextmanager
def interpreted(items: int, longest: int) -> Iterator[None]:
    """Run kernels inside as plain Python, but for those that are compiled already.

    numba and its compiler take longer to import than small inputs take in Python. The results are
    the same. items: documents, which a kernel compares with its limit. longest: tokens of a pack.
    """
    token = _items.set(min(items, _items.get())) if longest <= SHORT else None
    try:
        yield
    finally:
        if token is not None:
            _items.reset(token)


class Kernel:
    """A compiled function; the first call compiles it, or loads it from the cache on disk.

    free: places of the arguments that are arrays of any elements. plain, few: what runs up to so
    many documents, see `kernel_for_many`. Kernels
    release the GIL, and have no state and no threads.
    """

    def __init__(
        self, function: Callable[..., Any], plain: Callable[..., Any] | None = None, few: int = FEW
    ) -> None:
        self.plain, self.few = plain or self._interpreted, few
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__module__, self.__wrapped__ = function.__module__, function
        hints = typing.get_type_hints(function, include_extras=True)
        hints.pop("return")
        self._hints = list(hints.values())
        self.free = [i for i, hint in enumerate(self._hints) if _element(hint) is Any]
        self._lock = threading.Lock()
        self._compiled: dict[Variant, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        variant = tuple([arguments[i].dtype for i in self.free])
        if (compiled := self._compiled.get(variant)) is None:
            if _items.get() <= self.few:
                return self.plain(*arguments)
            compiled = self.load(variant)
        try:
            return compiled(*arguments)
        except TypeError:  # before the first step: an array has gaps, or elements of another type
            return compiled(*map(self._copied, self._hints, arguments))

    def _interpreted(self, *arguments: Any) -> Any:
        """Call the function itself; small integers are widened, as compiled code does."""
        wide, written = list(arguments), []
        for place, (hint, argument) in enumerate(zip(self._hints, arguments, strict=True)):
            element = None if hint in NUMBERS else _element(hint)
            if element in (np.int32, np.uint32):
                wide[place] = argument.astype(np.int64)
                if typing.get_origin(hint) is Annotated:
                    written.append((argument, wide[place]))
        with np.errstate(over="ignore"):
            result = self.__wrapped__(*wide)
        for argument, values in written:
            argument[...] = values
        return result

    @staticmethod
    def _copied(hint: Any, argument: Any) -> Any:
        """An array that is only read, as the signature has it; anything else unchanged."""
        if hint in NUMBERS or typing.get_origin(hint) is Annotated:
            return argument
        element = _element(hint)
        return np.ascontiguousarray(argument, None if element is Any else element)

    def load(self, variant: Variant = ()) -> Any:
        """Compile a variant, or load it from the cache on disk, unless it is in memory."""
        with self._lock:
            if variant not in self._compiled:
                from .backend import compiled

                free, types = iter(variant), list[Any]()
                for hint in self._hints:
                    element = hint if hint in NUMBERS else _element(hint)
                    element = next(free) if element is Any else element
                    is_written = typing.get_origin(hint) is Annotated
                    types.append((element, hint in NUMBERS, is_written))
                self._compiled[variant] = compiled(self.__wrapped__, types)
            return self._compiled[variant]


def _element(hint: Any) -> Any:
    """Type of the elements of an array; the hint itself if it is one of a number."""
    if hint in NUMBERS:
        return hint
    array = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    last = typing.get_args(array)[-1]  # np.dtype[T]; of numpy 2.5, whose NDArray is an alias, T
    return (typing.get_args(last) or (last,))[0]


def kernel(function: F) -> F:
    """Make a kernel of a function."""
    return cast(F, Kernel(function))


def kernel_for_many(plain: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Make a kernel of a function whose plain form is fast enough up to MANY documents.

    plain: does the same without a compiler; default: the function itself.
    """

    def made(function: F) -> F:
        return cast(F, Kernel(function, plain, MANY))

    return made


INLINED: list[Callable[..., Any]] = []
"""Functions that kernels call; the compiler is told of them when it is loaded."""


def inlined(function: F) -> F:
    """Make a function a part of each kernel that calls it; it is never compiled alone."""
    INLINED.append(function)
    return function


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


def _shuffle_lists(values: Int32, starts: Int64, key: np.uint64, _: UInt64) -> None:
    """`_shuffle_ranges` with lists: an item of an array takes five times as long."""
    first, last = int(starts[0]), int(starts[-1])
    words = scrambled(key + np.arange(first + 1, last + 1).astype(np.uint64) * GOLDEN).tolist()
    for start, stop in itertools.pairwise(starts.tolist()):
        part, left = values[start:stop].tolist(), max(stop - start, 0)
        for word in words[start - first : start - first + left // 2]:
            for bits in (word >> 32, word & 0xFFFFFFFF):
                i, left = bits * left >> 32, left - 1
                part[i], part[left] = part[left], part[i]
        values[start:stop] = part


@kernel_for_many(_shuffle_lists)
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
