"""Kernels: functions of arrays and numbers that numba compiles once, for types known in advance.

The annotations of a kernel are its signature. So a kernel is compiled once whatever it is called
with, and it can be compiled before it is called, in another thread while text is read. Kernels
allocate nothing and call no numpy function, because numba would compile numpy's own code for each
of them.

Types: `Int32` and its like are arrays that are only read, and may be read-only. `Out[...]` are
arrays that are written. An array of `Any` may have any type of elements; there is a variant for
each. All arrays are contiguous. int is int64, float is float64.
"""

import threading
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar, cast

import numpy as np
from numba import from_dtype, njit, types
from numba.core import event
from numba.extending import register_jitable

from packprep.packing.kernels.disk_cache import KernelCache, can_keep
from packprep.schemas.plans.arrays import Out as Out

F = TypeVar("F", bound=Callable[..., Any])
Variant = tuple[np.dtype[Any], ...]
"""Types of the elements of those arrays of a kernel that may have any."""

_NUMBERS = {
    int: types.int64,
    float: types.float64,
    bool: types.boolean,
    np.uint64: types.uint64,
}


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
        compiled = self._compiled.get(variant) or self.load(variant)
        try:
            return compiled(*arguments)
        except TypeError:  # before the first step: an array has gaps, or elements of another type
            return compiled(*map(self._copied, self._hints, arguments))

    @staticmethod
    def _copied(hint: Any, argument: Any) -> Any:
        """An array that is only read, as the signature has it; anything else unchanged."""
        if hint in _NUMBERS or typing.get_origin(hint) is Annotated:
            return argument
        element = _element(hint)
        return np.ascontiguousarray(argument, None if element is Any else element)

    def load(self, variant: Variant = ()) -> Any:
        """Compile a variant, or load it from the cache on disk, unless it is in memory."""
        with self._lock:
            if variant not in self._compiled:
                dispatcher = _jit(self.__wrapped__)
                dispatcher.compile(self._signature(variant))
                dispatcher.disable_compile()  # so that other types are converted, or refused
                self._compiled[variant] = dispatcher
            return self._compiled[variant]

    def _signature(self, variant: Variant) -> tuple[Any, ...]:
        free = iter(variant)
        return tuple(
            _NUMBERS[hint]
            if hint in _NUMBERS
            else types.Array(
                from_dtype(next(free) if _element(hint) is Any else np.dtype(_element(hint))),
                1,
                "C",
                readonly=typing.get_origin(hint) is not Annotated,
            )
            for hint in self._hints
        )


def _element(hint: Any) -> Any:
    """Type of the elements of an array; the hint itself if it is one of a number."""
    if hint in _NUMBERS:
        return hint
    array = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    return typing.get_args(typing.get_args(array)[1])[0]


def _jit(function: Callable[..., Any]) -> Any:
    dispatcher = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    dispatcher._cache = KernelCache(function)
    return dispatcher


KERNELS: list[Kernel] = []
"""All kernels of the modules that are imported."""


def kernel(function: F) -> F:
    """Make a kernel of a function."""
    KERNELS.append(Kernel(function))
    return cast(F, KERNELS[-1])


def inlined(function: F) -> F:
    """Make a function a part of each kernel that calls it; it is never compiled alone."""
    part: F = register_jitable(function)
    return part


_NEVER_KEPT = "in every run: no folder to keep them can be written; set NUMBA_CACHE_DIR"


class _FirstCompiled(event.Listener):  # type: ignore[misc,unused-ignore]
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._reported = False

    def on_start(self, _: event.Event) -> None:
        if not self._reported:
            self._reported = True
            self._say(f"compiling kernels ({'first run' if can_keep() else _NEVER_KEPT})")

    def on_end(self, _: event.Event) -> None:
        pass


def compiling(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Report once, by `say`, that kernels that are not in the cache are compiled."""
    listening: AbstractContextManager[None] = event.install_listener(
        "numba:compile", _FirstCompiled(say)
    )
    return listening
