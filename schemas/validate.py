"""Every invariant of a shard, checked a record batch at a time.

In numpy passes and no loop over packs.

The writer runs `check_batch` on what it is about to write, `verify` goes through `sound_parts` of
what it reads; the reader runs `check_boundaries` on each pack. The messages name file, pack and
segment, for example "data-00003-of-00010.arrow pack 17 segment 2 token 5: position_ids has 6;
expected 5".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .columns import FILLER, NO_LOSS, Column, check_schema
from .errors import FormatError
from .findings import Finding, Findings, StopAtFirst
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
    """Raise FormatError at the first thing in `batch` that breaks the format.

    All invariants are in README.md ("Invariants").

    columns: as the manifest gives them. max_length: tokens of a pack at most. vocab_size: ids lie
    in 0..vocab_size - 1. where: the file's name, for messages. first_pack: number, in that file, of
    the batch's first pack. About a nanosecond per token of all columns together; allocates a few
    bytes per token of the batch.
    """
    limits = {"max_length": max_length, "vocab_size": vocab_size}
    for _ in sound_parts(
        batch, columns, **limits, where=where, first_pack=first_pack, findings=StopAtFirst()
    ):
        pass


def sound_parts(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    *,
    max_length: int,
    vocab_size: int,
    where: str,
    first_pack: int,
    findings: Findings,
) -> Iterator["BatchView"]:
    """Report all that breaks the format in `batch` to `findings`.

    Gives the runs of packs whose boundaries are right.

    A pack whose boundaries or list lengths are wrong is told once and left out: nothing else can be
    said of it. Arguments as for `check_batch`.
    """
    check_schema(batch.schema, columns, where)
    try:
        views = {column.name: list_view(batch, column.name, where) for column in columns}
    except FormatError as error:
        findings.damaged(error, where, first_pack)
        return
    bad = _bad_packs(views, columns, max_length, where, first_pack, findings)
    if bad.any():
        # [0, 1, 0, 0, 1] -> the runs [0, 1) and [2, 4).
        edges = np.flatnonzero(np.diff(np.concatenate([[1], bad.astype(np.int8), [1]])))
        for first, last in edges.reshape(-1, 2).tolist():
            yield from sound_parts(
                batch.slice(first, last - first),
                columns,
                max_length=max_length,
                vocab_size=vocab_size,
                where=where,
                first_pack=first_pack + first,
                findings=findings,
            )
        return
    view = _view(views, where, first_pack)
    _check_tokens(view, vocab_size, findings)
    _check_positions(view, findings)
    _check_documents(view, findings)
    _check_labels(view, vocab_size, findings)
    for column in columns:
        if column.numpy_dtype.kind == "f":
            _check_finite(column, view, findings)
    yield view


def check_boundaries(cu_seqlens: NDArray[np.int32], length: int, where: str) -> None:
    """Raise FormatError unless one pack's cu_seqlens are right.

    They start at 0, rise strictly and end at `length`, its number of tokens.
    """
    if (
        len(cu_seqlens) < 2
        or cu_seqlens[0] != 0
        or cu_seqlens[-1] != length
        or not (cu_seqlens[1:] > cu_seqlens[:-1]).all()
    ):
        raise FormatError(
            f"{where}: cu_seqlens are {_short(cu_seqlens)}; expected 0, rising, to the pack's "
            f"{length} tokens"
        )


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """Packs of a record batch whose boundaries are right.

    Where they and their segments lie, and what they hold.

    columns: the values of all packs, one behind the other. pack_tokens, pack_segments: int64 [packs
    + 1], the first token and segment of each pack. starts, ends: int64 [segments], first token and
    the one after the last.
    """

    where: str
    first_pack: int
    columns: dict[str, NDArray[Any]]
    pack_tokens: NDArray[np.int64]
    pack_segments: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def pack(self, pack: int, kind: str, what: str) -> Finding:
        return Finding(kind=kind, what=what, file=self.where, pack=self.first_pack + pack)

    def segment(self, segment: int, kind: str, what: str) -> Finding:
        pack = int(np.searchsorted(self.pack_segments, segment, side="right")) - 1
        number = int(segment - self.pack_segments[pack])
        return Finding(
            kind=kind, what=what, file=self.where, pack=self.first_pack + pack, segment=number
        )

    def token(self, token: int, kind: str, what: str) -> Finding:
        at = self.segment_of(token)
        place = self.segment(at, kind, what)
        return Finding(
            kind=kind,
            what=what,
            file=self.where,
            pack=place.pack,
            segment=place.segment,
            token=int(token - self.starts[at]),
        )

    def segment_of(self, token: int) -> int:
        return int(np.searchsorted(self.starts, token, side="right")) - 1

    @property
    def filler(self) -> NDArray[np.bool_]:
        """[segments], which are filler, as far as document_ids are there to say so."""
        ids = self.columns.get("document_ids")
        return np.zeros(len(self.starts), np.bool_) if ids is None else ids == FILLER

    @property
    def real(self) -> NDArray[np.int64]:
        """[segments], tokens that are no padding."""
        lengths = self.columns.get("segment_lengths")
        if lengths is None:
            return np.where(self.filler, 0, self.ends - self.starts)
        return lengths.astype(np.int64)


def _bad_packs(
    views: dict[str, ListView],
    columns: Sequence[Column],
    max_length: int,
    where: str,
    first_pack: int,
    findings: Findings,
) -> NDArray[np.bool_]:
    """Packs with wrong boundaries, or with lists not as long as their kind says.

    Each is reported once.
    """
    cu, lengths = views["cu_seqlens"], np.diff(views["tokens"].offsets)
    entries = np.diff(cu.offsets)
    bad = np.zeros(len(lengths), np.bool_)

    def wrong(packs: NDArray[np.bool_], make: Callable[[int], str]) -> None:
        def finding(pack: int) -> Finding:
            return Finding(kind="boundaries", file=where, pack=first_pack + pack, what=make(pack))

        findings.many("boundaries", np.flatnonzero(packs & ~bad), finding)
        bad[packs] = True

    wrong(lengths < 1, lambda pack: "it has no tokens; expected at least one")
    wrong(
        lengths > max_length,
        lambda pack: f"it has {lengths[pack]} tokens; expected at most {max_length}",
    )
    wrong(
        entries < 2,
        lambda pack: (
            f"cu_seqlens are {_short(cu.row(pack))}; expected 0 and the end of each segment"
        ),
    )
    flat_cu = flat(cu)
    if len(flat_cu):
        offsets = cu.offsets.astype(np.int64) - int(cu.offsets[0])
        begins, ends = np.minimum(offsets[:-1], len(flat_cu) - 1), offsets[1:] - 1
        wrong(
            flat_cu[begins] != 0,
            lambda pack: f"cu_seqlens are {_short(cu.row(pack))}; expected them to start at 0",
        )
        wrong(
            flat_cu[ends] != lengths,
            lambda pack: (
                f"cu_seqlens are {_short(cu.row(pack))}; expected them to end at the pack's "
                f"{lengths[pack]} tokens"
            ),
        )
        rises = np.ones(len(flat_cu), np.bool_)
        rises[1:] = flat_cu[1:] > flat_cu[:-1]
        rises[begins] = True  # the 0 that starts the next pack
        falls = np.flatnonzero(~rises)
        pack_of = np.searchsorted(offsets, falls, side="right") - 1
        news = ~bad[pack_of]

        def empty_segment(entry: int) -> Finding:
            pack = int(np.searchsorted(offsets, entry, side="right")) - 1
            return Finding(
                kind="boundaries",
                file=where,
                pack=first_pack + pack,
                segment=int(entry - 1 - offsets[pack]),
                what=f"it ends at {flat_cu[entry]} and starts at {flat_cu[entry - 1]}; "
                "expected every segment to have a token",
            )

        findings.many("boundaries", falls[news], empty_segment)
        bad[pack_of] = True
    expected = {"token": lengths, "segment": entries - 1, "boundary": entries}
    for column in columns:
        found, right = np.diff(views[column.name].offsets), expected[column.kind]
        wrong(
            found != right,
            lambda pack, column=column, found=found, right=right: (  # type: ignore[misc]
                f"{column.name} has {found[pack]} values; expected {right[pack]}, as a "
                f"{column.kind} column"
            ),
        )
    return bad


def _view(views: dict[str, ListView], where: str, first_pack: int) -> BatchView:
    columns = {name: flat(view) for name, view in views.items()}
    tokens, cu, flat_cu = views["tokens"], views["cu_seqlens"], columns["cu_seqlens"]
    pack_tokens = tokens.offsets.astype(np.int64) - int(tokens.offsets[0])
    cu_offsets = cu.offsets.astype(np.int64) - int(cu.offsets[0])
    # In a pack with cu_seqlens [0, 3, 8] that starts at token 100 of the batch: starts [100, 103],
    # ends [103, 108].
    first, last = np.zeros(len(flat_cu), np.bool_), np.zeros(len(flat_cu), np.bool_)
    first[cu_offsets[:-1]] = True
    last[cu_offsets[1:] - 1] = True
    base = np.repeat(pack_tokens[:-1], np.diff(cu_offsets) - 1)
    return BatchView(
        where=where,
        first_pack=first_pack,
        columns=columns,
        pack_tokens=pack_tokens,
        pack_segments=cu_offsets - np.arange(len(cu_offsets)),
        starts=base + flat_cu[~last],
        ends=base + flat_cu[~first],
    )


def _check_tokens(view: BatchView, vocab_size: int, findings: Findings) -> None:
    # As unsigned, a negative id is larger than any vocabulary: one pass checks both ends.
    tokens = view.columns["tokens"]
    if len(tokens) and int(tokens.view(np.uint32).max()) >= vocab_size:
        findings.many(
            "token id",
            np.flatnonzero(tokens.view(np.uint32) >= vocab_size),
            lambda at: view.token(
                at, "token id", f"the id is {tokens[at]}; expected 0 to {vocab_size - 1}"
            ),
        )


def _check_positions(view: BatchView, findings: Findings) -> None:
    positions = view.columns.get("position_ids")
    if positions is None:
        return
    # n whole numbers that rise from 0 to n - 1 are 0, 1, ..., n - 1.
    rises = np.empty(len(positions), np.bool_)
    np.greater(positions[1:], positions[:-1], out=rises[1:])
    last = positions[view.ends - 1]
    rises[view.starts] = (positions[view.starts] == 0) & (last == view.ends - view.starts - 1)
    if not rises.all():

        def finding(at: int) -> Finding:
            expected = at - view.starts[view.segment_of(at)]
            return view.token(
                at, "position", f"position_ids has {positions[at]}; expected {expected}"
            )

        true = np.arange(len(positions)) - np.repeat(view.starts, view.ends - view.starts)
        findings.many("position", np.flatnonzero(positions != true), finding)


def _check_documents(view: BatchView, findings: Findings) -> None:
    """Document ids, starts and real lengths, and that filler stands at the end of its pack."""
    ids, starts, real = (
        view.columns.get(name) for name in ("document_ids", "document_starts", "segment_lengths")
    )

    def wrong(segments: NDArray[np.bool_], values: NDArray[Any], message: str) -> None:
        findings.many(
            "document",
            np.flatnonzero(segments),
            lambda segment: view.segment(segment, "document", message.format(values[segment])),
        )

    lengths = view.ends - view.starts
    if ids is not None:
        wrong(ids < FILLER, ids, "the document id is {}; expected an input row, or -1 for filler")
        before = np.zeros(len(ids), np.bool_)
        before[1:] = ids[:-1] == FILLER
        before[view.pack_segments[:-1]] = False
        wrong(
            before & (ids != FILLER),
            ids,
            "document {} stands behind filler; expected filler at the end of its pack",
        )
    if starts is not None:
        wrong(starts < 0, starts, "document_starts has {}; expected 0 or more")
    if real is not None:
        wrong(
            (real < 0) | (real > lengths),
            real,
            "segment_lengths has {}; expected 0 to the segment's length",
        )
        if ids is not None:
            wrong(
                (ids == FILLER) & (real != 0),
                real,
                "segment_lengths has {}; expected 0, as the segment is filler",
            )
            wrong(
                (ids != FILLER) & (real == 0),
                real,
                "segment_lengths has {}; expected 1 or more in a document's segment",
            )


def _check_labels(view: BatchView, vocab_size: int, findings: Findings) -> None:
    """Labels are ids or -100; padding has labels, and they are -100."""
    labels, real = (view.columns.get(name) for name in ("labels", "segment_lengths"))
    # Padding is the part of a segment behind its real length, or all of a filler segment.
    begins = (
        view.starts if real is None else view.starts + np.clip(real, 0, view.ends - view.starts)
    )
    padded = begins < view.ends if real is not None else np.zeros(len(begins), np.bool_)
    segments = np.flatnonzero(padded | view.filler)
    if labels is None:
        what = f"it holds padding but there are no labels; expected {NO_LOSS} there"
        findings.many("padding", segments, lambda segment: view.segment(segment, "padding", what))
        return
    wrong = (labels.view(np.uint32) >= vocab_size) & (labels != NO_LOSS)
    if wrong.any():
        findings.many(
            "label",
            np.flatnonzero(wrong),
            lambda at: view.token(
                at,
                "label",
                f"the label is {labels[at]}; expected {NO_LOSS} or 0 to {vocab_size - 1}",
            ),
        )
    if len(segments):
        # [start, end) of each padding, ascending and flat: reduceat gives the maximum of each, and
        # of the gaps between.
        bounds = np.stack([begins[segments], view.ends[segments]], axis=1).ravel()
        if bounds[-1] == len(labels):
            bounds = bounds[:-1]
        highest = np.maximum.reduceat(labels, bounds)[::2]
        bad = np.flatnonzero(highest != NO_LOSS)
        findings.many(
            "padding",
            bad,
            lambda at: view.segment(
                int(segments[at]),
                "padding",
                f"padding has the label {highest[at]}; expected {NO_LOSS}",
            ),
        )


def _check_finite(column: Column, view: BatchView, findings: Findings) -> None:
    values = view.columns[column.name]
    finite = np.isfinite(values)
    if finite.all():
        return

    def finding(entry: int) -> Finding:
        what = f"{column.name} has {values[entry]}; expected a finite number"
        if column.kind == "boundary":
            entries = view.pack_segments + np.arange(len(view.pack_segments))
            return view.pack(
                int(np.searchsorted(entries, entry, side="right")) - 1, "not finite", what
            )
        place = view.token if column.kind == "token" else view.segment
        return place(entry, "not finite", what)

    findings.many("not finite", np.flatnonzero(~finite), finding)


def flat(view: ListView) -> NDArray[Any]:
    """The values of all rows, one behind the other, from 0."""
    return view.values[view.offsets[0] : view.offsets[-1]]


def _short(values: NDArray[Any]) -> str:
    """[0, 3, 8], or the ends of a long one: [0, 3, 8, ..., 4090, 4096]."""
    if len(values) <= 8:
        return str(values.tolist())
    head, tail = ", ".join(map(str, values[:3])), ", ".join(map(str, values[-2:]))
    return f"[{head}, ..., {tail}]"
