"""The shape of a batch: how many tokens and segments it has, and of which sides of pairs.

Checked against the shards.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from .shards import PackedShards

if TYPE_CHECKING:
    from .batch import PackedBatch

Sides = Literal["both", "chosen"]
PAIR_COLUMNS = ("pair_ids", "pair_sides")
REJECTED = 1


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """Settings of a PackedLoader that decide the shape of its batches, as one value.

    `PackedLoader(shards, shape=BatchShape(packs_per_batch=4, max_segments=64))`. See PackedLoader
    for each of them. ValueError for a number below 1 and an unknown layout.
    """

    packs_per_batch: int | None = None
    max_tokens: int | None = None
    sequences_per_step: int | None = None
    pad_to: int | None = None
    max_segments: int | None = None
    pad_multiple: int = 1
    cp_size: int = 1
    cp_layout: Literal["contiguous", "zigzag"] = "contiguous"

    def __post_init__(self) -> None:
        if self.cp_size < 1 or self.cp_layout not in ("contiguous", "zigzag"):
            raise ValueError(
                f"cp_size is {self.cp_size} and cp_layout {self.cp_layout!r}; expected 1 or more, "
                "contiguous or zigzag"
            )
        for name, value in vars(self).items():
            if type(value) is int and value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        if self.sequences_per_step is not None and (self.pad_to or self.max_segments):
            raise ValueError(
                "batches of sequences_per_step have different numbers of packs, so no fixed shape; "
                "leave out pad_to and max_segments, or choose packs_per_batch"
            )


class ShapeSettings(TypedDict, total=False):
    """Fields of BatchShape as keywords of PackedLoader, but the second argument there."""

    max_tokens: int | None
    sequences_per_step: int | None
    pad_to: int | None
    max_segments: int | None
    pad_multiple: int
    cp_size: int
    cp_layout: Literal["contiguous", "zigzag"]


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """Size of a batch of one phase.

    max_length: most tokens of a pack in it. tokens: tokens of every batch if fixed, else their
    maximum. multiple: the number of tokens is a multiple of this. max_segments: cu_seqlens always
    has one entry more than this; None if its length varies. filler: tokens of a filler pack.
    """

    max_length: int
    tokens: int
    fixed: bool
    multiple: int
    max_segments: int | None
    filler: int


def batch_size(
    shards: PackedShards, shape: BatchShape, max_length: int, packs: int, labels: str
) -> BatchSize:
    """Size of a batch of this shape; ValueError if there is none.

    max_length: of the packs of its phase. packs: in a batch of it, no matter with max_tokens.
    """
    multiple, filler, pad_to = shape.pad_multiple, 1, shape.pad_to
    if shape.cp_size > 1:
        if labels == "hf":
            raise ValueError(
                "labels='hf' loses a label at the end of each slice with cp_size > 1; choose "
                "'shifted'"
            )
        if shape.cp_layout == "zigzag":
            filler = 2 * shape.cp_size
            if shards.segment_multiple % filler:
                raise ValueError(
                    f"the segments of {shards.path} have lengths that are a multiple of "
                    f"{shards.segment_multiple}; zigzag slices for cp_size={shape.cp_size} need "
                    f"{filler}: build with --pad-segment-to-multiple {filler}"
                )
        if multiple % (2 * shape.cp_size):
            multiple *= 2 * shape.cp_size
    largest = -(-packs * max(max_length, filler) // multiple) * multiple
    if shape.max_tokens is not None:
        largest = shape.max_tokens // multiple * multiple
        if largest < max(max_length, filler):
            raise ValueError(
                f"max_tokens is {shape.max_tokens} and a pack of {shards.path} has up to "
                f"{max_length}; choose {-(-max(max_length, filler) // multiple) * multiple} or more"
            )
        if pad_to is not None and (pad_to < largest or pad_to % multiple):
            raise ValueError(
                f"pad_to is {pad_to} and max_tokens {shape.max_tokens}; expected {largest} or "
                f"more, a multiple of {multiple}"
            )
    elif pad_to is not None and (pad_to < packs * max_length or pad_to % multiple):
        raise ValueError(
            f"pad_to is {pad_to}; {packs} packs of at most {max_length} tokens "
            f"need {largest} or more, a multiple of {multiple}"
        )
    return BatchSize(
        max_length=max_length,
        tokens=pad_to or largest,
        fixed=pad_to is not None or shape.max_segments is not None,
        multiple=multiple,
        max_segments=shape.max_segments,
        filler=filler,
    )


def phase_batches(shards: PackedShards, packs_per_batch: int) -> list[int]:
    """Packs in a batch of one rank in each phase, which has the tokens of one of the first phase.

    ValueError if there is no such number.
    """
    if not shards.phases:
        return [packs_per_batch]
    tokens = packs_per_batch * shards.phases[0].max_length
    for number, phase in enumerate(shards.phases, 1):
        if tokens % phase.max_length:
            raise ValueError(
                f"packs_per_batch is {packs_per_batch}: a batch has {tokens} tokens, and phase "
                f"{number} of {shards.path} has packs of {phase.max_length}, of which no whole "
                f"number fits; choose a multiple of "
                f"{math.lcm(*(p.max_length for p in shards.phases)) // shards.phases[0].max_length}"
            )
    return [tokens // phase.max_length for phase in shards.phases]


def column_kind(shards: PackedShards, name: str) -> Literal["token", "segment"]:
    kind = shards.column_kinds.get(name)
    if kind == "token":
        return "token"
    if kind != "segment":
        names = ", ".join(
            name for name, kind in shards.column_kinds.items() if kind in ("token", "segment")
        )
        raise ValueError(
            f"{shards.path} has no column {name!r} of tokens or segments; columns may name {names}"
        )
    return "segment"


def check_tree_settings(shards: PackedShards, trees: bool, labels: str, cp_size: int) -> None:
    """Raise ValueError unless the caller knows whether the shards have trees."""
    if shards.has_trees and not trees:
        raise ValueError(
            f"{shards.path} has trees, whose segments are not documents; pass trees=True, and "
            "batch.unshared() to code that does not know trees"
        )
    if trees and not shards.has_trees:
        raise ValueError(f"{shards.path} has no trees; leave out trees=True")
    if trees and (labels == "shifted" or cp_size > 1):
        setting = "labels='shifted'" if labels == "shifted" else f"cp_size={cp_size}"
        raise ValueError(
            f"{setting} cannot be used with trees: where rows part, one position predicts several "
            "tokens; use labels='hf' with batch.previous, or batch.unshared()"
        )


def has_sides(kinds: Mapping[str, str]) -> bool:
    """True if columns of these names belong to preference pairs."""
    return "pair_sides" in kinds or "row_sides" in kinds


def check_sides(shards: PackedShards, sides: Sides | None) -> None:
    """Raise ValueError unless the caller of PackedLoader knows whether the shards have pairs."""
    if sides not in (None, *get_args(Sides)):
        raise ValueError(f"sides is {sides!r}; expected 'both', 'chosen' or None")
    pairs = has_sides(shards.column_kinds)
    if pairs and sides is None:
        raise ValueError(
            f"{shards.path} has preference pairs, and a loss on both sides trains on the rejected "
            "answers; pass sides='both' for pair_log_probs, or sides='chosen' for batches of the "
            "chosen sides alone"
        )
    if sides is not None and not pairs:
        raise ValueError(f"{shards.path} has no preference pairs; leave out sides={sides!r}")
    if sides == "chosen" and shards.has_trees:
        raise ValueError(
            f"{shards.path} has trees, in which both sides of a pair share segments; pass "
            "sides='both', or build without --share-prefixes"
        )


def refuse_pairs(has_pairs: bool, what: str) -> None:
    """Raise ValueError if `what` would give a trainer both sides of preference pairs."""
    if has_pairs:
        raise ValueError(
            f"{what} gives a trainer labels of both sides of preference pairs, which would train "
            "on the rejected answers; use PackedLoader(sides='chosen'), or pair_log_probs with "
            "to_hf(batch, sides='both')"
        )


def has_rejected(batch: "PackedBatch") -> bool:
    """True if a batch has rejected sides. Waits for a GPU, only if it has the column."""
    values = batch.rows.get("row_sides", batch.extra.get("pair_sides"))
    return values is not None and bool((values == REJECTED).any())
