"""The kind of a column that is labels or a mask, by the first rows that have values in it.

true and false are a mask, and a number other than 0 and 1 makes the column labels. Only 0 and 1 are
a mask, if the token ids of the same rows have other numbers: as labels they would be of two tokens
that hardly occur. Otherwise it may be both, and the user has to say it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.config.grammar.label_columns import LossKind
from packprep.sources.formats.row_plan import TokenIds
from packprep.support.errors import InputError


def kind_in(table: pa.Table, rows: TokenIds, where: str) -> LossKind | None:
    """The kind of the columns `either` of these rows; None if they have no value.

    Raises InputError if it may be both. where: the source, for the message.
    """
    names = [side.either for side in rows.sides if side.either is not None]
    if any(_holds_booleans(table[name].type) for name in names):
        return "mask"
    values = np.concatenate([_numbers(table[name]) for name in names])
    if not len(values):
        return None
    if not _are_bits(values):
        return "labels"
    if not all(_are_bits(_numbers(table[side.ids])) for side in rows.sides):
        return "mask"
    listed = ",".join(names)
    raise InputError(
        f"{where} has only 0 and 1 in {listed!r} and in its token ids, so it may be labels or a "
        f"mask; give --labels-column {listed}:labels or {listed}:mask"
    )


def _holds_booleans(type_: Any) -> bool:
    return pa.types.is_boolean(getattr(type_, "value_type", type_))


def _numbers(column: pa.ChunkedArray[Any]) -> NDArray[Any]:
    """The numbers in lists; none of other values, which are problems of their rows."""
    flat = pc.list_flatten(column) if hasattr(column.type, "value_type") else pa.nulls(0)
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
        return np.empty(0, np.int8)
    return flat.drop_null().to_numpy()


def _are_bits(values: NDArray[Any]) -> bool:
    return bool(((values == 0) | (values == 1)).all())
