"""The batch of one training step: packs joined to one sequence, with their boundaries."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal

import numpy as np

from ..schemas.columns import FILLER, NO_LOSS

# torch.Tensor. torch is imported only where tensors are made.
Tensor = Any
# numpy.ndarray as the loader makes it, or torch.Tensor as `to` and `pin_memory` return it.
Array = Any
LabelKind = Literal["hf", "shifted"]
_NO_ARRAYS = ("max_seqlen", "label_kind", "extra", "kinds")
_NUMBERS = "biufc"  # kinds of numpy dtypes that tensors have


def import_torch() -> Any:
    """Return torch; ModuleNotFoundError says how to install it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name not in (None, "torch"):
            raise
        raise ModuleNotFoundError(
            "batches of tensors need torch, which is not installed; pip install packprep[torch]",
            name="torch",
        ) from None
    return torch


@dataclass(kw_only=True, eq=False, slots=True)
class PackedBatch:
    """T tokens in S segments.

    Models take cu_seqlens and position_ids, and no mask, so that no token sees another segment.

    The loader yields numpy arrays; `torch()`, `to()` and `pin_memory()` return batches of tensors.
    Padding that the loader adds is the last segments, with document id -1.
    """

    tokens: Array
    """int64 [T]"""
    position_ids: Array
    """int64 [T], from 0 in every segment"""
    cu_seqlens: Array
    """int32 [S + 1]: 0, then the end of each segment; with max_segments, then T again"""
    max_seqlen: int
    """tokens of the longest segment; with max_segments, a bound that is the same for all batches"""
    labels: Array = None
    """int64 [T], -100 for no loss, shifted or not as label_kind says"""
    label_kind: LabelKind = "hf"
    """"hf": labels of the same token, each segment's first -100. "shifted": of the next token."""
    document_ids: Array = None
    """int64 [S]: input row of each segment, -1 for padding; None without that column"""
    segment_lengths: Array = None
    """int32 [S]: tokens of each segment without its padding; None if no segment is padded"""
    loss_weights: Array = None
    """float32 [T]: weight of the loss at each label; None unless PackedLoader has loss_weights"""
    extra: Mapping[str, Array] = field(default_factory=dict)
    """the columns that PackedLoader's `columns` names, or of `pack_sequences`: [T] or [S]"""
    kinds: Mapping[str, str] = field(default_factory=dict, repr=False)
    """kind of each column of `extra`: "token" [T] or "segment" [S]"""
    pack_boundaries: Array = None
    """int32 [P + 1]: 0, then the end of each pack, without padding of the batch; None: one pack"""
    pack_numbers: Array = field(default=None, repr=False)
    """int64 [P]: number of each pack, -1 for filler; None unless a PackedLoader made the batch"""

    def __repr__(self) -> str:
        """Shapes and dtypes without values, on a few lines.

        Example: PackedBatch(tokens=int64[8192], ..., max_seqlen=2048).
        """
        parts = [
            f"{each.name}={_described(getattr(self, each.name))}"
            for each in fields(self)
            if each.repr
        ]
        parts = [part for part in parts if not part.endswith(("=None", "={}"))]
        return fill(
            f"PackedBatch({', '.join(parts)})",
            88,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )

    def __len__(self) -> int:
        """Tokens, padding included."""
        return len(self.tokens)

    @property
    def num_segments(self) -> int:
        """Segments, padding included."""
        return len(self.cu_seqlens) - 1

    @property
    def num_items(self) -> int:
        """Labels that are not -100, the divisor of the losses in transformers.

        0 without labels. Waits for a GPU.
        """
        return 0 if self.labels is None else int((self.labels != NO_LOSS).sum())

    @property
    def num_real_tokens(self) -> int:
        """Tokens of documents, without padding. Waits for a GPU."""
        return int(self.real_lengths().sum())

    @property
    def sum_of_squares(self) -> int:
        """Sum of n**2 over the segments of n tokens, without padding. Waits for a GPU."""
        lengths = self.real_lengths()
        return int((lengths * lengths).sum())

    def real_lengths(self) -> Array:
        """Tokens of each segment, without padding, int64 [S]."""
        lengths = self.segment_lengths
        if lengths is None:
            lengths = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        is_numpy = isinstance(lengths, np.ndarray)
        lengths = lengths.astype(np.int64) if is_numpy else lengths.long()
        return lengths if self.document_ids is None else lengths * (self.document_ids != FILLER)

    def labels_as(self, kind: LabelKind) -> Array:
        """Labels in this convention: the same array, or a copy if the convention differs.

        Exact in both directions, because a segment's outer label is -100 in both.
        """
        if self.labels is None or kind == self.label_kind:
            return self.labels
        step = -1 if kind == "shifted" else 1
        if isinstance(self.labels, np.ndarray):
            return np.roll(self.labels, step)
        return self.labels.roll(step)

    def micro_batches(self, packs: int = 1) -> "list[PackedBatch]":
        """The batch as batches of so many packs, the last of fewer: for gradient accumulation.

        Views of the same arrays, without padding of the batch. loss_weights stay those of the whole
        batch, so sums of weighted losses add up. A batch of one pack, such as those of
        `pack_sequences`, is returned as it is. ValueError for slices of `context_slice`, and for
        packs below 1.
        """
        if packs < 1:
            raise ValueError(f"packs is {packs}; expected 1 or more")
        if self.pack_boundaries is None:
            return [self]
        bounds: list[int] = self.cu_seqlens.tolist()
        if bounds[-1] != len(self):
            raise ValueError(
                f"the batch has {len(self)} tokens and its cu_seqlens end at {bounds[-1]}, as in a "
                "slice of context_slice; call micro_batches before it"
            )
        ends: list[int] = self.pack_boundaries.tolist()
        number = len(ends) - 1
        return [
            self._part(first, min(first + packs, number), ends, bounds)
            for first in range(0, number, packs)
        ]

    def _part(
        self, first_pack: int, last_pack: int, ends: list[int], bounds: list[int]
    ) -> "PackedBatch":
        """The packs first_pack to last_pack - 1. ends: pack_boundaries; bounds: cu_seqlens."""
        start, end = ends[first_pack], ends[last_pack]
        first, last = bisect_left(bounds, start), bisect_left(bounds, end)
        tokens, segments = slice(start, end), slice(first, last)
        arrays = dict.fromkeys(("tokens", "position_ids", "labels", "loss_weights"), tokens)
        arrays |= dict.fromkeys(("document_ids", "segment_lengths"), segments)
        kept: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[places]
            for name, places in arrays.items()
        }
        extra = {
            name: array[segments if self.kinds.get(name) == "segment" else tokens]
            for name, array in self.extra.items()
        }
        numbers = self.pack_numbers
        return replace(
            self,
            **kept,
            cu_seqlens=self.cu_seqlens[first : last + 1] - start,
            max_seqlen=max(after - before for before, after in pairwise(bounds[first : last + 1])),
            extra=extra,
            pack_boundaries=self.pack_boundaries[first_pack : last_pack + 1] - start,
            pack_numbers=None if numbers is None else numbers[first_pack:last_pack],
        )

    def torch(self) -> "PackedBatch":
        """The same memory as torch tensors; columns that are not numbers stay arrays."""
        torch = import_torch()
        return self._map(
            lambda array: torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        )

    def numpy(self) -> "PackedBatch":
        """As numpy arrays: the same memory if it is on the host, else a copy."""
        return self._map(
            lambda array: array if isinstance(array, np.ndarray) else array.cpu().numpy()
        )

    def pin_memory(self) -> "PackedBatch":
        """Copy the batch to page-locked memory; torch's DataLoader(pin_memory=True) calls this."""
        return self.torch()._map(lambda array: array.pin_memory())

    def to(self, device: Any, non_blocking: bool = False) -> "PackedBatch":
        """As torch tensors on a device.

        non_blocking: copies from pinned memory overlap with other work.
        """
        return self.torch()._map(lambda array: array.to(device, non_blocking=non_blocking))

    def _map(self, convert: Any) -> "PackedBatch":
        def function(array: Any) -> Any:
            is_objects = isinstance(array, np.ndarray) and array.dtype.kind not in _NUMBERS
            return array if is_objects else convert(array)

        extra = {name: function(array) for name, array in self.extra.items()}
        arrays = {
            each.name: function(value)
            for each in fields(self)
            if each.name not in _NO_ARRAYS and (value := getattr(self, each.name)) is not None
        }
        return replace(self, extra=extra, **arrays)


def _described(value: Any) -> str:
    """An array as dtype, shape and, on a GPU, device; anything else by repr."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_described(each)}" for name, each in value.items()) + "}"
    if not hasattr(value, "dtype"):
        return repr(value)
    device = str(getattr(value, "device", "cpu"))
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind}{list(value.shape)}" + ("" if device == "cpu" else f" on {device}")
