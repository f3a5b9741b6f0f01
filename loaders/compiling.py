"""Loops that numba compiles where it is installed."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MANY = 4096
"""Samples from which on it pays: numba takes longer to load than a smaller number to pack."""


@lru_cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any] | None:
    """The loop compiled by numba and kept on disk; None if numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    with warnings.catch_warnings():  # where no folder can keep it, it is compiled each time
        warnings.simplefilter("ignore")
        try:
            made: Callable[..., Any] = njit(nogil=True, cache=True)(loop)
        except RuntimeError:
            made = njit(nogil=True)(loop)
    return made
