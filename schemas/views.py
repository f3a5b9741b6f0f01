"""A list column of a record batch as two numpy arrays, checked and without a copy.

Arrow checks nothing when it maps a file, so an offset may point anywhere. Everything that is read
from a shard passes through here.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import FormatError

# Arrow and numpy name these types differently.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


class ListView(NamedTuple):
    """A list column: row r is `values[offsets[r]:offsets[r + 1]]`.

    offsets: int32 [rows + 1], may begin above 0.
    """

    offsets: NDArray[np.int32]
    values: NDArray[Any]

    def row(self, row: int) -> NDArray[Any]:
        """The values of one row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def flat(self) -> NDArray[Any]:
        """The values of all rows, concatenated."""
        return self.values[self.offsets[0] : self.offsets[-1]]


def list_view(batch: pa.RecordBatch, name: str, where: str) -> ListView:
    """Views of one list column.

    Raises FormatError if it has nulls, or if offsets fall or point outside the values. Costs a pass
    over the offsets (one number per pack) and over the null bitmap, if the file has one.
    """
    column = cast("pa.ListArray[Any]", batch.column(batch.schema.get_field_index(name)))
    try:
        column.validate()  # checks that buffers are as long as their arrays claim
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
            "the file or build again"
        )
    return ListView(offsets, values)


def _numpy(array: "pa.Array[Any]") -> NDArray[Any]:
    """The array's memory as a numpy array.

    to_numpy and to_pandas_dtype would import pandas where it is installed: 0.2 s and 55 MB.
    """
    name = str(array.type)
    dtype = np.dtype(_FLOATS.get(name, name))
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    start = array.offset * dtype.itemsize
    # The stubs of numpy 2.2 do not know the buffer protocol.
    values: NDArray[Any] = np.frombuffer(buffer, dtype, len(array), start)  # type: ignore[call-overload]
    return values


def chosen(
    values: NDArray[Any], kept: NDArray[np.bool_] | NDArray[np.integer[Any]] | slice
) -> NDArray[Any]:
    """values[kept], by a mask, indices or a slice; `take` is several times as fast for indices."""
    if isinstance(kept, slice) or kept.dtype == np.bool_:
        return values[kept]
    return values.take(kept)


def ranges_at(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers starts[i]..starts[i] + lengths[i] - 1 of all i, concatenated."""
    before = np.cumsum(lengths) - lengths
    numbers = np.arange(lengths.sum())
    numbers += np.repeat(starts - before, lengths)
    return numbers


def in_turn(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Values of both in turn: [1, 2], [3, 4] -> [1, 3, 2, 4]."""
    values = np.empty((len(one), 2), one.dtype)
    values[:, 0], values[:, 1] = one, other
    return values.ravel()
