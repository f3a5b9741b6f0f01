"""Columns of packs in a `load_from_disk` directory without a manifest, from any packer.

Lists of `tokens` and `cu_seqlens`, or `input_ids` and `seq_lengths` as TRL names them.
"""

from collections import Counter
from typing import Any

import pyarrow as pa

from packprep.schemas.columns import STANDARD_COLUMNS
from packprep.schemas.errors import FormatError
from packprep.schemas.names import HF_NAMES

from .mapped import Field

# Columns that mask a loss. Labels are not derived from them, because that depends on the trainer's
# options.
_MASKS = ("completion_mask", "assistant_masks", "loss_mask", "prompt_mask")


def plain_fields(schema: pa.Schema, where: str) -> tuple[Field, ...]:
    """The fields of a saved dataset.

    FormatError if tokens or boundaries are missing, or are not lists of integers.
    """
    try:
        counts = Counter(schema.names)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where} has a column name that is not UTF-8: {error}; save it again"
        ) from None
    if duplicates := [name for name, count in counts.items() if count > 1]:
        raise FormatError(f"{where} has duplicate column {duplicates[0]}; expected unique names")
    names = set(schema.names)
    kinds: dict[str, Any] = {name: (name, column.kind) for name, column in STANDARD_COLUMNS.items()}
    if {*HF_NAMES.values()} <= names and not {*HF_NAMES} <= names:
        kinds |= {"tokens": ("input_ids", "token"), "cu_seqlens": ("seq_lengths", "lengths")}
    fields = []
    for name, (stored, kind) in kinds.items():
        if stored in names:
            arrow = schema.field(stored).type
            is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
            if not is_list or not pa.types.is_integer(arrow.value_type):
                raise FormatError(
                    f"{where} column {stored} is {arrow}; expected a list of integers"
                )
            dtype = str(arrow.value_type) if kind == "token" else STANDARD_COLUMNS[name].dtype
            fields.append(Field(name, stored, kind, dtype))
    if not {"tokens", "cu_seqlens"} <= {field.name for field in fields}:
        raise FormatError(
            f"{where} has the columns {', '.join(schema.names)}; expected tokens and cu_seqlens, "
            "or input_ids and seq_lengths as TRL packs them"
        )
    masks = [name for name in _MASKS if name in names]
    if masks and "labels" not in names:
        raise FormatError(
            f"{where} has {masks[0]} but no labels; save it with labels, -100 for tokens without "
            "loss"
        )
    return tuple(fields)
