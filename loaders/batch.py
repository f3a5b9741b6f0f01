"""The batch of one training step: packs joined to one sequence, with their boundaries."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal

import numpy as np

from packprep.schemas.columns import FILLER
from packprep.schemas.plans.cost import Cost
from packprep.schemas.trees import path_tokens, row_labels

from .buffers import Block, import_torch
from .trees import refuse_trees

# torch.Tensor. torch is imported only where tensors are made.
Tensor = Any
LabelKind = Literal["hf", "shifted"]
_NO_ARRAYS = ("max_seqlen", "label_kind", "extra", "kinds", "rows", "_block")
_NUMBERS = "biufc"  # kinds of numpy dtypes that tensors have

# numpy.ndarray as the loader makes it, or torch.Tensor as `to` and `pin_memory` return it.
Array = Any


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
    """kind of each column of `extra`: "token" [T], "segment" [S], or "response": [T], of which only
    the tokens at the end of each segment have values, as many as its response length"""
    segment_parents: Array = None
    """int64 [S]: the segment that each continues, -1 for none; None unless segments are nodes of
    trees (PackedLoader(trees=True)). Then a token sees its own segment and those above it."""
    previous: Array = None
    """int64 [T]: the position whose logits predict each token, -1 at the first token of a root;
    None without trees"""
    label_weights: Array = None
    """int64 [T]: number of rows that train each token; None without trees"""
    rows: Mapping[str, Array] = field(default_factory=dict)
    """columns of the rows of the trees, [rows]; row_segments count over the batch"""
    pack_boundaries: Array = None
    """int32 [P + 1]: 0, then the end of each pack, without padding of the batch; None: one pack"""
    pack_numbers: Array = field(default=None, repr=False)
    """int64 [P]: number of each pack in its split, over the packings of all epochs, -1 for filler;
    None unless a PackedLoader made the batch"""
    _block: Block | None = field(default=None, repr=False)

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
        return len(self.cu_seqlens) - 1

    @property
    def num_items(self) -> int:
        """Labels that are not -100, the divisor of the losses in transformers.

        0 without labels. Waits for a GPU.
        """
        return 0 if self.labels is None else int((self.labels != -100).sum())

    @property
    def num_real_tokens(self) -> int:
        """Tokens of documents, without padding. Waits for a GPU."""
        return int(self._real_lengths().sum())

    @property
    def sum_of_squares(self) -> int:
        """Sum of n**2 over the segments of n tokens, without padding. Waits for a GPU.

        In trees, a segment that continues m tokens counts (m + n)**2 - m**2.
        """
        return int(self.flops(Cost(0, 1)))

    def flops(self, cost: Cost) -> float:
        """FLOPs of the forward pass over the segments, without padding. Waits for a GPU.

        With the backward pass they are three times as many, if all weights are trained.

        cost: of the model, such as Cost.of_config("config.json").
        """
        lengths, starts = self._real_lengths(), self.tokens_before()
        if not isinstance(lengths, np.ndarray):
            lengths = lengths.cpu().numpy()
            starts = None if starts is None else starts.cpu().numpy()
        return float(cost.flops(lengths, starts).sum())

    def tokens_before(self) -> Array:
        """Tokens of its tree that each segment continues, [S]; None without trees."""
        if self.segment_parents is None:
            return None
        firsts = self.cu_seqlens[:-1]  # an empty segment at the end begins after the last token
        return self.position_ids[firsts.clip(max=len(self) - 1)]

    def _real_lengths(self) -> Array:
        """Tokens of each segment, without padding."""
        lengths = self.segment_lengths
        if lengths is None:
            lengths = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        return lengths if self.document_ids is None else lengths * (self.document_ids != FILLER)

    def labels_as(self, kind: LabelKind) -> Array:
        """Labels in this convention: the same array, or a copy if the convention differs.

        Exact in both directions, because a segment's outer label is -100 in both. ValueError for
        shifted labels of trees: where rows part, one position predicts several tokens.
        """
        refuse_trees(self.segment_parents is not None and kind == "shifted", "labels='shifted'")
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
        `pack_sequences`, is returned as it is. ValueError for trees, for slices of `context_slice`,
        and for packs below 1.
        """
        refuse_trees(self.segment_parents is not None, "micro_batches")
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

    def unshared(self) -> "PackedBatch":
        """The rows of the trees as documents that share nothing; the same batch without trees.

        The rows are in the order of the trees. Padding and filler are left out. numpy arrays.
        ValueError for labels that are not "hf": a row's first label is at its own first token.
        """
        if self.segment_parents is None:
            return self
        if self.label_kind != "hf":
            raise ValueError("the batch has shifted labels; ask PackedLoader for labels='hf'")
        return _unshared(self.numpy())

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
        return replace(self.torch()._map(lambda array: array.pin_memory()), _block=None)

    def to(self, device: Any, non_blocking: bool = False) -> "PackedBatch":
        """As torch tensors on a device.

        non_blocking: copies from pinned memory overlap with other work; the loader does not write
        to that memory before they are finished.
        """
        batch = self.torch()
        moved = batch._map(lambda array: array.to(device, non_blocking=non_blocking))
        if self._block is not None and non_blocking and moved.tokens.is_cuda:
            import torch

            cuda: Any = torch.cuda
            event = cuda.Event()
            event.record(cuda.current_stream(moved.tokens.device))
            self._block.copies.append(event)
        return replace(moved, _block=batch._block if moved.tokens is batch.tokens else None)

    def _map(self, convert: Any) -> "PackedBatch":
        def function(array: Any) -> Any:
            is_objects = isinstance(array, np.ndarray) and array.dtype.kind not in _NUMBERS
            return array if is_objects else convert(array)

        converted = replace(
            self,
            extra={name: function(array) for name, array in self.extra.items()},
            rows={name: function(array) for name, array in self.rows.items()},
        )
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _NO_ARRAYS and value is not None:
                setattr(converted, each.name, function(value))
        return converted

    def __getstate__(self) -> dict[str, object]:
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "_block"
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._block = None


def _unshared(batch: PackedBatch) -> PackedBatch:
    """A batch of documents with the same rows, and without padding.

    batch: with numpy arrays.
    """
    parents = batch.segment_parents.astype(np.int64)
    boundaries = batch.cu_seqlens.astype(np.int64)
    table = batch.rows
    tokens, rows = path_tokens(parents, boundaries, table["row_segments"].astype(np.int64))
    labels = batch.labels
    if labels is not None:
        labels = row_labels(labels, tokens, rows, table["row_label_starts"])
    lengths = np.diff(rows)
    extra = {"turn_ids": table.get("row_turns"), "pair_sides": table.get("row_sides")}
    if "row_sides" in table:
        extra["pair_ids"] = table["row_ids"]
    extra |= {name: values for name, values in table.items() if not name.startswith("row_")}
    total = len(batch.tokens)
    extra |= {
        name: values[tokens]
        for name, values in batch.extra.items()
        if len(values) == total and batch.kinds.get(name) != "segment"
    }
    return PackedBatch(
        tokens=batch.tokens[tokens],
        position_ids=np.arange(len(tokens)) - np.repeat(rows[:-1], lengths),
        cu_seqlens=rows.astype(np.int32),
        max_seqlen=int(lengths.max(initial=0)),
        labels=labels,
        document_ids=table["row_ids"],
        extra={name: values for name, values in extra.items() if values is not None},
        kinds={name: batch.kinds.get(name, "segment") for name in extra},
    )


def _described(value: Any) -> str:
    """An array as dtype, shape and, on a GPU, device; anything else by repr."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_described(each)}" for name, each in value.items()) + "}"
    if not hasattr(value, "dtype"):
        return repr(value)
    device = str(getattr(value, "device", "cpu"))
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind}{list(value.shape)}" + ("" if device == "cpu" else f" on {device}")
