"""Types of numpy arrays, by their elements."""

import tokenize

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64 = NDArray[np.float64]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt16 = NDArray[np.uint16]
UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]

NPY_ERRORS: tuple[type[Exception], ...] = (
    *(ValueError, KeyError, TypeError, EOFError, SyntaxError, RecursionError, MemoryError),
    tokenize.TokenError,
)
"""Errors of NumPy for a damaged .npy: its header is parsed as Python."""
