"""The shape of a batch: how many tokens and segments it has. Checked against the shards."""

import math
from dataclasses import dataclass
from typing import Literal

from .shards import PackedShards


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """The options that decide the shape of the batches of a PackedLoader.

    packs_per_batch: packs in a batch of one rank. max_tokens: instead of it, tokens of a batch of
    one rank, padding included: as many of the next packs as fit; the number of steps then depends
    on the order of the epoch. pad_to: tokens of every batch. pad_multiple: tokens of every batch
    are a multiple of it. max_segments: segments of every batch; with it shapes never change (pad_to
    is then packs_per_batch * max_length, or max_tokens, by default), for torch.compile and CUDA
    graphs. Padding is added as extra segments at the end, without loss. cp_size: number of
    context-parallel ranks that slice each batch with `context_slice`; cp_layout: its layout there.
    ValueError for a number below 1, an unknown layout, and both or none of the first two.
    """

    packs_per_batch: int | None = None
    max_tokens: int | None = None
    pad_to: int | None = None
    pad_multiple: int = 1
    max_segments: int | None = None
    cp_size: int = 1
    cp_layout: Literal["contiguous", "zigzag"] = "contiguous"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        if self.cp_layout not in ("contiguous", "zigzag"):
            raise ValueError(f"cp_layout is {self.cp_layout!r}; expected contiguous or zigzag")
        if (self.packs_per_batch is None) == (self.max_tokens is None):
            raise ValueError(
                f"packs_per_batch is {self.packs_per_batch} and max_tokens is {self.max_tokens}; "
                "pass one of them"
            )


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """Size of every batch.

    tokens: of every batch if fixed, else their maximum. multiple: the number of tokens is a
    multiple of this. longest: most tokens of a segment of padding. max_seqlen: bound on the tokens
    of a segment. max_segments: None if their number varies. filler: tokens of a filler pack.
    """

    tokens: int
    fixed: bool
    multiple: int
    longest: int
    max_seqlen: int
    max_segments: int | None
    filler: int

    def padded(self, tokens: int) -> int:
        """Tokens of a batch whose packs have so many."""
        return self.tokens if self.fixed else -(-tokens // self.multiple) * self.multiple


def batch_size(shards: PackedShards, shape: BatchShape) -> BatchSize:
    """Size of a batch of this shape; ValueError if there is none."""
    chunks = 2 * shape.cp_size if shape.cp_size > 1 else 1
    multiple, length = math.lcm(shape.pad_multiple, chunks), shards.max_length
    if shape.cp_layout == "zigzag" and shards.segment_multiple % chunks:
        raise ValueError(
            f"the segments of {shards.path} have lengths that are a multiple of "
            f"{shards.segment_multiple}; zigzag slices for cp_size={shape.cp_size} need {chunks}: "
            f"build with --pad-to-multiple {chunks}"
        )
    most = max(length, chunks)
    least = -(-(shape.packs_per_batch or 1) * most // multiple) * multiple
    budget = (shape.max_tokens or least) // multiple * multiple
    if budget < least:
        raise ValueError(
            f"max_tokens is {shape.max_tokens} and a pack of {shards.path} has up to {length}; "
            f"choose {least} or more"
        )
    tokens = shape.pad_to or budget
    if tokens < budget or tokens % multiple:
        raise ValueError(
            f"pad_to is {tokens} and batches of {shards.path} have up to {budget} tokens; choose "
            f"{budget} or more, a multiple of {multiple}"
        )
    return BatchSize(
        tokens=tokens,
        fixed=shape.pad_to is not None or shape.max_segments is not None,
        multiple=multiple,
        longest=length - length % multiple or length,
        max_seqlen=most,
        max_segments=shape.max_segments,
        filler=chunks,
    )
