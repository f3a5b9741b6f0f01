"""Packs as rows of lists: Megatron-Bridge's packed Parquet, and rows as TRL and Trainer read them.

    input_ids, loss_mask, seq_start_id     Megatron-Bridge: the first token of each segment
    input_ids, seq_lengths                 TRL: the length of each segment
    input_ids, position_ids                Trainer, Axolotl: positions begin at 0 in each segment
    tokens, cu_seqlens                     packprep's own columns in Parquet: see schemas/README.md

`attention_mask` of LLaMA-Factory numbers the segments from 1, and is 0 for padding. `labels`,
`loss_mask` and the masks of TRL have a value for each token. Labels are the ids, or -100. With
position_ids nothing removes the label of a segment's first token, so it must be -100: the token
before it belongs to another document.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.inspect.foreign.result import ForeignResult
from packprep.inspect.foreign.row_lists import RowLists, row_batches, row_lists
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.findings import Finding, Findings
from packprep.support.arrays import Bools, Int64

_BOUNDARIES = ("seq_start_id", "seq_lengths", "position_ids")
_OWN = {"tokens", "cu_seqlens"}
_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
_TOKENS = ("labels", "position_ids", "attention_mask", *_MASKS)
_LARGEST = 2**31


def is_packed(names: Sequence[str]) -> bool:
    """True if rows with these columns are packs whose segments are known."""
    return {*names} >= _OWN or ("input_ids" in names and not {*_BOUNDARIES}.isdisjoint(names))


def check_rows(path: Path, name: str, result: ForeignResult) -> None:
    """Check every row of a file. name: of the file, for messages."""
    result.count_file(path)
    first = 0
    for batch in row_batches(path, name, result.findings):
        if not is_packed(batch.schema.names):
            what = (
                f"it has the columns {', '.join(batch.schema.names) or 'of no row'}; expected "
                f"input_ids and one of {', '.join(_BOUNDARIES)}"
            )
            result.findings.add(Finding(kind="column", file=name, what=what))
            return
        _check_batch(batch, name, first, result)
        first += len(batch)
    if not first and not len(result.findings):
        what = "it has no rows; expected at least one pack"
        result.findings.add(Finding(kind="rows", file=name, what=what))


def _check_batch(batch: pa.RecordBatch, name: str, first: int, result: ForeignResult) -> None:
    findings, names = result.findings, batch.schema.names
    ids = "tokens" if {*names} >= _OWN else "input_ids"
    boundaries = _BOUNDARIES if ids == "input_ids" else ("cu_seqlens", "position_ids")
    lists: dict[str, RowLists] = {}
    sound = np.ones(len(batch), np.bool_)
    for column in (ids, *boundaries, *_TOKENS):
        if column in names and column not in lists:
            lists[column], usable = row_lists(batch, column, name, first, findings)
            sound &= usable

    def report(rows: Bools, make: Callable[[int], str]) -> None:
        """Report rows, and leave them out of what follows."""
        findings.many(
            "boundaries",
            np.flatnonzero(rows & sound),
            lambda row: Finding(kind="boundaries", file=name, pack=first + row, what=make(row)),
        )
        sound[rows] = False

    lengths = lists[ids].lengths
    report(lengths == 0, lambda row: f"{ids} is empty; expected at least one token")
    for column in _TOKENS:
        if column in lists:
            have = lists[column].lengths
            report(
                have != lengths,
                lambda row, have=have, column=column: (  # type: ignore[misc]
                    f"{column} has {have[row]:,} values; expected {lengths[row]:,}, one for each "
                    f"of {ids}"
                ),
            )
    if "seq_lengths" in lists:
        _check_lengths(lists["seq_lengths"], lengths, report)
    if "seq_start_id" in lists:
        _check_starts(lists["seq_start_id"], lengths, "seq_start_id", report)
    if "cu_seqlens" in lists:
        _check_starts(lists["cu_seqlens"], lengths, "cu_seqlens", report)
    rows = np.flatnonzero(sound)
    if not len(rows):
        return
    kept = {column: values.take(sound) for column, values in lists.items()}
    view = _Segments(kept, ids, name, first + rows, findings)
    view.check(result.vocab_size)
    result.packs += len(rows)
    result.segments += int(view.is_real[view.starts].sum())
    result.tokens += int(view.is_real.sum())


def _check_lengths(segments: RowLists, lengths: Int64, report: Any) -> None:
    sums = np.append(0, np.cumsum(segments.values))
    totals = sums[segments.offsets[1:]] - sums[segments.offsets[:-1]]
    short = np.zeros(len(lengths), np.bool_)
    places = np.flatnonzero(segments.values < 1)
    rows = np.searchsorted(segments.offsets, places, side="right") - 1
    short[rows] = True

    def too_short(row: int) -> str:
        place = int(places[np.searchsorted(rows, row)])
        number = place - int(segments.offsets[row])
        return f"seq_lengths has {segments.values[place]} for segment {number}; expected 1 or more"

    report(short, too_short)
    report(
        totals != lengths,
        lambda row: (
            f"seq_lengths add up to {totals[row]:,} tokens; expected the {lengths[row]:,} of "
            "input_ids"
        ),
    )


def _check_starts(starts: RowLists, lengths: Int64, column: str, report: Any) -> None:
    """Check the first tokens of segments. cu_seqlens have the number of tokens too, at the end."""
    counts = starts.lengths
    has_end = column == "cu_seqlens"
    last = "the end of the last" if has_end else "no end"
    report(
        counts < 1 + has_end,
        lambda row: (
            f"{column} has {counts[row]} values; expected 0 and the start of each other segment, "
            f"with {last}"
        ),
    )
    filled = counts > 0
    firsts = np.zeros(len(counts), np.int64)
    firsts[filled] = starts.values[starts.offsets[:-1][filled]]
    report(firsts != 0, lambda row: f"{column} begins with {firsts[row]:,}; expected 0")
    falls = np.zeros(len(starts.values), np.bool_)
    falls[1:] = starts.values[1:] <= starts.values[:-1]
    falls[starts.offsets[:-1][filled]] = False
    places = np.flatnonzero(falls)
    rows = np.searchsorted(starts.offsets, places, side="right") - 1
    bad = np.zeros(len(counts), np.bool_)
    bad[rows] = True

    def not_rising(row: int) -> str:
        place = int(places[np.searchsorted(rows, row)])
        return (
            f"{column} has {starts.values[place]:,} after {starts.values[place - 1]:,}, at "
            f"{place - int(starts.offsets[row])}; expected more"
        )

    report(bad, not_rising)
    lasts = np.zeros(len(counts), np.int64)
    lasts[filled] = starts.values[starts.offsets[1:][filled] - 1]
    report(
        filled & (lasts != lengths if has_end else lasts >= lengths),
        lambda row: (
            f"{column} ends with {lasts[row]:,}; expected {'' if has_end else 'less than '}"
            f"{lengths[row]:,}, the number of tokens"
        ),
    )


@dataclass
class _Segments:
    """Rows whose lists have the right lengths.

    ids: name of the column with the tokens. rows: their numbers in the file.
    """

    lists: Mapping[str, RowLists]
    ids: str
    name: str
    rows: NDArray[Any]
    findings: Findings

    def __post_init__(self) -> None:
        self.begins = self.lists[self.ids].offsets  # of rows, in the tokens of all
        self.tokens = self.lists[self.ids].values
        self.positions = self.lists["position_ids"].values if "position_ids" in self.lists else None
        self.starts = self._starts()

    @property
    def is_real(self) -> Bools:
        """False for padding, where an attention mask marks it, bool [tokens]."""
        mask = self.lists.get("attention_mask")
        return np.ones(len(self.tokens), np.bool_) if mask is None else mask.values > 0

    def _starts(self) -> Int64:
        """First token of each segment, in the tokens of all rows."""
        if (starts := self.lists.get("seq_start_id")) is not None:
            return starts.values + np.repeat(self.begins[:-1], starts.lengths)
        if (bounds := self.lists.get("cu_seqlens")) is not None:
            is_start = np.ones(len(bounds.values), np.bool_)
            is_start[bounds.offsets[1:] - 1] = False
            starts_of_all = bounds.values + np.repeat(self.begins[:-1], bounds.lengths)
            return starts_of_all[is_start]
        if (lengths := self.lists.get("seq_lengths")) is not None:
            ends: Int64 = np.cumsum(lengths.values)  # rows follow each other without a gap
            return ends - lengths.values
        assert self.positions is not None
        begin = self.positions == 0
        begin[self.begins[:-1]] = True
        return np.flatnonzero(begin)

    def check(self, vocab_size: int | None) -> None:
        limit = vocab_size or _LARGEST
        tokens = self.tokens
        self._report(
            "token id",
            (tokens < 0) | (tokens >= limit),
            lambda token: f"the id is {tokens[token]}; expected 0 to {limit - 1}",
        )
        if (positions := self.positions) is not None:
            expected = np.arange(len(tokens)) - np.repeat(
                self.starts, np.diff(np.append(self.starts, len(tokens)))
            )
            self._report(
                "position",
                positions != expected,
                lambda token: f"position_ids has {positions[token]}; expected {expected[token]}",
            )
        for column in _MASKS:
            if column in self.lists:
                mask = self.lists[column].values
                self._report(
                    "mask",
                    (mask != 0) & (mask != 1),
                    lambda token, mask=mask, column=column: (  # type: ignore[misc]
                        f"{column} is {mask[token]}; expected 0 or 1"
                    ),
                )
        if "attention_mask" in self.lists:
            self._check_numbers(self.lists["attention_mask"].values)
        if "labels" in self.lists:
            self._check_labels(self.lists["labels"].values, limit)

    def _check_numbers(self, mask: Int64) -> None:
        """Check the numbers of segments in an attention mask; one of 0 and 1 has none."""
        if not (mask > 1).any():
            return
        before = np.append(0, mask[:-1])
        first = np.zeros(len(mask), np.bool_)
        first[self.begins[:-1]] = True
        follows = (mask == 0) | ((before > 0) & ((mask == before) | (mask == before + 1)))

        def expected(token: int) -> str:
            number = before[token]
            if first[token]:
                return "1"
            return f"{number}, {number + 1} or 0" if number else "0 to the end"

        self._report(
            "mask",
            ~np.where(first, mask == 1, follows),
            lambda token: f"attention_mask is {mask[token]}; expected {expected(token)}",
        )

    def _check_labels(self, labels: Int64, limit: int) -> None:
        if self.ids == "tokens":  # labels of any ids, also of first tokens: the loader shifts them
            self._report(
                "label",
                (labels != NO_LOSS) & ((labels < 0) | (labels >= limit)),
                lambda token: (
                    f"the label is {labels[token]}; expected {NO_LOSS} or 0 to {limit - 1}"
                ),
            )
            return
        self._report(
            "label",
            (labels != NO_LOSS) & (labels != self.tokens),
            lambda token: (
                f"the label is {labels[token]}; expected {NO_LOSS} or the id, {self.tokens[token]}"
            ),
        )
        if self.positions is None:
            return  # TRL's collator removes the label of each segment's first token
        first = np.zeros(len(labels), np.bool_)
        first[self.starts] = True
        self._report(
            "first label",
            first & (labels != NO_LOSS),
            lambda token: (
                f"the first token of the segment has the label {labels[token]}; expected "
                f"{NO_LOSS}, because the token before it is of another document"
            ),
        )

    def _report(self, kind: str, wrong: Bools, make: Callable[[int], str]) -> None:
        def finding(token: int) -> Finding:
            row = int(np.searchsorted(self.begins, token, side="right")) - 1
            segment = int(np.searchsorted(self.starts, token, side="right")) - 1
            first = int(np.searchsorted(self.starts, self.begins[row]))
            return Finding(
                kind=kind,
                file=self.name,
                pack=int(self.rows[row]),
                segment=segment - first,
                token=token - int(self.starts[segment]),
                what=make(token),
            )

        self.findings.many(kind, np.flatnonzero(wrong), finding)
