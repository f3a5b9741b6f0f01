"""Every invariant of a shard, checked a record batch at a time, in numpy passes and no loop over packs.

The writer runs `check_batch` on what it is about to write, `verify` on what it reads; the reader runs
`check_boundaries` on each pack. The messages name file, pack and segment, for example
"data-00003-of-00010.arrow pack 17 segment 2 token 5: position_ids has 6; expected 5".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import FILLER, NO_LOSS, Column, check_schema
from .errors import FormatError
from .views import ListView, list_view


def check_batch(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    *,
    max_length: int,
    vocab_size: int,
    where: str,
    first_pack: int = 0,
) -> None:
    """FormatError at the first thing in `batch` that breaks the format, of all that README.md ("Invariants") lists.

    columns: as the manifest gives them. max_length: tokens of a pack at most. vocab_size: ids lie in 0..vocab_size - 1.
    where: the file's name, for messages. first_pack: number, in that file, of the batch's first pack.
    About a nanosecond per token of all columns together; allocates a few bytes per token of the batch.
    """
    check_schema(batch.schema, columns, where)
    views = {column.name: list_view(batch, column.name, where) for column in columns}
    place = _check_boundaries(views["cu_seqlens"], views["tokens"], max_length, where, first_pack)
    for column in columns:
        place.check_lengths(column, views[column.name])
    flat = {name: _flat(view) for name, view in views.items()}
    _check_tokens(flat["tokens"], vocab_size, place)
    if "position_ids" in flat:
        _check_positions(flat["position_ids"], place)
    _check_documents(flat, place)
    _check_labels(flat, vocab_size, place)
    for column in columns:
        if column.numpy_dtype.kind == "f":
            _check_finite(column, flat[column.name], place)


def check_boundaries(cu_seqlens: NDArray[np.int32], length: int, where: str) -> None:
    """FormatError unless one pack's cu_seqlens start at 0, rise strictly and end at `length`, its number of tokens."""
    if (
        len(cu_seqlens) < 2
        or cu_seqlens[0] != 0
        or cu_seqlens[-1] != length
        or not (cu_seqlens[1:] > cu_seqlens[:-1]).all()
    ):
        raise FormatError(
            f"{where}: cu_seqlens are {_short(cu_seqlens)}; expected 0, rising, to the pack's {length} tokens"
        )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where packs and segments lie in the tokens of a batch, and how to name a place in a message."""

    where: str
    first_pack: int
    pack_tokens: NDArray[np.int64]  # [packs + 1], first token of each pack
    pack_segments: NDArray[np.int64]  # [packs + 1], first segment of each pack
    starts: NDArray[np.int64]  # [segments], first token
    ends: NDArray[np.int64]  # [segments], token after the last

    def pack(self, pack: int) -> str:
        return f"{self.where} pack {self.first_pack + pack}"

    def segment(self, segment: int) -> str:
        pack = int(np.searchsorted(self.pack_segments, segment, side="right")) - 1
        return f"{self.pack(pack)} segment {segment - self.pack_segments[pack]}"

    def token(self, token: int) -> str:
        segment = int(np.searchsorted(self.starts, token, side="right")) - 1
        return f"{self.segment(segment)} token {token - self.starts[segment]}"

    def check_lengths(self, column: Column, view: ListView) -> None:
        """Every list of a column is as long as its kind says."""
        expected = np.diff(self.pack_tokens if column.kind == "token" else self.pack_segments)
        if column.kind == "boundary":
            expected = expected + 1
        found = np.diff(view.offsets)
        if len(bad := np.flatnonzero(found != expected)):
            pack = bad[0]
            raise FormatError(
                f"{self.pack(pack)}: {column.name} has {found[pack]} values; "
                f"expected {expected[pack]}, as a {column.kind} column"
            )


def _check_boundaries(cu: ListView, tokens: ListView, max_length: int, where: str, first_pack: int) -> _Place:
    lengths = np.diff(tokens.offsets)
    entries = np.diff(cu.offsets)
    pack_tokens = tokens.offsets.astype(np.int64) - int(tokens.offsets[0])
    cu_offsets = cu.offsets.astype(np.int64) - int(cu.offsets[0])
    flat_cu = _flat(cu)

    def wrong(packs: NDArray[np.bool_], message: str) -> None:
        if len(bad := np.flatnonzero(packs)):
            pack = int(bad[0])
            values = _short(cu.row(pack))
            raise FormatError(
                f"{where} pack {first_pack + pack}: " + message.format(length=lengths[pack], values=values)
            )

    wrong(lengths < 1, "it has no tokens; expected at least one")
    wrong(lengths > max_length, "it has {length} tokens; expected at most " + str(max_length))
    wrong(entries < 2, "cu_seqlens are {values}; expected 0 and the end of each segment")
    wrong(flat_cu[cu_offsets[:-1]] != 0, "cu_seqlens are {values}; expected them to start at 0")
    wrong(
        flat_cu[cu_offsets[1:] - 1] != lengths,
        "cu_seqlens are {values}; expected them to end at the pack's {length} tokens",
    )

    rises = np.ones(len(flat_cu), np.bool_)
    rises[1:] = flat_cu[1:] > flat_cu[:-1]
    rises[cu_offsets[:-1]] = True  # the 0 that starts the next pack
    if not rises.all():
        entry = int(np.argmin(rises))
        pack = int(np.searchsorted(cu_offsets, entry, side="right")) - 1
        raise FormatError(
            f"{where} pack {first_pack + pack} segment {entry - 1 - cu_offsets[pack]}: it ends at {flat_cu[entry]} "
            f"and starts at {flat_cu[entry - 1]}; expected every segment to have a token"
        )
    # In a pack with cu_seqlens [0, 3, 8] that starts at token 100 of the batch: starts [100, 103], ends [103, 108].
    first, last = np.zeros(len(flat_cu), np.bool_), np.zeros(len(flat_cu), np.bool_)
    first[cu_offsets[:-1]] = True
    last[cu_offsets[1:] - 1] = True
    base = np.repeat(pack_tokens[:-1], entries - 1)
    return _Place(
        where=where,
        first_pack=first_pack,
        pack_tokens=pack_tokens,
        pack_segments=cu_offsets - np.arange(len(cu_offsets)),
        starts=base + flat_cu[~last],
        ends=base + flat_cu[~first],
    )


def _check_tokens(tokens: NDArray[np.int32], vocab_size: int, place: _Place) -> None:
    # As unsigned, a negative id is larger than any vocabulary: one pass checks both ends.
    if len(tokens) and int(tokens.view(np.uint32).max()) >= vocab_size:
        token = int(np.argmax(tokens.view(np.uint32) >= vocab_size))
        raise FormatError(f"{place.token(token)}: the id is {tokens[token]}; expected 0 to {vocab_size - 1}")


def _check_positions(positions: NDArray[np.int32], place: _Place) -> None:
    right = np.empty(len(positions), np.bool_)
    np.equal(positions[1:], positions[:-1] + 1, out=right[1:])
    right[place.starts] = positions[place.starts] == 0
    if not right.all():
        token = int(np.argmin(right))
        segment = int(np.searchsorted(place.starts, token, side="right")) - 1
        raise FormatError(
            f"{place.token(token)}: position_ids has {positions[token]}; expected {token - place.starts[segment]}"
        )


def _check_documents(flat: dict[str, NDArray[Any]], place: _Place) -> None:
    """Document ids, starts and real lengths, and that filler stands at the end of its pack."""
    ids, starts, real = (flat.get(name) for name in ("document_ids", "document_starts", "segment_lengths"))

    def wrong(segments: NDArray[np.bool_], values: NDArray[Any], message: str) -> None:
        if len(bad := np.flatnonzero(segments)):
            segment = int(bad[0])
            raise FormatError(f"{place.segment(segment)}: " + message.format(values[segment]))

    lengths = place.ends - place.starts
    if ids is not None:
        wrong(ids < FILLER, ids, "the document id is {}; expected an input row, or -1 for filler")
        before = np.zeros(len(ids), np.bool_)
        before[1:] = ids[:-1] == FILLER
        before[place.pack_segments[:-1]] = False
        wrong(before & (ids != FILLER), ids, "document {} stands behind filler; expected filler at the end of its pack")
    if starts is not None:
        wrong(starts < 0, starts, "document_starts has {}; expected 0 or more")
    if real is not None:
        wrong((real < 0) | (real > lengths), real, "segment_lengths has {}; expected 0 to the segment's length")
        if ids is not None:
            wrong((ids == FILLER) & (real != 0), real, "segment_lengths has {}; expected 0, as the segment is filler")
            wrong(
                (ids != FILLER) & (real == 0),
                real,
                "segment_lengths has {}; expected 1 or more in a document's segment",
            )


def _check_labels(flat: dict[str, NDArray[Any]], vocab_size: int, place: _Place) -> None:
    """Labels are ids or -100; padding has labels, and they are -100."""
    labels, ids, real = (flat.get(name) for name in ("labels", "document_ids", "segment_lengths"))
    # Padding is the part of a segment behind its real length, or all of a filler segment.
    begins = place.starts if real is None else place.starts + real
    padded = begins < place.ends if real is not None else np.zeros(len(begins), np.bool_)
    if ids is not None:
        padded = padded | (ids == FILLER)
    segments = np.flatnonzero(padded)
    if labels is None:
        if len(segments):
            raise FormatError(
                f"{place.segment(int(segments[0]))}: it holds padding but there are no labels; expected {NO_LOSS} there"
            )
        return
    wrong = (labels.view(np.uint32) >= vocab_size) & (labels != NO_LOSS)
    if wrong.any():
        token = int(np.argmax(wrong))
        raise FormatError(
            f"{place.token(token)}: the label is {labels[token]}; expected {NO_LOSS} or 0 to {vocab_size - 1}"
        )
    if len(segments):
        # [start, end) of each padding, ascending and flat: reduceat gives the maximum of each, and of the gaps between.
        bounds = np.stack([begins[segments], place.ends[segments]], axis=1).ravel()
        if bounds[-1] == len(labels):
            bounds = bounds[:-1]
        highest = np.maximum.reduceat(labels, bounds)[::2]
        if len(bad := np.flatnonzero(highest != NO_LOSS)):
            segment = int(segments[bad[0]])
            raise FormatError(f"{place.segment(segment)}: padding has the label {highest[bad[0]]}; expected {NO_LOSS}")


def _check_finite(column: Column, values: NDArray[Any], place: _Place) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        entry = int(np.argmin(finite))
        if column.kind == "boundary":
            entries = place.pack_segments + np.arange(len(place.pack_segments))
            at = place.pack(int(np.searchsorted(entries, entry, side="right")) - 1)
        else:
            at = place.token(entry) if column.kind == "token" else place.segment(entry)
        raise FormatError(f"{at}: {column.name} has {values[entry]}; expected a finite number")


def _flat(view: ListView) -> NDArray[Any]:
    """The values of all rows, one behind the other, from 0."""
    return view.values[view.offsets[0] : view.offsets[-1]]


def _short(values: NDArray[Any]) -> str:
    """[0, 3, 8], or the ends of a long one: [0, 3, 8, ..., 4090, 4096]."""
    if len(values) <= 8:
        return str(values.tolist())
    head, tail = ", ".join(map(str, values[:3])), ", ".join(map(str, values[-2:]))
    return f"[{head}, ..., {tail}]"
