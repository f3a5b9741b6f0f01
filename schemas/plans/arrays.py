"""Types of the arguments of loops, see `packprep.packing.kernels.compiled`."""

from typing import Annotated, TypeVar

_Array = TypeVar("_Array")

Out = Annotated[_Array, "written"]
"""An array that a loop writes."""
