"""The shape of a batch: how many tokens and segments it has, checked against the shards."""

from dataclasses import dataclass
from typing import Literal

from .shards import PackedShards


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """Layout of the packs of a batch.

    tokens: at most, or, if fixed, always. multiple: the number of tokens is a multiple of this.
    max_segments: entries of cu_seqlens are always one more than this; None: as many as there are.
    filler: tokens of a filler pack.
    """

    tokens: int
    fixed: bool
    multiple: int
    max_segments: int | None
    filler: int


def batch_shape(
    shards: PackedShards,
    packs_per_batch: int,
    pad_to: int | None,
    max_segments: int | None,
    pad_multiple: int,
    cp_size: int,
    cp_layout: str,
    labels: str,
) -> BatchShape:
    """The batch's shape, or a sentence why there is none."""
    for name, value in (
        ("pad_to", pad_to),
        ("max_segments", max_segments),
        ("pad_multiple", pad_multiple),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if cp_size < 1 or cp_layout not in ("contiguous", "zigzag"):
        raise ValueError(
            f"cp_size is {cp_size} and cp_layout {cp_layout!r}; expected 1 or more, contiguous or "
            "zigzag"
        )
    multiple, filler = pad_multiple, 1
    if cp_size > 1:
        if labels == "hf":
            raise ValueError(
                "labels='hf' lose a label at the end of each slice with cp_size > 1; choose "
                "'shifted'"
            )
        if cp_layout == "zigzag":
            filler = 2 * cp_size
            if shards.segment_multiple % filler:
                raise ValueError(
                    f"the segments of {shards.path} have lengths that are a multiple of "
                    f"{shards.segment_multiple}; "
                    f"zigzag slices for cp_size={cp_size} need {filler}: build with "
                    f"--pad-segment-to-multiple {filler}"
                )
        if pad_multiple % (2 * cp_size):
            multiple = pad_multiple * 2 * cp_size
    largest = -(-packs_per_batch * max(shards.max_length, filler) // multiple) * multiple
    if pad_to is not None and (pad_to < packs_per_batch * shards.max_length or pad_to % multiple):
        raise ValueError(
            f"pad_to is {pad_to}; {packs_per_batch} packs of at most {shards.max_length} tokens "
            f"need {largest} or "
            f"more, a multiple of {multiple}"
        )
    fixed = pad_to is not None or max_segments is not None
    return BatchShape(
        tokens=pad_to or largest,
        fixed=fixed,
        multiple=multiple,
        max_segments=max_segments,
        filler=filler,
    )


def column_kind(shards: PackedShards, name: str) -> Literal["token", "segment"]:
    kind = shards.column_kinds.get(name)
    if kind == "token":
        return "token"
    if kind != "segment":
        have = ", ".join(
            name for name, kind in shards.column_kinds.items() if kind in ("token", "segment")
        )
        raise ValueError(f"columns names {name!r}; {shards.path} has {have}")
    return "segment"
