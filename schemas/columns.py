"""The columns of a shard: names, kinds, types, and the Arrow schema they make.

A column holds one list per pack. Its kind says how long the list is: `token` columns have one value
per token, `segment` columns one per segment, `boundary` columns one more than there are segments,
`row` columns one per row of its trees.

The command line reads this module for `--help`, so numpy and pyarrow are loaded only in functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from .errors import FormatError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

Kind = Literal["token", "segment", "boundary", "row"]
DType = Literal["int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64"]
TokenType = Literal["int32", "uint16"]

# The label of a token that carries no loss: the value torch's cross_entropy ignores by default.
NO_LOSS = -100
# The document id of padding and of whole filler packs.
FILLER = -1
# The turn of a document that is a whole row, not one turn of a conversation.
WHOLE_ROW = -1
# Columns of tokens that may also be uint16, which holds numbers below UINT16_LIMIT. No other column
# may: torch computes little in uint16, and batches have these two as int64.
COMPACT_COLUMNS = ("tokens", "position_ids")
UINT16_LIMIT = 1 << 16
HF_NAMES = {"tokens": "input_ids", "cu_seqlens": "seq_lengths"}
"""Name in the spelling `hf` of each column that has another name there; see names.py."""


class NumberType(NamedTuple):
    """A type of numbers, under the name that numpy and `datasets` give it.

    arrow: Arrow's name. read_from: types of a source, by Arrow's names, that a carried column
    stores in this type if its entry names none. carried: an entry of `carry` may name it.
    """

    arrow: str
    read_from: tuple[str, ...] = ()
    carried: bool = True


NUMBER_TYPES: dict[DType, NumberType] = {
    "int8": NumberType("int8", ("int8", "bool")),
    "uint8": NumberType("uint8", ("uint8",)),
    "int16": NumberType("int16", ("int16",)),
    "uint16": NumberType("uint16", carried=False),
    "int32": NumberType("int32", ("int32", "uint16")),
    "int64": NumberType("int64", ("int64", "uint32", "uint64")),
    "float32": NumberType("float", ("halffloat", "float", "double")),
    "float64": NumberType("double"),
}
"""The types of all columns; a new one is a row here and in manifest.schema.json."""

_OF_ARROW = {number.arrow: name for name, number in NUMBER_TYPES.items()}
COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def number_type(arrow_type: Any) -> str:
    """The name that numpy and `datasets` give to an Arrow type: "float32" of float."""
    return _OF_ARROW.get(str(arrow_type), str(arrow_type))


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Raises FormatError for a name that is not an identifier, or an unknown kind or dtype.
    """

    name: str
    kind: Kind
    dtype: DType
    meaning: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not COLUMN_NAME.fullmatch(self.name):
            raise FormatError(
                f"column name {self.name!r} is not of the form [A-Za-z_][A-Za-z0-9_]*, at most 128 "
                "characters"
            )
        for key, value, allowed in (
            ("kind", self.kind, get_args(Kind)),
            ("dtype", self.dtype, get_args(DType)),
        ):
            if value not in allowed:
                raise FormatError(
                    f"column {self.name} has {key} {value!r}; expected one of {', '.join(allowed)}"
                )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype(self.dtype)

    @property
    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        # list, not large_list: the only form that every version of datasets opens. Its int32
        # offsets limit a record batch, not the file.
        return pa.list_(pa.from_numpy_dtype(self.numpy_dtype))


STANDARD_COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column(name="tokens", kind="token", dtype="int32", meaning="token ids"),
        Column(
            name="position_ids",
            kind="token",
            dtype="int32",
            meaning="0, 1, 2, ... restarting at every segment",
        ),
        Column(
            name="cu_seqlens",
            kind="boundary",
            dtype="int32",
            meaning="0, then the end of each segment in the pack",
        ),
        Column(
            name="document_ids",
            kind="segment",
            dtype="int64",
            meaning="input row of each segment; -1 is filler",
        ),
        Column(
            name="document_starts",
            kind="segment",
            dtype="int32",
            meaning="offset, in its document, of the segment's first own token",
        ),
        Column(
            name="labels",
            kind="token",
            dtype="int32",
            meaning="unshifted target of each token; -100 where no loss",
        ),
        Column(
            name="segment_lengths",
            kind="segment",
            dtype="int32",
            meaning="real tokens of each segment, where segments end in padding",
        ),
        Column(
            name="pair_ids",
            kind="segment",
            dtype="int64",
            meaning="input row of the pair; -1 is filler",
        ),
        Column(
            name="pair_sides",
            kind="segment",
            dtype="int8",
            meaning="0 on the first side of a pair, 1 on the second; -1 is filler",
        ),
        Column(
            name="turn_ids",
            kind="segment",
            dtype="int32",
            meaning="message of the trained turn, or document of a row that was packed already; "
            "-1 is a whole row, or filler",
        ),
        Column(
            name="segment_parents",
            kind="segment",
            dtype="int32",
            meaning="segment of the pack that each continues; -1 is none, as at a root and filler",
        ),
        Column(
            name="label_weights",
            kind="token",
            dtype="int32",
            meaning="number of rows that train each token; 0 where the label is -100",
        ),
        Column(name="row_ids", kind="row", dtype="int64", meaning="input row of each row"),
        Column(
            name="row_starts",
            kind="row",
            dtype="int32",
            meaning="offset, in its document, of the row's first own token",
        ),
        Column(
            name="row_turns",
            kind="row",
            dtype="int32",
            meaning="message of the trained turn of each row; -1 is a whole row",
        ),
        Column(
            name="row_sides",
            kind="row",
            dtype="int8",
            meaning="0 on the first side of a pair, 1 on the second",
        ),
        Column(
            name="row_segments",
            kind="row",
            dtype="int32",
            meaning="segment of the pack at which each row ends",
        ),
        Column(
            name="row_ends",
            kind="row",
            dtype="int32",
            meaning="end of the row's last token in the pack",
        ),
        Column(
            name="row_trained",
            kind="row",
            dtype="int32",
            meaning="number of tokens that each row trains",
        ),
        Column(
            name="row_label_starts",
            kind="row",
            dtype="int32",
            meaning="tokens of each row before its first label; from there it has all labels",
        ),
    )
}
"""The columns whose meaning the format fixes; the manifest gives the kind of any other."""

REQUIRED_COLUMNS = ("tokens", "cu_seqlens")


def columns_of_type(tokens: TokenType, max_length: int) -> dict[str, Column]:
    """STANDARD_COLUMNS with tokens of this type.

    position_ids have it too, unless packs are so long that it does not hold every position.
    """
    positions: TokenType = "int32" if max_length > UINT16_LIMIT else tokens
    types = dict(zip(COMPACT_COLUMNS, (tokens, positions), strict=True))
    return {
        name: replace(column, dtype=types.get(name, column.dtype))
        for name, column in STANDARD_COLUMNS.items()
    }


def token_type(columns: Iterable[Column]) -> TokenType:
    """Type of the token ids in these columns, in either spelling."""
    ids = ("tokens", HF_NAMES["tokens"])
    return "uint16" if ("uint16" in {c.dtype for c in columns if c.name in ids}) else "int32"


def as_unsigned(values: NDArray[Any]) -> NDArray[Any]:
    """The same memory as unsigned integers: a negative number is larger than any limit."""
    return values.view(f"u{values.itemsize}")


def check_columns(columns: Iterable[Column], where: str = "columns") -> tuple[Column, ...]:
    """The columns as a tuple.

    Raises FormatError for a duplicate name, a standard name with another kind or dtype, or a
    missing required column.
    """
    columns = tuple(columns)
    names = [column.name for column in columns]
    for column in columns:
        if names.count(column.name) > 1:
            raise FormatError(f"{where} lists {column.name} twice; expected each name once")
        compact = column.dtype == "uint16"
        if compact and column.name not in COMPACT_COLUMNS:
            raise FormatError(
                f"{where} says {column.name} is a column of uint16; only "
                f"{' and '.join(COMPACT_COLUMNS)} may be, so choose int32"
            )
        standard = STANDARD_COLUMNS.get(column.name, column)
        if column != (replace(standard, dtype="uint16") if compact else standard):
            raise FormatError(
                f"{where} says {column.name} is a {column.kind} column of {column.dtype}; "
                f"the format fixes it as a {standard.kind} column of {standard.dtype}, so choose "
                "another name"
            )
    for name in REQUIRED_COLUMNS:
        if name not in names:
            raise FormatError(
                f"{where} has no {name}; every shard has {' and '.join(REQUIRED_COLUMNS)}"
            )
    return columns


def shard_schema(columns: Sequence[Column]) -> pa.Schema:
    """Arrow schema of a shard: one list field per column, in this order, and no metadata."""
    import pyarrow as pa

    return pa.schema([(column.name, column.arrow_type) for column in check_columns(columns)])


def check_schema(schema: pa.Schema, columns: Sequence[Column], where: str) -> None:
    """Raise FormatError unless a shard's schema is `shard_schema(columns)`."""
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where} has a column name that is not UTF-8: {error}; restore the file or build again"
        ) from None
    if names != [column.name for column in columns]:
        expected = ", ".join(column.name for column in columns)
        raise FormatError(f"{where} has the columns {', '.join(names)}; expected {expected}")
    for column, arrow_field in zip(columns, schema, strict=True):
        if arrow_field.type != column.arrow_type:
            raise FormatError(
                f"{where} column {column.name} is {arrow_field.type}; expected {column.arrow_type}"
            )
    if schema.metadata:
        # datasets reads feature types from here, and versions differ in what they understand.
        keys = ", ".join(sorted(key.decode(errors="replace") for key in schema.metadata))
        raise FormatError(f"{where} has schema metadata ({keys}); expected none")
