"""Packs to a batch: one pass of numpy copies from the mapped files to a buffer, of int64.

A pack costs about 10 microseconds and one copy of its tokens. Positions are made from cu_seqlens,
which are checked, so a stored column of positions is never read.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import FILLER, NO_LOSS
from packprep.schemas.errors import FormatError
from packprep.schemas.trees import path_starts, path_tokens, row_labels

from .batch import PackedBatch
from .buffers import Block, BlockPool
from .loss import Mode, loss_weights
from .mapped import BatchRows
from .shape import REJECTED, BatchSize
from .shards import PackedShards
from .trees import previous_tokens, row_weights

LabelChoice = Literal["hf", "shifted", "none"]
# Between the parts of a block: parts at multiples of 4096 bytes from each other evict each other
# from the first cache.
_SKEW = 24
# Segment columns whose value in filler and padding is part of the format; others have 0 there.
_FILLED = dict.fromkeys(("document_ids", "pair_ids", "pair_sides", "turn_ids"), FILLER)
# The record batch of a pack, and the row of the pack in it.
Location = tuple[BatchRows, int]


class BatchMaker:
    """Makes batches from pack numbers; -1 is a filler pack, a segment of document -1 with no loss.

    labels, weights, columns: those of PackedLoader. skipped: documents whose tokens have no label.
    """

    def __init__(
        self,
        shards: "PackedShards | ChosenSides",
        shape: BatchSize,
        labels: LabelChoice,
        weights: Mode | None,
        columns: dict[str, Literal["token", "segment"]],
        pool: BlockPool,
        skipped: NDArray[np.int64] | None = None,
    ) -> None:
        self._shards, self._shape, self._labels, self._weights, self._columns = (
            shards,
            shape,
            labels,
            weights,
            columns,
        )
        self._pool, self._skipped = pool, skipped
        self._count = np.arange(shape.tokens)
        self._most = shape.max_length
        self._longest = self._most - self._most % shape.multiple or self._most
        self._kinds = stored = shards.column_kinds
        self._stored_labels = "labels" in stored
        self._dtypes = shards.column_dtypes
        self._documents, self._real = "document_ids" in stored, "segment_lengths" in stored
        self._turns = "turn_ids" in stored
        self._trees = shards.has_trees
        self._row_columns = [name for name, kind in stored.items() if kind == "row"]

    @staticmethod
    def values(shape: BatchSize) -> int:
        """Number of int64 values in a block: tokens, positions and labels.

        Labels have room for one value more, so that they can be shifted.
        """
        return 3 * shape.tokens + 2 * _SKEW + 1

    def make(self, packs: list[int]) -> PackedBatch:
        """The batch of these packs, in this order, in a block of the pool."""
        memory, block = self._pool.lend()
        labels_start = 2 * (self._shape.tokens + _SKEW)
        locations: list[Location | None] = []
        ends: list[NDArray[np.int32]] = []
        pack_ends = np.zeros(len(packs) + 1, np.int32)
        start = longest = 0
        for number, pack in enumerate(packs, 1):
            if pack < 0:
                locations.append(None)
                end = start + self._shape.filler
                memory[start:end] = 0
                memory[labels_start + start : labels_start + end] = NO_LOSS
                ends.append(np.array([0, self._shape.filler], np.int32))
                longest = max(longest, self._shape.filler)
            else:
                rows, row = self._shards.find(pack)
                locations.append((rows, row))
                if (count := rows.tokens(row)) > self._most:
                    raise FormatError(
                        f"{self._shards.path} pack {pack} has {count} tokens; expected at "
                        f"most {self._most}, the max_length of its manifest"
                    )
                end = start + count
                tokens = memory[start:end]
                rows.fill("tokens", row, tokens)
                if self._labels != "none":
                    # A cast copy of the stored labels, or a copy of the tokens, which are in the
                    # CPU's cache now.
                    labels = memory[labels_start + start : labels_start + end]
                    if self._stored_labels:
                        rows.fill("labels", row, labels)
                    else:
                        labels[:] = tokens
                ends.append(rows.get("cu_seqlens", row))
                longest = max(longest, rows.longest_segment(row))
            if start:
                ends[-1] = ends[-1][1:] + np.int32(start)
            pack_ends[number] = start = end
        real_segments = sum(map(len, ends)) - 1 - packs.count(-1)
        tokens_end, total = start, self._padded(start)
        if total > tokens_end:
            memory[tokens_end:total] = 0
            memory[labels_start + tokens_end : labels_start + total] = NO_LOSS
            ends.append(
                np.array(
                    [*range(tokens_end + self._longest, total, self._longest), total], np.int32
                )
            )
            longest = max(longest, min(total - tokens_end, self._longest))
        batch = self._finish(memory, block, _joined(ends), real_segments, longest, locations)
        batch.pack_boundaries, batch.pack_numbers = pack_ends, np.array(packs, np.int64)
        return batch

    def _padded(self, tokens: int) -> int:
        multiple = self._shape.multiple
        return self._shape.tokens if self._shape.fixed else -(-tokens // multiple) * multiple

    def _finish(
        self,
        memory: NDArray[np.int64],
        block: Block,
        cu_seqlens: NDArray[np.int32],
        real_segments: int,
        longest: int,
        locations: list[Location | None],
    ) -> PackedBatch:
        """Fill the rest of the batch.

        real_segments: segments of documents, before those of filler and padding. longest: tokens of
        the longest segment.
        """
        room, total, segments = self._shape.tokens, int(cu_seqlens[-1]), len(cu_seqlens) - 1
        # numpy indexes by int64: it would convert int32 at each use, which is slower.
        boundaries = cu_seqlens.astype(np.int64)
        starts, ends = boundaries[:-1], boundaries[1:]
        lengths = ends - starts
        positions = memory[room + _SKEW : room + _SKEW + total]
        np.subtract(self._count[:total], starts.repeat(lengths), out=positions)
        first, labels = 2 * (room + _SKEW), None
        if self._labels == "hf":
            labels = memory[first : first + total]
            if not self._trees:  # where rows part, the first token of a segment is trained
                labels[starts] = NO_LOSS
        elif self._labels == "shifted":
            labels = memory[first + 1 : first + 1 + total]
            labels[ends - 1] = NO_LOSS
        documents = (
            self._column(locations, "document_ids", segments, FILLER) if self._documents else None
        )
        if self._skipped is not None and documents is not None and labels is not None:
            labels[np.isin(documents, self._skipped).repeat(lengths)] = NO_LOSS
        real = self._column(locations, "segment_lengths", segments, 0) if self._real else None
        if documents is None and real is None and (None in locations or real_segments < segments):
            real = lengths.astype(np.int32)  # so that padding can be told from documents
            real[real_segments:] = 0
        weights = None
        if self._weights is not None and labels is not None and not self._trees:
            units = documents
            if units is not None and self._turns:
                # Turns of one row are documents of their own.
                turns = self._column(locations, "turn_ids", segments, FILLER)
                units = (units << 31) + turns
            weights = loss_weights(cu_seqlens, labels != NO_LOSS, self._weights, units)
        extra: dict[str, NDArray[Any]] = {}
        for name, kind in self._columns.items():
            extra[name] = self._column(
                locations, name, segments if kind == "segment" else total, _FILLED.get(name, 0)
            )
        trees: _TreeFields = {}
        if self._trees:
            trees, weights = self._tree_fields(locations, boundaries, positions, labels)
        if (limit := self._shape.max_segments) is not None:
            if segments > limit:
                raise ValueError(
                    f"a batch of {len(locations)} packs has {segments} segments with its padding, "
                    f"and max_segments is {limit}; raise it, or build with "
                    "--max-segments-per-pack"
                )
            longest = max(self._longest, self._most)
            cu_seqlens = _extended(cu_seqlens, limit + 1, total)
            documents = None if documents is None else _extended(documents, limit, FILLER)
            real = None if real is None else _extended(real, limit, 0)
            if trees:
                trees["segment_parents"] = _extended(trees["segment_parents"], limit, -1)
            segment_columns = [name for name, kind in self._columns.items() if kind == "segment"]
            extra |= {
                name: _extended(extra[name], limit, _FILLED.get(name, 0))
                for name in segment_columns
            }
        return PackedBatch(
            tokens=memory[:total],
            position_ids=positions,
            cu_seqlens=cu_seqlens,
            max_seqlen=longest,
            labels=labels,
            label_kind="shifted" if self._labels == "shifted" else "hf",
            document_ids=documents,
            segment_lengths=real,
            loss_weights=weights,
            extra=extra,
            kinds=self._columns,
            **trees,
            _block=block,
        )

    def _tree_fields(
        self,
        locations: list[Location | None],
        boundaries: NDArray[np.int64],
        positions: NDArray[np.int64],
        labels: NDArray[np.int64] | None,
    ) -> tuple["_TreeFields", NDArray[np.float32] | None]:
        """Fields that only trees have, and loss_weights; adds the tokens above to the positions."""
        packs = [pack for pack in locations if pack is not None]
        segments = [
            1 if pack is None else len(pack[0].get("cu_seqlens", pack[1])) - 1 for pack in locations
        ]
        firsts = np.cumsum([0, *segments])[:-1]
        parents = np.full(len(boundaries) - 1, -1, np.int64)
        rows: dict[str, NDArray[Any]] = {
            name: np.concatenate(
                [np.empty(0, self._dtypes[name]), *(of.get(name, row) for of, row in packs)]
            )
            for name in self._row_columns
        }
        counts = [0 if pack is None else len(pack[0].get("row_ids", pack[1])) for pack in locations]
        for pack, first, count in zip(locations, firsts, segments, strict=True):
            if pack is not None:
                of_pack = pack[0].get("segment_parents", pack[1]).astype(np.int64)
                parents[first : first + count] = np.where(of_pack >= 0, of_pack + first, -1)
        rows["row_segments"] = rows["row_segments"] + np.repeat(firsts, counts)
        rows["row_ends"] = boundaries[1:][rows["row_segments"]]
        lengths = np.diff(boundaries)
        positions += np.repeat(path_starts(parents, lengths), lengths)
        total = int(boundaries[-1])
        weights = None
        if self._weights is not None and labels is not None:
            tokens, bounds = path_tokens(parents, boundaries, rows["row_segments"])
            of_rows = row_labels(labels, tokens, bounds, rows["row_label_starts"])
            units = rows["row_ids"]
            if "row_turns" in rows:
                units = (units << 31) + rows["row_turns"]
            weights = row_weights(self._weights, tokens, of_rows, bounds, units, total)
        fields: _TreeFields = {
            "segment_parents": parents,
            "previous": previous_tokens(parents, boundaries),
            "label_weights": self._column(locations, "label_weights", total, 0).astype(np.int64),
            "rows": rows,
        }
        return fields, weights

    def _column(
        self, locations: list[Location | None], name: str, length: int, fill: int
    ) -> NDArray[Any]:
        """A column of all packs, concatenated, with `fill` in filler packs and padding."""
        dtype = self._dtypes[name]
        each = self._shape.filler if self._kinds[name] == "token" else 1
        values = _joined(
            [
                np.full(each, fill, dtype) if pack is None else pack[0].get(name, pack[1])
                for pack in locations
            ]
        )
        return values if len(values) == length else _extended(values, length, fill)


class _TreeFields(TypedDict, total=False):
    """Fields of PackedBatch that only trees have."""

    segment_parents: NDArray[np.int64]
    previous: NDArray[np.int64]
    label_weights: NDArray[np.int64]
    rows: dict[str, NDArray[Any]]


class ChosenSides:
    """The shards of preference pairs without their rejected sides, as BatchMaker reads shards."""

    def __init__(self, shards: PackedShards) -> None:
        self._shards = shards
        self.path, self.has_trees = shards.path, shards.has_trees
        self.column_kinds, self.column_dtypes = shards.column_kinds, shards.column_dtypes

    def find(self, index: int) -> tuple[BatchRows, int]:
        """See `PackedShards.find`."""
        rows, row = self._shards.find(index)
        return _ChosenRows(rows, row, self.column_kinds), row


class _ChosenRows(BatchRows):
    """One pack without its rejected segments. Filler stays."""

    def __init__(self, rows: BatchRows, row: int, kinds: Mapping[str, str]) -> None:
        self._rows, self._kinds = rows, kinds
        self._segments = rows.get("pair_sides", row) != REJECTED
        lengths = np.diff(rows.get("cu_seqlens", row))
        self._tokens = np.repeat(self._segments, lengths)
        self._lengths = lengths[self._segments]

    def get(self, name: str, row: int) -> NDArray[Any]:
        if name == "cu_seqlens":
            ends: NDArray[Any] = np.append(0, self._lengths.cumsum()).astype(np.int32)
            return ends
        chosen = self._tokens if self._kinds[name] == "token" else self._segments
        values: NDArray[Any] = self._rows.get(name, row)[chosen]
        return values

    def tokens(self, row: int) -> int:
        return int(self._lengths.sum())

    def longest_segment(self, row: int) -> int:
        return int(self._lengths.max(initial=0))


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the parts; always a copy."""
    return np.concatenate(parts) if len(parts) > 1 else parts[0].copy()


def _extended(values: NDArray[Any], length: int, fill: int) -> NDArray[Any]:
    extended = np.full(length, fill, values.dtype)
    extended[: len(values)] = values
    return extended
