"""The columns of a shard: names, kinds and types.

A column holds one list for each pack. Its kind says how long the list is: `token` columns have a
value for each token, `segment` columns for each segment, `boundary` columns one more than there are
segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from .files import FormatError

Kind = Literal["token", "segment", "boundary"]

NO_LOSS = -100
"""Label of a token without loss: the value that torch's cross_entropy ignores by default."""
FILLER = -1
"""Document id of padding, and of whole filler packs."""
WHOLE = -1
"""Part of a document that is a whole row."""
OF_FILLER = {
    **dict.fromkeys(("document_ids", "turn_ids", "pair_ids", "pair_sides"), FILLER),
    **dict.fromkeys(("document_starts", "segment_lengths"), 0),
}
"""By standard column of segments, the value of filler, which is also the least of all."""

UINT16_LIMIT = 1 << 16
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64")
"""Types of columns, by their names in numpy."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    name: in the files. makes: the standard column whose values it has; `name` unless the files use
    the names of another tool. dtype: of the values, one of TYPES.
    """

    name: str
    kind: Kind
    dtype: str
    makes: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.name.isascii() or len(self.name) > 128:
            raise FormatError(
                f"column name {self.name[:128]!r} is not an identifier of at most 128 ASCII letters"
            )
        if self.kind not in get_args(Kind) or self.dtype not in TYPES:
            raise FormatError(f"column {self.name} has kind {self.kind!r}, type {self.dtype!r}")

    @property
    def standard(self) -> str:
        """Name of the standard column that it has the values of."""
        return self.makes or self.name


_STANDARD: tuple[tuple[str, Kind, str], ...] = (
    ("tokens", "token", "int32"),  # ids; uint16 where the vocabulary fits
    ("position_ids", "token", "int32"),  # 0, 1, 2, ... in each segment; uint16 where it fits
    ("cu_seqlens", "boundary", "int32"),  # 0, then the end of each segment
    ("document_ids", "segment", "int64"),  # input row; -1 is filler
    ("document_starts", "segment", "int32"),  # offset of its first token in the document
    ("labels", "token", "int32"),  # unshifted; -100 without loss
    ("segment_lengths", "segment", "int32"),  # real tokens, where segments end in padding
    ("pair_ids", "segment", "int64"),  # input row of a pair; -1 is filler
    ("pair_sides", "segment", "int8"),  # 0 or 1; -1 is filler
    ("turn_ids", "segment", "int32"),  # part of the row; -1 is a whole row, or filler
    ("seq_lengths", "segment", "int32"),  # of transformers: tokens of each segment
)
STANDARD: dict[str, Column] = {
    name: Column(name=name, kind=kind, dtype=dtype) for name, kind, dtype in _STANDARD
}
"""The columns whose meaning the format fixes; the manifest gives kind and type of any other."""
_OF_PLAN = {"document": "int64", "bos": "int8"}

DEFAULT_COLUMNS = ("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts")
CHOICES = DEFAULT_COLUMNS  # that `--columns` can name, in their order in the files


def plan_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Columns of the shards of a plan. columns: of its packs; labels need more."""
    names = ["document", "start", "count", "bos", "length"]
    if any(column.standard == "labels" for column in columns):
        names += ["repeated", "front", "hole"]
    return tuple(Column(name=n, kind="segment", dtype=_OF_PLAN.get(n, "int32")) for n in names)


def check_columns(columns: Sequence[Column], where: str) -> None:
    """Raise FormatError unless these can be the columns of a shard.

    No two have one name or the values of one standard column; each standard column has its kind and
    type; ids and boundaries are there.
    """
    names = [column.name for column in columns]
    standards = {column.standard for column in columns}
    if min(len({*names}), len(standards)) < len(names):
        raise FormatError(f"{where} lists {', '.join(names)}; expected each column once")
    for column in columns:
        standard = STANDARD.get(column.standard, column)
        types = (standard.dtype, *["uint16"] * (column.standard in ("tokens", "position_ids")))
        if column.kind != standard.kind or column.dtype not in types:
            raise FormatError(
                f"{where} says {column.name} is a {column.kind} column of {column.dtype}; expected "
                f"a {standard.kind} column of {' or '.join(types)}"
            )
    if "tokens" not in standards or not standards & {"cu_seqlens", "seq_lengths"}:
        raise FormatError(f"{where} lists {', '.join(names)}; expected tokens and cu_seqlens")


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Arrow schema of a shard: a list field for each column, in this order, and no metadata.

    list, not large_list: the form that every version of datasets opens.
    """
    return pa.schema([(c.name, pa.list_(pa.from_numpy_dtype(np.dtype(c.dtype)))) for c in columns])
