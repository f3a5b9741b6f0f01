"""Columns of record batches as numpy arrays, checked and without a copy.

Arrow checks nothing when it maps a file, so an offset may point anywhere. Everything that is read
from a file passes through here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Int32, Int64
from .files import FormatError


class ListView(NamedTuple):
    """A list column: row r is `values[offsets[r]:offsets[r + 1]]`.

    offsets: int32 [rows + 1], may begin above 0.
    """

    offsets: Int32
    values: NDArray[Any]

    @property
    def flat(self) -> NDArray[Any]:
        """The values of all rows, concatenated."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    @property
    def places(self) -> Int64:
        """Where each row begins in `flat`, and the end, int64 [rows + 1]."""
        return self.offsets.astype(np.int64) - int(self.offsets[0])


class Segments(NamedTuple):
    """Packs and segments of a batch.

    tokens, first: first token and first segment of each pack, and the end, int64 [packs + 1].
    starts, ends: of each segment in the tokens of the batch, int64 [segments].
    """

    tokens: Int64
    first: Int64
    starts: Int64
    ends: Int64


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
        column.validate(full=True)  # of offsets too: a pass over them
    except pa.ArrowInvalid as error:
        raise FormatError(
            f"{where} column {name} is damaged: {error}; restore the file or build again"
        ) from None
    if column.null_count or column.values.null_count:
        raise FormatError(f"{where} column {name} has nulls; expected none")
    return ListView(numpy_values(column.offsets), numpy_values(column.values))


def segments_of(views: Mapping[str, ListView], where: str, first_pack: int = 0) -> Segments:
    """The segments of a batch, as its boundaries say; whether these are right is not checked.

    views: by standard column. Raises FormatError for a pack without segments.
    """
    tokens = views["tokens"].places
    if "seq_lengths" in views:
        first, values = views["seq_lengths"].places, views["seq_lengths"].flat
    else:
        entries, values = views["cu_seqlens"].places, views["cu_seqlens"].flat
        first = entries - np.arange(len(entries))
    if (none := np.diff(first) < 1).any():
        raise FormatError(f"{where} pack {first_pack + int(np.argmax(none))} has no segment")
    if "seq_lengths" in views:
        ends = np.cumsum(values, dtype=np.int64)
        return Segments(tokens, first, ends - values, ends)
    base = np.repeat(tokens[:-1], np.diff(first))
    starts, ends = np.delete(values, entries[1:] - 1), np.delete(values, entries[:-1])
    return Segments(tokens, first, base + starts, base + ends)


def numpy_values(array: Any) -> NDArray[Any]:
    """The array's memory. to_numpy would import pandas where it is installed: 0.2 s and 55 MB."""
    values: NDArray[Any] = np.from_dlpack(array)
    return values


def arrow_array(values: NDArray[Any]) -> Any:
    """Arrow array on the same memory; `pa.array` would import pandas too."""
    buffers = [None, pa.py_buffer(values.data)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def list_array(view: ListView) -> Any:
    """Arrow list column of a view."""
    return pa.ListArray.from_arrays(arrow_array(view.offsets), arrow_array(view.values))
