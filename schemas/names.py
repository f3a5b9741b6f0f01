"""Two spellings of a shard's columns, and the conversion between them.

    packprep   tokens       cu_seqlens, the boundaries of the segments
    hf         input_ids    seq_lengths, their lengths; position_ids and labels are always there

TRL and transformers read the names of `hf`. Every other column has one name. Code that reads packs
uses packprep's names only, and takes the views of `column_view`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import HF_NAMES, Column, check_columns, columns_of_type, shard_schema, token_type
from .errors import FormatError
from .views import ListView, list_view

Names = Literal["packprep", "hf"]

_HF_NEEDED = ("position_ids", "labels")


def spelling(schema: pa.Schema) -> Names:
    """Spelling of a schema; that of packprep if it is neither."""
    return "hf" if _is_hf(lambda name: schema.get_field_index(name) >= 0) else "packprep"


def spelling_of(columns: Sequence[Column]) -> Names:
    """Spelling of the stored columns of a manifest."""
    names = {column.name for column in columns}
    return "hf" if _is_hf(lambda name: name in names) else "packprep"


def needed_columns(names: Names) -> tuple[str, ...]:
    """Columns that every shard has in this spelling, besides tokens and boundaries."""
    return _HF_NEEDED if names == "hf" else ()


def _is_hf(has: Any) -> bool:
    return not has("tokens") and all(has(name) for name in HF_NAMES.values())


def stored_columns(columns: Sequence[Column], names: Names) -> tuple[Column, ...]:
    """The columns of a file, in the same order. columns: with packprep's names."""
    if names == "packprep":
        return tuple(columns)
    stored = {
        "tokens": replace(columns_of_type(token_type(columns), 1)["tokens"], name="input_ids"),
        "cu_seqlens": Column(
            name="seq_lengths", kind="segment", dtype="int32", meaning="length of each segment"
        ),
    }
    return tuple(stored.get(column.name, column) for column in columns)


def stored_schema(columns: Sequence[Column], names: Names) -> pa.Schema:
    """Arrow schema of a shard, as `shard_schema` with the names of the file."""
    schema = shard_schema(columns)
    if names == "packprep":
        return schema
    return pa.schema([(c.name, c.arrow_type) for c in stored_columns(columns, names)])


def packprep_columns(stored: Sequence[Column], where: str = "columns") -> tuple[Column, ...]:
    """The columns of a file with packprep's names, in the same order, checked.

    Raises FormatError if `check_columns` does, or if a column that `hf` needs is missing or of
    another type.
    """
    if spelling_of(stored) == "packprep":
        return check_columns(stored, where)
    types = columns_of_type(token_type(stored), 1)
    standard = {hf: types[name] for name, hf in HF_NAMES.items()}
    own = {column.name: column for column in stored_columns([*standard.values()], "hf")}
    for column in stored:
        if column != (expected := own.get(column.name, column)):
            raise FormatError(
                f"{where} says {column.name} is a {column.kind} column of {column.dtype}; with the "
                f"names of hf it is a {expected.kind} column of {expected.dtype}"
            )
    for name in _HF_NEEDED:
        if name not in [column.name for column in stored]:
            raise FormatError(
                f"{where} has input_ids and seq_lengths but no {name}; with the names of hf every "
                f"shard has {' and '.join(_HF_NEEDED)}"
            )
    return check_columns([standard.get(column.name, column) for column in stored], where)


def column_view(batch: pa.RecordBatch, name: str, where: str) -> ListView:
    """View of a column by packprep's name, in a batch of either spelling; see `list_view`."""
    if spelling(batch.schema) == "packprep" or name not in HF_NAMES:
        return list_view(batch, name, where)
    view = list_view(batch, HF_NAMES[name], where)
    if name != "cu_seqlens":
        return view
    view = to_boundaries(view)
    return view._replace(values=view.values.astype(np.int32))


def stored_batch(batch: pa.RecordBatch, names: Names) -> pa.RecordBatch:
    """The batch with the columns of a file. batch: sound, with packprep's names.

    The values of no column but cu_seqlens are copied.
    """
    if names == "packprep":
        return batch
    view = to_lengths(list_view(batch, "cu_seqlens", "the batch"))
    return _renamed(batch, HF_NAMES, "cu_seqlens", view)


def packprep_batch(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """The batch of a file with packprep's names, whatever its spelling; FormatError for damage.

    The values of no column but seq_lengths are copied.
    """
    if spelling(batch.schema) == "packprep":
        return batch
    view = column_view(batch, "cu_seqlens", where)
    return _renamed(batch, {hf: name for name, hf in HF_NAMES.items()}, "seq_lengths", view)


def _renamed(
    batch: pa.RecordBatch, names: dict[str, str], converted: str, view: ListView
) -> pa.RecordBatch:
    """The batch with other names of columns, and other values of the column `converted`."""
    arrays = [
        list_array(view) if name == converted else batch.column(number)
        for number, name in enumerate(batch.schema.names)
    ]
    return pa.record_batch(arrays, names=[names.get(name, name) for name in batch.schema.names])


def to_boundaries(view: ListView) -> ListView:
    """Convert lengths of segments to cu_seqlens, int64: rows [3, 5], [2] -> [0, 3, 8], [0, 2]."""
    sizes, offsets = view.flat.astype(np.int64), _from_zero(view)
    ends = np.append(0, np.cumsum(sizes))
    rows = np.arange(len(offsets))
    values = np.zeros(len(sizes) + len(rows) - 1, np.int64)
    first = np.zeros(len(values), np.bool_)
    first[offsets[:-1] + rows[:-1]] = True
    values[~first] = ends[1:] - np.repeat(ends[offsets[:-1]], np.diff(offsets))
    return ListView((offsets + rows).astype(np.int32), values)


def to_lengths(view: ListView) -> ListView:
    """Convert cu_seqlens, sound ones, to lengths: rows [0, 3, 8], [0, 2] -> [3, 5], [2]."""
    offsets = _from_zero(view)
    inside = np.ones(max(0, int(offsets[-1]) - 1), np.bool_)
    inside[offsets[1:-1] - 1] = False  # from the end of one pack to the 0 of the next
    values = np.diff(view.flat)[inside].astype(np.int32)
    return ListView((offsets - np.arange(len(offsets))).astype(np.int32), values)


def _from_zero(view: ListView) -> NDArray[np.int64]:
    return view.offsets.astype(np.int64) - int(view.offsets[0])


def list_array(view: ListView) -> "pa.ListArray[Any]":
    """Arrow list column of a view. `pa.array` would import pandas: 0.15 s and 55 MB."""
    return cast(
        "pa.ListArray[Any]",
        pa.ListArray.from_arrays(cast("pa.Int32Array", array(view.offsets)), array(view.values)),
    )


def array(values: NDArray[Any]) -> "pa.Array[Any]":
    """Arrow array on the same memory."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values.data)]
    )
