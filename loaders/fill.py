"""Packs to a batch: one copy of their tokens from the mapped files to arrays of int64.

A pack costs about 10 microseconds and one copy of its tokens. Positions are made from cu_seqlens,
which are checked, so a stored column of positions is never read.
"""

import weakref
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..schemas.columns import FILLER, NO_LOSS, OF_FILLER
from ..schemas.views import ListView
from .batch import PackedBatch
from .loss import Mode, loss_weights
from .record_batch import Rows
from .shape import BatchSize
from .shards import PackedShards

LabelChoice = Literal["hf", "shifted", "none"]
Sides = Literal["both", "chosen"]
PAIR_COLUMNS = ("pair_ids", "pair_sides")
REJECTED = 1
# Between parts of a block: parts at multiples of 4096 bytes from each other evict each other from
# the first cache.
_SKEW = 24
_KEPT = 8 << 20  # values of free blocks
_Array = NDArray[Any]


class BatchMaker:
    """Makes batches from pack numbers; -1 is a filler pack, a segment of document -1 with no loss.

    labels, weights, columns, sides: those of PackedLoader.
    """

    def __init__(
        self,
        shards: PackedShards,
        size: BatchSize,
        labels: LabelChoice,
        weights: Mode | None,
        columns: tuple[str, ...],
        sides: Sides | None,
    ) -> None:
        self._shards, self._size, self._labels = shards, size, labels
        self._weights, self._chosen = weights, sides == "chosen"
        self._columns = {name: shards.columns[name].kind for name in columns}
        self._count = np.arange(size.tokens)
        # Tokens, positions, and labels with one more, so that they can be shifted.
        self._memory = _Memory(3 * size.tokens + 2 * _SKEW + 1)

    def make(self, packs: list[int]) -> PackedBatch:
        """The batch of these packs, in this order. Filler packs are the last."""
        size, stored = self._size, self._shards.columns
        found = [self._find(pack) for pack in packs]
        bounds = [*accumulate([rows.tokens(row) for rows, row in found], initial=0)]
        total, real_packs = size.padded(bounds[-1]), len(packs) - packs.count(-1)
        if total > bounds[-1]:
            found.append((self._blank(total - bounds[-1], size.longest), 0))

        def column(name: str, out: _Array | None = None) -> _Array:
            return _joined([rows.get(name, row) for rows, row in found], out)

        ends = [rows.get("cu_seqlens", row) for rows, row in found]
        real_segments = sum(map(len, ends[:real_packs])) - real_packs
        for number in range(1, len(ends)):
            ends[number] = ends[number][1:] + np.int32(bounds[number])
        cu_seqlens = _joined(ends)
        # numpy indexes by int64: it would convert int32 at each use, which is slower.
        boundaries = cu_seqlens.astype(np.int64)
        starts = boundaries[:-1]
        lengths = boundaries[1:] - starts
        memory, second, third = self._memory.lend(), size.tokens + _SKEW, 2 * (size.tokens + _SKEW)
        tokens = _joined([part for rows, row in found for part in rows.parts(row)], memory[:total])
        positions = memory[second : second + total]
        np.subtract(self._count[:total], starts.repeat(lengths), out=positions)
        labels = None
        if self._labels != "none":
            labels = memory[third : third + total]
            if "labels" in stored:
                column("labels", labels)
            else:
                labels[:] = tokens
                labels[bounds[real_packs] :] = NO_LOSS
            labels[starts] = NO_LOSS
            if self._labels == "shifted":
                memory[third + total] = NO_LOSS
                labels = memory[third + 1 : third + 1 + total]
        documents = column("document_ids") if "document_ids" in stored else None
        real = column("segment_lengths") if "segment_lengths" in stored else None
        if documents is None and real is None and real_segments < len(lengths):
            real = lengths.astype(np.int32)  # so that padding can be told from documents
            real[real_segments:] = 0
        batch = PackedBatch(
            tokens=tokens,
            position_ids=positions,
            cu_seqlens=cu_seqlens,
            max_seqlen=max([rows.longest(row) for rows, row in found]),
            labels=labels,
            label_kind="shifted" if self._labels == "shifted" else "hf",
            document_ids=documents,
            segment_lengths=real,
            extra={name: column(name) for name in self._columns},
            kinds=self._columns,
            pack_boundaries=np.array(bounds, np.int32),
            pack_numbers=np.array(packs, np.int64),
        )
        if self._weights is not None:
            turns = column("turn_ids") if "turn_ids" in stored else 0
            _add_weights(batch, self._weights, turns)
        if size.max_segments is not None:
            self._fix_segments(batch, size.max_segments)
        return batch

    def _find(self, pack: int) -> tuple[Rows, int]:
        if pack < 0:
            return self._blank(self._size.filler, self._size.filler), 0
        rows, row = self._shards.find(pack)
        return (self._without_rejected(rows, row), 0) if self._chosen else (rows, row)

    def _fix_segments(self, batch: PackedBatch, segments: int) -> None:
        """Add empty segments, so that all batches have the same number of them."""
        if batch.num_segments > segments:
            raise ValueError(
                f"a batch has {batch.num_segments} segments with its padding, and max_segments is "
                f"{segments}; raise it, or build with --max-segments"
            )
        batch.max_seqlen = self._size.max_seqlen
        batch.cu_seqlens = _extended(batch.cu_seqlens, segments + 1, len(batch))
        if batch.document_ids is not None:
            batch.document_ids = _extended(batch.document_ids, segments, FILLER)
        if batch.segment_lengths is not None:
            batch.segment_lengths = _extended(batch.segment_lengths, segments, 0)
        batch.extra = {
            name: _extended(values, segments, OF_FILLER.get(name, 0))
            if self._columns[name] == "segment"
            else values
            for name, values in batch.extra.items()
        }

    def _blank(self, tokens: int, longest: int) -> Rows:
        """A pack without documents: segments of at most `longest` tokens."""
        ends = np.array([*range(0, tokens, longest), tokens], np.int32)
        sizes = {"token": tokens, "segment": len(ends) - 1}
        columns = {
            name: np.full(
                sizes[column.kind],
                {"labels": NO_LOSS, **OF_FILLER}.get(name, 0),
                column.dtype,
            )
            for name, column in self._shards.columns.items()
            if name != "cu_seqlens"
        }
        return _one_pack({**columns, "cu_seqlens": ends})

    def _without_rejected(self, rows: Rows, row: int) -> Rows:
        """A pack without the rejected sides of its pairs. Filler stays."""
        kept = rows.get("pair_sides", row) != REJECTED
        lengths = np.diff(rows.get("cu_seqlens", row))
        of_kind = {"token": np.repeat(kept, lengths), "segment": kept}
        columns = {
            name: rows.get(name, row)[of_kind[column.kind]]
            for name, column in self._shards.columns.items()
            if name != "cu_seqlens"
        }
        ends = np.append(0, np.cumsum(lengths[kept])).astype(np.int32)
        return _one_pack({**columns, "cu_seqlens": ends})


class _Memory:
    """Arrays of int64 [values], whose memory is used again once nothing refers to them.

    numpy keeps an array alive while a view of it lives, and so does a tensor made from one. Without
    this, large batches would cost page faults, up to half of their time.
    """

    def __init__(self, values: int) -> None:
        self._values, self._free = values, deque[memoryview](maxlen=max(_KEPT // values, 4))
        # By the id of the weak reference, because arrays have no hash.
        self._lent = dict[int, tuple[weakref.ref[_Array], memoryview]]()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Memory, (self._values,)

    def lend(self) -> NDArray[np.int64]:
        """Uninitialised memory that no living array shares."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(self._values, np.int64).data
        array = np.frombuffer(buffer, np.int64)
        reference = weakref.ref(array, self._return)
        self._lent[id(reference)] = reference, buffer
        return array

    def _return(self, reference: "weakref.ref[_Array]") -> None:
        self._free.append(self._lent.pop(id(reference))[1])


def _add_weights(batch: PackedBatch, mode: Mode, turns: _Array | int) -> None:
    """Add the weights of the loss. turns: turn_ids of the segments, or 0 without them."""
    units = batch.document_ids
    if units is not None:
        units = (units << 31) + turns  # turns are documents of their own
    batch.loss_weights = loss_weights(batch.cu_seqlens, batch.labels != NO_LOSS, mode, units)


def _one_pack(columns: Mapping[str, _Array]) -> Rows:
    return Rows({name: ListView(np.array([0, len(v)], np.int32), v) for name, v in columns.items()})


def _joined(parts: list[_Array], out: _Array | None = None) -> _Array:
    """Concatenate the parts; always a copy."""
    if len(parts) > 1:
        return np.concatenate(parts, out=out)
    if out is None:
        return parts[0].copy()
    out[:] = parts[0]
    return out


def _extended(values: _Array, length: int, fill: int) -> _Array:
    extended = np.full(length, fill, values.dtype)
    extended[: len(values)] = values
    return extended
