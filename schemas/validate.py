"""Checks of every invariant of a shard, a record batch at a time.

All are numpy passes, with no loop over packs. The writer runs `check_batch` on each batch before it
writes it, `verify` runs `sound_parts` on each batch that it reads, and the reader runs
`check_boundaries` on each pack. Messages name file, pack and segment, for example
"data-00003-of-00010.arrow pack 17 segment 2 token 5: position_ids has 6; expected 5".
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .batch_view import BatchView, batch_view
from .boundaries import bad_packs
from .columns import FILLER, NO_LOSS, WHOLE_ROW, Column, as_unsigned, check_schema
from .errors import FormatError
from .findings import Finding, Findings, StopAtFirst
from .names import column_view, spelling, stored_columns
from .trees import check_trees, unpaired


def check_batch(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    *,
    max_length: int,
    vocab_size: int,
    where: str,
    first_pack: int = 0,
) -> None:
    """Raise FormatError at the first violation of the format in `batch`.

    README.md lists all invariants ("Invariants"). batch: in either spelling. columns: of the
    manifest, with packprep's names. max_length: most tokens of a pack. vocab_size: ids are in
    0..vocab_size - 1. where: the file's name, for messages. first_pack: number, in that file, of
    the batch's first pack. Costs about a nanosecond per token for all columns together, and a few
    bytes of memory per token of the batch.
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
) -> Iterator[BatchView]:
    """Report every violation of the format in `batch` to `findings`.

    Yields the runs of packs whose boundaries are valid. A pack with wrong boundaries or list
    lengths is reported once and left out, because nothing else in it can be checked. Arguments as
    for `check_batch`.
    """
    names = spelling(batch.schema)
    check_schema(batch.schema, stored_columns(columns, names), where)
    try:
        views = {column.name: column_view(batch, column.name, where) for column in columns}
    except FormatError as error:
        findings.damaged(error, where, first_pack)
        return
    bad = bad_packs(views, columns, max_length, where, first_pack, findings)
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
    view = batch_view(views, where, first_pack)
    check_ids(view, vocab_size, findings)
    if (starts := check_trees(view, findings)) is not None:
        _check_positions(view, starts, findings)
    _check_documents(view, findings)
    _check_pairs(view, findings)
    _check_padding(view, findings)
    if names == "hf":
        _check_first_labels(view, findings)
    for column in columns:
        if column.numpy_dtype.kind == "f":
            _check_finite(column, view, findings)
    yield view


def check_ids(view: BatchView, vocab_size: int, findings: Findings) -> None:
    """Check that tokens are ids, and that labels are ids or -100."""
    # As unsigned, a negative id is larger than any vocabulary: one pass checks both ends.
    tokens = view.columns["tokens"]
    if len(tokens) and int(as_unsigned(tokens).max()) >= vocab_size:
        findings.many(
            "token id",
            np.flatnonzero(as_unsigned(tokens) >= vocab_size),
            lambda token: view.token(
                token, "token id", f"the id is {tokens[token]}; expected 0 to {vocab_size - 1}"
            ),
        )
    labels = view.columns.get("labels")
    if labels is None or np.count_nonzero(as_unsigned(labels) >= vocab_size) == view.unlabelled:
        return
    findings.many(
        "label",
        np.flatnonzero((as_unsigned(labels) >= vocab_size) & (labels != NO_LOSS)),
        lambda token: view.token(
            token,
            "label",
            f"the label is {labels[token]}; expected {NO_LOSS} or 0 to {vocab_size - 1}",
        ),
    )


def _check_positions(view: BatchView, before: NDArray[np.int64], findings: Findings) -> None:
    """Check that the positions of each segment go on from the tokens before it on its path."""
    positions = view.columns.get("position_ids")
    if positions is None:
        return
    # n whole numbers that rise from a to a + n - 1 are a, a + 1, ..., a + n - 1.
    rises = np.empty(len(positions), np.bool_)
    np.greater(positions[1:], positions[:-1], out=rises[1:])
    last = positions[view.ends - 1]
    rises[view.starts] = (positions[view.starts] == before) & (
        last == before + view.ends - view.starts - 1
    )
    if not rises.all():

        def finding(token: int) -> Finding:
            segment = view.segment_of(token)
            position = before[segment] + token - view.starts[segment]
            return view.token(
                token, "position", f"position_ids has {positions[token]}; expected {position}"
            )

        begins = view.starts - before
        expected = np.arange(len(positions)) - np.repeat(begins, view.ends - view.starts)
        findings.many("position", np.flatnonzero(positions != expected), finding)


def _check_documents(view: BatchView, findings: Findings) -> None:
    """Check document ids, starts and real lengths, and that filler is at the end of its pack."""
    ids, starts, real = (
        view.columns.get(name) for name in ("document_ids", "document_starts", "segment_lengths")
    )

    def report(segments: NDArray[np.bool_], values: NDArray[Any], message: str) -> None:
        findings.many(
            "document",
            np.flatnonzero(segments),
            lambda segment: view.segment(segment, "document", message.format(values[segment])),
        )

    lengths = view.ends - view.starts
    if ids is not None:
        report(ids < FILLER, ids, "the document id is {}; expected an input row, or -1 for filler")
        before = np.zeros(len(ids), np.bool_)
        before[1:] = ids[:-1] == FILLER
        before[view.pack_segments[:-1]] = False
        report(
            before & (ids != FILLER),
            ids,
            "document {} follows filler; expected filler at the end of its pack",
        )
    if (turns := view.columns.get("turn_ids")) is not None:
        wrong = (turns < WHOLE_ROW) | (view.filler & (turns != FILLER))
        report(wrong, turns, "turn_ids has {}; expected a message, or -1 for a row and for filler")
    if starts is not None:
        report(starts < 0, starts, "document_starts has {}; expected 0 or more")
        wrong = view.filler & (starts > 0)
        report(wrong, starts, "document_starts has {}; expected 0, as the segment is filler")
    if real is not None:
        report(
            (real < 0) | (real > lengths),
            real,
            "segment_lengths has {}; expected 0 to the segment's length",
        )
        if ids is not None:
            report(
                (ids == FILLER) & (real != 0),
                real,
                "segment_lengths has {}; expected 0, as the segment is filler",
            )
            report(
                (ids != FILLER) & (real == 0),
                real,
                "segment_lengths has {}; expected 1 or more in a document's segment",
            )


def _check_pairs(view: BatchView, findings: Findings) -> None:
    """Check that both sides of each pair are in one pack. Those of trees are rows."""
    pairs, sides = view.columns.get("pair_ids"), view.columns.get("pair_sides")
    if pairs is None or sides is None:
        return

    def report(segments: NDArray[np.bool_], expected: str) -> None:
        findings.many(
            "pair",
            np.flatnonzero(segments),
            lambda at: view.segment(
                at, "pair", f"it has pair {pairs[at]} side {sides[at]}; expected {expected}"
            ),
        )

    real = ~view.filler
    report((pairs < FILLER) | (real & (pairs == FILLER)), "the input row of a pair")
    report(~real & ((pairs != FILLER) | (sides != FILLER)), "-1 and -1, as the segment is filler")
    report(real & ((sides < 0) | (sides > 1)), "side 0 or 1")
    if (ids := view.columns.get("document_ids")) is not None:
        report(pairs != ids, "the pair of its document")
    if view.pack_rows is None:
        packs = np.repeat(np.arange(len(view.pack_tokens) - 1), np.diff(view.pack_segments))
        alone = np.zeros(len(pairs), np.bool_)
        alone[real] = unpaired(packs[real], pairs[real], sides[real])
        report(alone, "a segment of the other side in this pack")


def _check_padding(view: BatchView, findings: Findings) -> None:
    """Check that all padding has the label -100."""
    labels, real = (view.columns.get(name) for name in ("labels", "segment_lengths"))
    # Padding is the part of a segment behind its real length, or all of a filler segment.
    begins = (
        view.starts if real is None else view.starts + np.clip(real, 0, view.ends - view.starts)
    )
    padded = begins < view.ends if real is not None else np.zeros(len(begins), np.bool_)
    segments = np.flatnonzero(padded | view.filler)
    if labels is None:
        what = f"it has padding but there are no labels; expected labels of {NO_LOSS} there"
        findings.many("padding", segments, lambda segment: view.segment(segment, "padding", what))
        return
    if len(segments):
        # [start, end) of each padding, ascending and flat: reduceat gives the maximum of each, and
        # of the gaps between them.
        bounds = np.stack([begins[segments], view.ends[segments]], axis=1).ravel()
        if bounds[-1] == len(labels):
            bounds = bounds[:-1]
        highest = np.maximum.reduceat(labels, bounds)[::2]
        bad = np.flatnonzero(highest != NO_LOSS)
        findings.many(
            "padding",
            bad,
            lambda number: view.segment(
                int(segments[number]),
                "padding",
                f"padding has the label {highest[number]}; expected {NO_LOSS}",
            ),
        )


def _check_first_labels(view: BatchView, findings: Findings) -> None:
    """Check that no segment trains its first token: TRL and transformers shift whole packs."""
    labels = view.columns["labels"]
    trained = view.starts[labels[view.starts] != NO_LOSS]
    findings.many(
        "label at start",
        trained,
        lambda token: view.token(
            token,
            "label at start",
            f"the first token of a segment has the label {labels[token]}; expected {NO_LOSS}",
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
