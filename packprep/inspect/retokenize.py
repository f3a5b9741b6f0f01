"""Compare a sample of documents with their sources, id by id.

Each is read from its source and tokenized by the reference engine. The sample is drawn from input
rows, so it finds wrong tokens and missing documents. The options and the length of a row say
whether it must be dropped, cut or split.
"""

import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.inspect.coverage import Coverage
from packprep.inspect.policy import Policy
from packprep.inspect.reencode import (
    SHAPING,
    encoded_rows,
    find_source,
    find_tokenizer,
    recorded_config,
)
from packprep.inspect.verdict import Verdict
from packprep.packing.account import Dropped
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import WHOLE_ROW
from packprep.schemas.findings import Finding, Findings
from packprep.support.arrays import Int32
from packprep.support.errors import PackprepError
from packprep.support.hashing import Purpose, stream
from packprep.support.progress import Progress


@dataclass(frozen=True)
class _Piece:
    """A segment of a sampled document. ids: without a continuation BOS."""

    start: int
    ids: Int32
    place: Finding


class Sample:
    """Rows to compare, and their segments, collected while several threads read the shards."""

    def __init__(
        self, coverage: Coverage, size: int, seed: int, leave_out: Sequence[int] = ()
    ) -> None:
        """Draw `size` rows. leave_out: documents that must not be tokenized in this process."""
        self.coverage = coverage
        total = coverage.sources.total
        chosen = np.arange(total)
        if size < total:
            random = np.random.default_rng(int(stream(seed, Purpose.VERIFY_SAMPLE)))
            chosen = np.sort(random.choice(total, size, replace=False, shuffle=False))
        self.rows: NDArray[np.int64] = chosen[~np.isin(chosen, leave_out)]
        self.pieces: dict[tuple[int, int, int], list[_Piece]] = {}  # by row, turn and epoch
        self._lock = threading.Lock()

    def add(self, view: BatchView, epoch: int) -> None:
        if not self.coverage.knows_documents or not len(self.rows):
            return
        ids = view.columns["document_ids"]
        turns = view.columns.get("turn_ids")
        at = np.minimum(np.searchsorted(self.rows, ids), len(self.rows) - 1)
        real, starts, policy = view.real, view.columns["document_starts"], self.coverage.policy
        for segment in np.flatnonzero(self.rows[at] == ids).tolist():
            begin = int(view.starts[segment])
            extra = int(starts[segment] > 0 and policy.continuation_bos and policy.bos is not None)
            tokens = view.columns["tokens"][begin + extra : begin + int(real[segment])].copy()
            piece = _Piece(int(starts[segment]), tokens, view.segment(segment, "ids", ""))
            turn = WHOLE_ROW if turns is None else int(turns[segment])
            with self._lock:
                self.pieces.setdefault((int(ids[segment]), turn, epoch), []).append(piece)


def compare(
    sample: Sample, verdict: Verdict, *, root: str | Path | None, tokenizer: Any, progress: Progress
) -> None:
    """Tokenize the sampled rows again; add differences and changed sources to `verdict`."""
    coverage = sample.coverage
    if not coverage.knows_documents:
        verdict.not_checked.append(
            "documents against their sources: the shards have no document_ids"
        )
        return
    shaping = SHAPING & BuildConfig().identity().keys()
    if missing := shaping - set(coverage.manifest.data["inputs"]["options"]):
        what = f"the manifest has no {', '.join(sorted(missing))}: the merged outputs differ in it"
        verdict.not_checked.append(f"documents against their sources: {what}")
        return
    try:
        config = recorded_config(coverage.manifest)
        loaded = find_tokenizer(coverage, config, tokenizer, root)
    except PackprepError as error:
        verdict.findings.add(Finding(kind="tokenizer", what=str(error)))
        return
    source_of = coverage.sources.indices(sample.rows)
    compared = 0
    with tempfile.TemporaryDirectory(prefix="packprep-") as scratch:
        for number, name in enumerate(coverage.sources.names):
            rows = sample.rows[source_of == number]
            if not len(rows):
                continue
            try:
                source = find_source(coverage.manifest, number, name, config, root, Path(scratch))
                wanted = rows - int(coverage.sources.firsts[number])
                first = int(coverage.sources.firsts[number])
                last = -1
                for row, turn, ids in encoded_rows(source, wanted, loaded, config, Path(scratch)):
                    for epoch in range(coverage.manifest.epochs):
                        pieces = sample.pieces.pop((first + row, turn, epoch), [])
                        name = coverage.name(int(coverage.keys(np.array(first + row), turn, epoch)))
                        _compare(name, ids, pieces, coverage, config, verdict.findings)
                    compared += row != last
                    last = row
                    progress.advance("compare", compared, len(sample.rows), "rows")
                _report_surplus(sample, first + wanted, coverage, verdict.findings)
            except PackprepError as error:
                verdict.findings.add(Finding(kind="source", what=str(error)))
    verdict.sampled = compared


def _report_surplus(
    sample: Sample, rows: NDArray[np.int64], coverage: Coverage, findings: Findings
) -> None:
    """Add a finding for each document of these rows that the source does not give."""
    for key in [key for key in sample.pieces if key[0] in rows]:
        row, turn, _ = key
        what = f"{coverage.sources.row(row)} has no document " + (
            "of the whole row" if turn == WHOLE_ROW else f"of {coverage.manifest.part_name} {turn}"
        )
        findings.add(replace(sample.pieces[key][0].place, kind="turn", what=what))


def _compare(
    row: str,
    ids: Int32,
    pieces: Sequence[_Piece],
    coverage: Coverage,
    config: BuildConfig,
    findings: Findings,
) -> None:
    """Compare one document with its segments: ids, and each expected token once.

    row: its name.
    """
    policy = coverage.policy
    if not pieces and Dropped.NOT_DRAWN in policy.dropped:
        return
    if pieces and coverage.manifest.phases:
        longest = max(
            int(coverage.longest[coverage.shards.index(str(piece.place.file))]) for piece in pieces
        )
        config = replace(config, max_length=longest)
    if config.pair_columns:
        _compare_sides(row, ids, pieces, config, policy, findings)
        return
    begin, end = _kept(len(ids), config, policy)
    if begin == end:
        for piece in pieces[:1]:
            what = f"{row} is here, but the options exclude it"
            findings.add(replace(piece.place, kind="surplus document", what=what))
        return
    if config.truncation_side == "balanced" and len(ids) > config.max_length:
        for piece in pieces:
            if not _two_parts(piece.ids, ids):
                what = f"its ids are not the start of {row} followed by a later part of it"
                findings.add(replace(piece.place, kind="ids", what=what))
        return
    reached = begin
    for piece in sorted(pieces, key=lambda piece: piece.start):
        stop = piece.start + len(piece.ids)
        _compare_ids(row, ids, piece, findings)
        if piece.start > reached and not policy.any_part_may_lack:
            break
        reached = max(reached, stop)
    tail_may_lack = (
        end - reached < config.min_document_tokens and Dropped.SHORT_TAIL in policy.dropped
    )
    if reached < end and not tail_may_lack and not policy.any_part_may_lack:
        what = (
            f"{row}: tokens {reached:,} to {end - 1:,} are in no pack"
            if pieces
            else f"{row} is in no pack"
        )
        findings.add(Finding(kind="lost tokens", what=what))


def _compare_ids(row: str, ids: Int32, piece: _Piece, findings: Findings) -> None:
    expected = ids[piece.start : piece.start + len(piece.ids)]
    if len(expected) < len(piece.ids):
        what = f"it reaches token {piece.start + len(piece.ids):,} of {row}, which has {len(ids):,}"
        findings.add(replace(piece.place, kind="ids", what=what))
    elif (differ := np.flatnonzero(expected != piece.ids)).size:
        at = int(differ[0])
        what = (
            f"{len(differ):,} ids differ from those of {row}, first at token {piece.start + at}: "
            f"{piece.ids[at]} here, {expected[at]} from the source"
        )
        findings.add(replace(piece.place, kind="ids", what=what))


def _compare_sides(
    row: str,
    ids: Int32,
    pieces: Sequence[_Piece],
    config: BuildConfig,
    policy: Policy,
    findings: Findings,
) -> None:
    """Compare a pair with its segments: two of them or none, with the ids of the pair."""
    for piece in pieces:
        _compare_ids(row, ids, piece, findings)
    sides = Counter(piece.start for piece in pieces)
    copies = max(sides.values(), default=0)
    complete = (
        len(pieces) == 2 * copies and len(sides) in (0, 2) and (copies <= 1 or policy.repeated > 0)
    )
    if not complete and not policy.any_part_may_lack:
        what = f"{row} has {len(pieces)} segments; expected both sides of the pair, or neither"
        findings.add(replace(pieces[0].place, kind="pair", what=what))
    if not pieces and len(ids) and not policy.dropped:
        findings.add(Finding(kind="lost tokens", what=f"{row} is in no pack"))


def _two_parts(piece: Int32, ids: Int32) -> bool:
    """True if a piece is ids[:a] + ids[b:c] with a <= b: a document cut in the middle.

    Only the labels of the document say where the cut is.
    """
    piece, ids = (
        piece.astype(np.int32),
        ids.astype(np.int32),
    )  # token files of a small vocabulary hold uint16
    same = piece == ids[: len(piece)]
    front = len(piece) if same.all() else int(np.argmin(same))
    # A shorter start needs a longer later part, so trying the longest start is enough.
    wanted, text, at = piece[front:].tobytes(), ids.tobytes(), 0
    while (at := text.find(wanted, at)) >= 0:
        if at % ids.itemsize == 0:
            return True
        at += 1
    return False


def _kept(length: int, config: BuildConfig, policy: Policy) -> tuple[int, int]:
    """Range [begin, end) of the tokens in packs, for a document of this length."""
    ends = (policy.bos is not None) + (policy.eos is not None)
    too_short = length < config.min_document_tokens + ends
    too_long = config.max_document_tokens is not None and length > config.max_document_tokens + ends
    over = length > config.max_length
    if not length or too_short or too_long or (over and config.overflow == "drop"):
        return 0, 0
    if over and config.overflow == "truncate":
        return (
            (length - config.max_length, length)
            if config.truncation_side == "left"
            else (0, config.max_length)
        )
    return 0, length
