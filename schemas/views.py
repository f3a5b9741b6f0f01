"""A list column of a record batch as two numpy arrays.

Without a copy and without trusting the file.

Arrow checks nothing when it maps a file: an offset may point anywhere. All that is read from a
shard passes here.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import FormatError

# Arrow's names for these are numpy's names for others.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


class ListView(NamedTuple):
    """A list column: row r is `values[offsets[r]:offsets[r + 1]]`.

    offsets: int32 [rows + 1], not always from 0.
    """

    offsets: NDArray[np.int32]
    values: NDArray[Any]

    def row(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def list_view(batch: pa.RecordBatch, name: str, where: str) -> ListView:
    """Views of one list column.

    FormatError if it has nulls, or offsets that fall, or that leave the values.

    Costs a pass over the offsets (one number per pack) and, only if the file has a null bitmap, one
    over that.
    """
    column = batch.column(batch.schema.get_field_index(name))
    try:
        column.validate()  # buffers are as long as their arrays claim
    except pa.ArrowInvalid as error:
        raise FormatError(
            f"{where} column {name} is damaged: {error}; restore the file or build again"
        ) from None
    if column.null_count or column.values.null_count:
        raise FormatError(
            f"{where} column {name} holds nulls; expected none, in the lists or as lists"
        )
    values = _numpy(column.values)
    if not len(column):
        return ListView(np.zeros(1, np.int32), values[:0])
    offsets = _numpy(column.offsets)
    if offsets[0] < 0 or offsets[-1] > len(values) or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{where} column {name} has list offsets outside 0..{len(values)} or falling; restore "
            "or rebuild the file"
        )
    return ListView(offsets, values)


def _numpy(array: pa.Array) -> NDArray[Any]:
    """The array's own memory.

    to_numpy and to_pandas_dtype import pandas where it is installed: 0.2 s and 55 MB.
    """
    name = str(array.type)
    dtype = np.dtype(_FLOATS.get(name, name))
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
