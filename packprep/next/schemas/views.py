"""Columns of record batches as numpy arrays, checked and without a copy.

Arrow checks nothing when it maps a file, so an offset may point anywhere. Everything that is read
from a file passes through here.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Int32
from .errors import FormatError

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's other names


class ListView(NamedTuple):
    """A list column: row r is `values[offsets[r]:offsets[r + 1]]`.

    offsets: int32 [rows + 1], may begin above 0.
    """

    offsets: Int32
    values: NDArray[Any]

    def row(self, row: int) -> NDArray[Any]:
        """The values of one row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def flat(self) -> NDArray[Any]:
        """The values of all rows, concatenated."""
        return self.values[self.offsets[0] : self.offsets[-1]]


def list_view(batch: pa.RecordBatch, name: str, where: str) -> ListView:
    """View of a list column. Costs a pass over the offsets.

    Raises FormatError if the column is missing, is no list, has nulls, or if its offsets fall or
    point outside the values.
    """
    number = batch.schema.get_field_index(name)
    if number < 0 or not pa.types.is_list(batch.schema.field(number).type):
        raise FormatError(f"{where} has no list column {name}; restore the file or build again")
    column: Any = batch.column(number)
    try:
        column.validate()  # buffers are as long as their arrays claim
    except pa.ArrowInvalid as error:
        raise FormatError(
            f"{where} column {name} is damaged: {error}; restore the file or build again"
        ) from None
    if column.null_count or column.values.null_count:
        raise FormatError(f"{where} column {name} has nulls; expected none")
    values = numpy_values(column.values)
    if not len(column):
        return ListView(np.zeros(1, np.int32), values[:0])
    offsets = numpy_values(column.offsets)
    if offsets[0] < 0 or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{where} column {name} has list offsets outside 0..{len(values)} or falling; restore "
            "the file or build again"
        )
    return ListView(offsets, values)


def numpy_values(array: Any) -> NDArray[Any]:
    """The array's memory. to_numpy would import pandas where it is installed: 0.2 s and 55 MB."""
    name = str(array.type)
    dtype = np.dtype(_FLOATS.get(name, name))
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    values: NDArray[Any] = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    return values


def arrow_array(values: NDArray[Any]) -> Any:
    """Arrow array on the same memory; `pa.array` would import pandas too."""
    buffers = [None, pa.py_buffer(values.data)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def list_array(view: ListView) -> Any:
    """Arrow list column of a view."""
    return pa.ListArray.from_arrays(arrow_array(view.offsets), arrow_array(view.values))
