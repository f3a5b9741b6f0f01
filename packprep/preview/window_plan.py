"""Plan of one window from the lengths of its documents, as in a build."""

from dataclasses import dataclass, replace

import numpy as np

from packprep.inspect.contents import PackContents, SequenceUnit
from packprep.inspect.histograms import counts_of
from packprep.packing.account import Sums
from packprep.packing.figures import terms
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Bools, Int32, Int64
from packprep.windows.documents import Documents
from packprep.windows.placement import Packs
from packprep.windows.planner import WindowPlan, account_by_source
from packprep.windows.specs import window_seed


@dataclass(frozen=True)
class WindowDocuments:
    """Documents that are planned together: window `number` of a split."""

    split: str
    number: int
    documents: Documents

    @property
    def tokens(self) -> int:
        return int(self.documents.length.sum(dtype=np.int64))

    def seed(self, seed: int) -> int:
        """Seed that a build plans this window with."""
        return window_seed(seed, self.number, self.split)

    def take(self, kept: Bools | Int64) -> "WindowDocuments":
        """Keep the documents of a mask or of an array of indices."""
        return replace(self, documents=self.documents.take(kept))

    def repeated(self, copies: int) -> "WindowDocuments":
        return self if copies == 1 else self.take(np.tile(np.arange(len(self.documents)), copies))


def of_lengths(split: str, number: int, length: Int32) -> WindowDocuments:
    """A window of documents with known lengths only. length: [documents], tokens, 0 for none."""
    source = np.zeros(len(length), np.int32)
    documents = Documents(
        id=np.arange(len(length)),
        tokens=Pointers.null(len(length)),
        length=length,
        source=source,
        group=None,
    )
    return WindowDocuments(split, number, documents)


def window_sums(plan: WindowPlan, written: Packs, max_length: int) -> Sums:
    """Sums of a window, as in a build, but for the BOS and EOS that only its tokens tell.

    written: the packs of the plan that a build would write.
    """
    sums = Sums.total(account_by_source(plan, None, 1, written)) + Sums(
        max_length=max_length,
        packs=len(written),
        planned=plan.planned,
        bound=plan.bound,
    )
    return replace(sums, measured=terms(plan.measured, sums))


def contents_of(split: str, written: Packs, max_length: int, tokens: int) -> PackContents:
    """Contents of the packs of a window, as `read_contents` finds them in its shards.

    tokens: of all packs, without padding.
    """
    rows, has_pairs = written.segments.rows, len(written.documents.parts) > 1
    sequences, starts, placed = written.rows_per_pack, written.segments.start, written.placed
    if rows is not None:
        starts, placed = rows.start, np.repeat(placed, np.diff(rows.first))
    elif (filler := written.order < 0).any():
        before = np.append(0, np.cumsum(filler))
        sequences = sequences - np.diff(before[written.offsets])
    unit: SequenceUnit = "pair" if has_pairs else "segment" if rows is None else "row"
    return PackContents(
        split=split,
        unit=unit,
        max_length=max_length,
        counts=counts_of(sequences // 2 if has_pairs else sequences),
        later_pieces=0 if has_pairs else int(np.count_nonzero(starts[placed])),
        tokens=tokens,
    )


def documents_cut(plan: WindowPlan) -> int:
    """Number of documents in several pieces or with tokens cut off."""
    document = plan.packs.segments.document
    cut = plan.account.truncated > 0
    cut[document[1:][document[1:] == document[:-1]]] = True
    return int(np.count_nonzero(cut))
