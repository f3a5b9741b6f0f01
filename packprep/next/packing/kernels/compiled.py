"""Kernels: functions of arrays and numbers that numba compiles once, for types known in advance.

The annotations of a kernel are its signature. So a kernel is compiled once whatever it is called
with, and it can be compiled before it is called, in another thread while text is read. Kernels
allocate nothing and call no numpy function, because numba would compile numpy's own code for each
of them.

Types: `Int32` and its like are arrays that are only read, and may be read-only. `Out[...]` are
arrays that are written. An array of `Any` may have any type of elements; there is a variant for
each. All arrays are contiguous. int is int64, float is float64.
"""

import contextvars
import threading
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, cast

import numpy as np

from ...schemas.arrays import Out as Out

F = TypeVar("F", bound=Callable[..., Any])
Variant = tuple[np.dtype[Any], ...]
"""Types of the elements of those arrays of a kernel that may have any."""

NUMBERS = (int, float, bool, np.uint64)
FEW, SHORT = 2000, 1 << 15
"""Documents, and tokens of a pack, up to which kernels run as plain Python."""

_plain = contextvars.ContextVar("plain", default=False)


@contextmanager
def interpreted(small: bool) -> Iterator[None]:
    """Run kernels as plain Python inside, unless they are compiled already.

    numba and its compiler take longer to import than small inputs take in Python. The results are
    the same. small: False changes nothing.
    """
    token = _plain.set(small or _plain.get())
    try:
        yield
    finally:
        _plain.reset(token)


class Kernel:
    """A compiled function; the first call compiles it, or loads it from the cache on disk.

    free: places of the arguments that are arrays of any elements. Kernels release the GIL, and have
    no state and no threads.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
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
            if _plain.get():
                return self._interpreted(arguments)
            compiled = self.load(variant)
        try:
            return compiled(*arguments)
        except TypeError:  # before the first step: an array has gaps, or elements of another type
            return compiled(*map(self._copied, self._hints, arguments))

    def _interpreted(self, arguments: tuple[Any, ...]) -> Any:
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
    return typing.get_args(typing.get_args(array)[1])[0]


def kernel(function: F) -> F:
    """Make a kernel of a function."""
    return cast(F, Kernel(function))


INLINED: list[Callable[..., Any]] = []
"""Functions that kernels call; the compiler is told of them when it is loaded."""


def inlined(function: F) -> F:
    """Make a function a part of each kernel that calls it; it is never compiled alone."""
    INLINED.append(function)
    return function
