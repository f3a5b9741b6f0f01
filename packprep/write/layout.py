"""The columns of an output, from its options and the columns of its token files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..config.options import BuildConfig
from ..schemas.columns import CHOICES, DEFAULT_COLUMNS, STANDARD, UINT16_LIMIT, Column
from ..schemas.gather import Layout
from ..tokens.tokenizer import Tokenizer


def layout_of(
    config: BuildConfig, tokenizer: Tokenizer, stored: pa.Schema, facts: Mapping[str, Any]
) -> Layout:
    """Layout of all shards. stored: schema of the token files. facts: of their entry.

    Padding and repeated tokens need labels, because they have no loss; padding also needs the real
    lengths of segments.
    """
    columns = [STANDARD[name] for name in _names(config, stored.names, facts)]
    if config.token_type == "auto":
        limits = {"tokens": tokenizer.vocab_size, "position_ids": config.max_length}
        small = [name for name, limit in limits.items() if limit <= UINT16_LIMIT]
        columns = [replace(c, dtype="uint16") if c.name in small else c for c in columns]
    if config.columns == ("hf",):
        columns = [hf_column(column) for column in columns]
    return Layout(
        columns=(*columns, *_carried(stored)),
        max_length=config.max_length,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos.id if tokenizer.bos else 0,
        pad_id=tokenizer.pad_id,
    )


def hf_column(column: Column) -> Column:
    """The column with the name, or in the form, that transformers has (`--columns hf`)."""
    if column.name == "cu_seqlens":
        return STANDARD["seq_lengths"]
    name = "input_ids" if column.name == "tokens" else column.name
    return replace(column, name=name, makes=column.name)


def _names(config: BuildConfig, stored: Sequence[str], facts: Mapping[str, Any]) -> list[str]:
    """Standard columns, in their order."""
    filler = config.multiples.packs > 1 and config.multiples.fill
    padded, hf = config.pad_to_multiple > 1, config.columns == ("hf",)
    labels = padded or filler or bool(config.stride) or bool({"labels", "mask"} & {*stored})
    every = hf or config.is_plan or config.columns is None
    chosen = DEFAULT_COLUMNS if every else config.columns or ()
    names = [n for n in CHOICES if n in (*chosen, "tokens", "cu_seqlens")]
    names += ["labels"] if labels or hf else []
    names += ["segment_lengths"] if padded else []
    names += ["turn_ids"] if facts["turns"] else []
    return [*names, "pair_ids", "pair_sides"] if facts["pairs"] else names


def _carried(stored: pa.Schema) -> list[Column]:
    """Columns of the token files that are copied."""
    columns = []
    for spec in stored:
        if spec.name in ("tokens", "row", "part", "group", "labels", "mask"):
            continue
        is_list = pa.types.is_list(spec.type)
        kind = str(spec.type.value_type if is_list else spec.type)
        dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
        columns.append(Column(name=spec.name, kind="token" if is_list else "segment", dtype=dtype))
    return columns
