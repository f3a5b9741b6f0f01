"""Segments of documents that are tokenized again, and the values that a build writes there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.reencode import Document
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.findings import Finding, Findings


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A segment of a sampled document.

    start: its first own token in the document. bos: 1 if an extra BOS goes before. real: tokens
    without padding. columns: values of its tokens, padding included. values: of the segment.
    """

    start: int
    bos: int
    real: int
    columns: Mapping[str, NDArray[Any]]
    values: Mapping[str, Any]
    place: Finding

    @property
    def end(self) -> int:
        """End of its tokens in the document, if it has no hole."""
        return self.start + self.real - self.bos


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a piece was cut.

    repeated: first own tokens that an earlier piece trains. front, hole: tokens before a gap, and
    those that are missing there.
    """

    repeated: int = 0
    front: int = 0
    hole: int = 0


WHOLE = Cut()


def compare_piece(row: str, document: Document, piece: Piece, cut: Cut, findings: Findings) -> None:
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


def _compare_values(row: str, document: Document, piece: Piece, findings: Findings) -> None:
    """Compare the values of a segment."""
    expected: dict[str, Any] = dict(document.values)
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
