"""Types of numpy arrays, by their elements."""

from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64 = NDArray[np.float64]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt32 = NDArray[np.uint32]
UInt64 = NDArray[np.uint64]

_Array = TypeVar("_Array")

Out = Annotated[_Array, "written"]
"""An array that a loop writes."""
