"""Compare a sample of documents with their sources: ids, labels, sides and carried values.

Each is read from its source and tokenized by the reference engine. The sample is drawn from input
rows, so it finds wrong tokens and missing documents. The options and the length of a row say
whether it must be dropped, cut or split.
"""

import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.spellings import RENAMED
from packprep.config.pack_rules import PackRules
from packprep.inspect.coverage import Coverage
from packprep.inspect.moved import Moved
from packprep.inspect.policy import Policy
from packprep.inspect.reencode import (
    SHAPING,
    Document,
    encoded_rows,
    find_encoder,
    find_source,
    recorded_config,
    recorded_renderer,
)
from packprep.inspect.verdict import Verdict
from packprep.packing.account import Dropped
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import NO_LOSS, STANDARD_COLUMNS, WHOLE_ROW, Column
from packprep.schemas.findings import Finding, Findings
from packprep.schemas.index.runs import Pointers
from packprep.support.errors import PackprepError
from packprep.support.hashing import Purpose, stream
from packprep.support.progress import Progress
from packprep.windows.cut import cut_segments
from packprep.windows.labels import Labels
from packprep.windows.segments import Segments

# Both sides of a pair fit a pack with their padding, or it is cut.
_WITH_PAIRS = {True: frozenset({"pad_segment_to_multiple"}), False: frozenset[str]()}
_LENGTHS = ("max_length", "min_len", "max_len")  # keys of a phase in a manifest


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A segment of a sampled document.

    start: its first own token in the document. bos: 1 if an extra BOS goes before. real: tokens
    without padding. columns: values of its tokens, padding included. values: of the segment.
    """

    start: int
    bos: int
    real: int
    columns: Mapping[str, NDArray[Any]]
    values: Mapping[str, np.generic]
    place: Finding

    @property
    def end(self) -> int:
        """End of its tokens in the document, if it has no hole."""
        return self.start + self.real - self.bos


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """The cut of a piece.

    repeated: first own tokens that an earlier piece trains. front, hole: tokens before a gap, and
    those that are missing there.
    """

    repeated: int = 0
    front: int = 0
    hole: int = 0


_WHOLE = _Cut()


class Sample:
    """Rows to compare, and their segments, collected while several threads read the shards."""

    def __init__(self, coverage: Coverage, size: int, seed: int) -> None:
        """Draw `size` rows."""
        self.coverage = coverage
        total = coverage.sources.total
        chosen = np.arange(total)
        if size < total:
            random = np.random.default_rng(int(stream(seed, Purpose.VERIFY_SAMPLE)))
            chosen = np.sort(random.choice(total, size, replace=False, shuffle=False))
        self.rows: NDArray[np.int64] = chosen
        self.pieces: dict[tuple[int, int, int], list[_Piece]] = {}  # by row, turn and epoch
        self._lock = threading.Lock()

    def add(self, view: BatchView, epoch: int) -> None:
        """Keep the segments of the sampled rows. Those of trees are rows: see `rows_view`."""
        if not self.coverage.knows_documents or not len(self.rows):
            return
        ids, starts, real = (
            view.columns["document_ids"],
            view.columns["document_starts"],
            view.real,
        )
        turns = view.columns.get("turn_ids")
        kinds = {column.name: column.kind for column in self.carried} | {"pair_sides": "segment"}
        kinds |= {"tokens": "token", "labels": "token"}
        of_tokens, of_segments = (
            [name for name, kind in kinds.items() if name in view.columns and kind in chosen]
            for chosen in (("token",), ("segment", "row"))
        )
        policy = self.coverage.policy
        at = np.minimum(np.searchsorted(self.rows, ids), len(self.rows) - 1)
        for segment in np.flatnonzero(self.rows[at] == ids).tolist():
            tokens = slice(int(view.starts[segment]), int(view.ends[segment]))
            later = starts[segment] > 0
            piece = _Piece(
                start=int(starts[segment]),
                bos=int(later and policy.continuation_bos and policy.bos is not None),
                real=int(real[segment]),
                columns={name: view.columns[name][tokens].copy() for name in of_tokens},
                values={name: view.columns[name][segment] for name in of_segments},
                place=view.segment(segment, "ids", ""),
            )
            turn = WHOLE_ROW if turns is None else int(turns[segment])
            with self._lock:
                self.pieces.setdefault((int(ids[segment]), turn, epoch), []).append(piece)

    @property
    def carried(self) -> list[Column]:
        """Carried columns of the output: those whose meaning the format does not fix."""
        columns = self.coverage.manifest.columns
        return [column for column in columns if column.name not in STANDARD_COLUMNS]


def compare(sample: Sample, verdict: Verdict, moved: Moved, progress: Progress) -> None:
    """Tokenize the sampled rows again; add differences and changed sources to `verdict`."""
    coverage = sample.coverage
    if not coverage.knows_documents:
        verdict.not_checked.append(
            "documents against their sources: the shards have no document_ids"
        )
        return
    shaping = (SHAPING | _WITH_PAIRS[coverage.policy.pairs]) & BuildConfig().identity().keys()
    if missing := shaping - set(coverage.manifest.data["inputs"]["options"]):
        what = f"the manifest has no {', '.join(sorted(missing))}: the merged outputs differ in it"
        verdict.not_checked.append(f"documents against their sources: {what}")
        return
    if moved.renderer is None and (renderer := recorded_renderer(coverage.manifest)):
        verdict.not_checked.append(
            f"documents against their sources: {renderer} rendered them, which is code; give it "
            "with --renderer to run it"
        )
        return
    try:
        config = recorded_config(coverage.manifest)
        encoder = find_encoder(coverage, config.parsing, config.tokenizing, moved)
        rules: dict[int | None, PackRules] = {None: config.pack_rules()}
        for number, phase in enumerate(coverage.manifest.data.get("phases", ())):
            lengths = {RENAMED.get(key, key): phase[key] for key in _LENGTHS if key in phase}
            rules[number] = replace(config, **lengths).pack_rules()
    except PackprepError as error:
        verdict.findings.add(Finding(kind="tokenizer", what=error.args[0]))
        return
    source_of = coverage.sources.indices(sample.rows)
    compared, listed = 0, {*coverage.skipped.tolist()}
    with tempfile.TemporaryDirectory(prefix="packprep-") as scratch:
        for number, name in enumerate(coverage.sources.names):
            rows = sample.rows[source_of == number]
            if not len(rows):
                continue
            try:
                source = find_source(coverage.manifest, number, name, moved.root, Path(scratch))
                wanted = rows - int(coverage.sources.firsts[number])
                first = int(coverage.sources.firsts[number])
                last = -1
                for document in encoded_rows(source, wanted, encoder, Path(scratch)):
                    row, turn = first + document.row, document.turn
                    for epoch in range(coverage.manifest.epochs):
                        pieces = sample.pieces.pop((row, turn, epoch), [])
                        name = coverage.name(int(coverage.keys(np.array(row), turn, epoch)))
                        _compare(
                            name,
                            document,
                            pieces,
                            coverage,
                            rules,
                            verdict.findings,
                            is_listed=row in listed,
                        )
                    compared += row != last
                    last = row
                    progress.advance("compare", compared, len(sample.rows), "rows")
                _report_surplus(sample, first + wanted, coverage, verdict.findings)
            except PackprepError as error:
                verdict.findings.add(Finding(kind="source", what=error.args[0]))
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
    document: Document,
    pieces: Sequence[_Piece],
    coverage: Coverage,
    rules: Mapping[int | None, PackRules],
    findings: Findings,
    *,
    is_listed: bool,
) -> None:
    """Compare one document with its segments: where it is cut, and all their values.

    row: its name. rules: of each phase, and of a build without phases. is_listed: True for a row of
    skip_rows.
    """
    policy = coverage.policy
    if not pieces and Dropped.NOT_DRAWN in policy.dropped:
        return
    phase_of = {entry.path: entry.phase for entry in coverage.manifest.files}
    by_phase: dict[int | None, list[_Piece]] = {}
    for piece in pieces:
        by_phase.setdefault(phase_of[str(piece.place.file)], []).append(piece)
    for phase, of_phase in by_phase.items() or [(None, [])]:
        segments = _cut(document, rules[phase], policy, is_listed)
        if not len(segments):
            for piece in of_phase[:1]:
                what = f"{row} is here, but the options exclude it"
                findings.add(replace(piece.place, kind="surplus document", what=what))
        elif policy.wrapped:
            _compare_wrapped(row, document, of_phase, segments, policy, findings)
        else:
            _compare_pieces(row, document, of_phase, segments, policy, findings)


def _cut(document: Document, rules: PackRules, policy: Policy, is_listed: bool) -> Segments:
    """The segments of a document as a build cuts it, before packs are planned."""
    first, labels = np.zeros(1, np.int64), None
    if not document.trains_all:
        labels = Labels(values=Pointers.into(document.labels, first))
    length, split = len(document.ids), document.split
    parts = [length] if split is None else [split, length - split]
    return cut_segments(
        np.array(parts, np.int32)[:, None],
        (policy.bos is not None) + (policy.eos is not None),
        rules.cutting,
        has_bos=policy.bos is not None,
        multiple=rules.packing.pad_segment_to_multiple,
        labels=labels,
        tokens=Pointers.into(document.ids, first),
        skipped=np.array([is_listed]),
    )[0]


def _compare_pieces(
    row: str,
    document: Document,
    pieces: Sequence[_Piece],
    segments: Segments,
    policy: Policy,
    findings: Findings,
) -> None:
    """Compare the pieces of a document with the segments that it is cut into."""
    cuts: dict[tuple[int, int], _Cut] = {}
    zeros = np.zeros(len(segments), np.int32)
    columns = [
        zeros if values is None else values
        for values in (segments.repeated, segments.front, segments.hole)
    ]
    for start, count, repeated, front, hole in zip(
        segments.start.tolist(),
        segments.count.tolist(),
        *(column.tolist() for column in columns),
        strict=True,
    ):
        repeated = 0 if policy.trains_overlap else repeated
        cuts[start, start + count] = _Cut(repeated=repeated, front=front if hole else 0, hole=hole)
    copies = Counter((piece.start, piece.end) for piece in pieces)
    for piece in pieces:
        if (cut := cuts.get((piece.start, piece.end))) is not None:
            _compare_piece(row, document, piece, cut, findings)
        else:
            what = f"it has tokens {piece.start:,} to {piece.end - 1:,} of {row}, "
            what += f"which has {len(document.ids):,} and is cut at other places"
            findings.add(replace(piece.place, kind="cut", what=what))
    missing = max(copies.values(), default=1)
    for (start, end), count in ((place, copies[place]) for place in cuts):
        if count < missing and not policy.packs_may_lack:
            if not pieces:
                findings.add(Finding(kind="lost tokens", what=f"{row} is in no pack"))
                return
            what = f"{row}: tokens {start:,} to {end - 1:,} are "
            what += f"missing in {missing - count} of its copies" if count else "in no pack"
            findings.add(Finding(kind="lost tokens", what=what))


def _compare_wrapped(
    row: str,
    document: Document,
    pieces: Sequence[_Piece],
    segments: Segments,
    policy: Policy,
    findings: Findings,
) -> None:
    """Compare the pieces of a document that is cut where packs end: each token once."""
    for piece in pieces:
        _compare_piece(row, document, piece, _WHOLE, findings)
    begin = reached = int(segments.start[0])
    end = begin + int(segments.count[0])
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start > reached:
            break
        reached = max(reached, piece.end)
    if reached < end and not policy.any_part_may_lack:
        what = f"{row}: tokens {reached:,} to {end - 1:,} are in no pack"
        findings.add(Finding(kind="lost tokens", what=what if pieces else f"{row} is in no pack"))


def _compare_piece(
    row: str, document: Document, piece: _Piece, cut: _Cut, findings: Findings
) -> None:
    """Compare all values of a piece with those of its document. row: name of the document."""
    places = piece.start + np.arange(piece.real - piece.bos)
    places[cut.front :] += cut.hole
    if len(places) and places[-1] >= len(document.ids):
        what = f"it reaches token {places[-1] + 1:,} of {row}, which has {len(document.ids):,}"
        findings.add(replace(piece.place, kind="ids", what=what))
        return

    def differ(name: str, kind: str, expected: NDArray[Any]) -> None:
        """Report the own tokens with other values than `expected`, [own tokens]."""
        own = piece.columns[name][piece.bos : piece.real]
        wrong = np.flatnonzero(own != expected)
        if wrong.size:
            at = int(wrong[0])
            words = "ids differ" if kind == "ids" else f"{name} differ"
            what = (
                f"{len(wrong):,} {words} from those of {row}, first at token {places[at]}: "
                f"{own[at]} here, {expected[at]} from the source"
            )
            findings.add(replace(piece.place, kind=kind, what=what))

    differ("tokens", "ids", document.ids[places])
    if "labels" in piece.columns:
        labels = document.labels[places]
        head = max(cut.repeated, 0 if piece.bos else 1)
        labels[:head] = NO_LOSS
        differ("labels", "labels", labels)
    for name, values in document.aligned.items():
        differ(name, "carried", values[places].astype(piece.columns[name].dtype))
    _compare_values(row, document, piece, findings)


def _compare_values(row: str, document: Document, piece: _Piece, findings: Findings) -> None:
    """Compare the values of a segment."""
    expected: dict[str, object] = dict(document.values)
    if document.split is not None and "pair_sides" in piece.values:
        expected["pair_sides"] = piece.start >= document.split
    for name, value in expected.items():
        here = piece.values[name]
        if here != np.asarray(value).astype(here.dtype):
            what = f"{name} is {here}; expected {np.asarray(value).astype(here.dtype)}, of {row}"
            findings.add(replace(piece.place, kind="carried", what=what))
    for name, values in piece.columns.items():
        fill = np.append(values[: piece.bos], values[piece.real :])
        if name in document.aligned and fill.any():
            what = f"{name} is {fill[fill != 0][0]} where no token of {row} is; expected 0"
            findings.add(replace(piece.place, kind="carried", what=what))
