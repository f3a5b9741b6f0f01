"""Plan of one window from the lengths of its documents, as in a build."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.packing.account import Dropped, Sums
from packprep.packing.figures import terms
from packprep.packing.plan import PackPlan
from packprep.schemas.index.runs import Pointers
from packprep.windows.documents import Documents
from packprep.windows.placement import Packs
from packprep.windows.planner import (
    CutWindow,
    measure,
    packs_of,
    plan_segments,
    resized,
    window_seed,
)
from packprep.windows.segments import DocumentAccount


@dataclass(frozen=True)
class WindowDocuments:
    """Documents that are planned together: window `number` of a split."""

    split: str
    number: int
    documents: Documents

    @property
    def tokens(self) -> int:
        return int(self.documents.length.sum(dtype=np.int64))

    def take(self, kept: NDArray[Any]) -> "WindowDocuments":
        """Keep the documents of a mask or of an array of indices."""
        return replace(self, documents=self.documents.take(kept))

    def repeated(self, copies: int) -> "WindowDocuments":
        return self if copies == 1 else self.take(np.tile(np.arange(len(self.documents)), copies))


def of_lengths(split: str, number: int, length: NDArray[np.int32]) -> WindowDocuments:
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


def plan_cut(
    cut: CutWindow, window: WindowDocuments, config: BuildConfig, bound: int | None = None
) -> "Planned":
    """Plan segments that several strategies share. bound: None until a plan computes it."""
    seed = window_seed(config, window.number, int(window.split == "validation"))
    segments, account, plan = plan_segments(window.documents, cut, config, seed)
    packs = packs_of(window.documents, segments, plan, cut.trees, config, seed)
    return Planned(packs, plan, account, plan.bound if bound is None else bound)


@dataclass(frozen=True)
class Planned:
    """A planned window. bound: packs that no plan can go below."""

    packs: Packs
    plan: PackPlan
    account: DocumentAccount
    bound: int

    def sums(self, config: BuildConfig, change: int = 0) -> Sums:
        """Sums of the window, as in a build. change: packs to add, or to drop if below 0."""
        written, account = resized(self.packs, change, config), self.account
        lengths, padded = written.segments.lengths, written.padded
        small = 0
        if len(self.packs) < self.plan.num_packs:
            small = _sum(lengths) - _sum(lengths[self.packs.order])
        all_segments = not change and not small
        real = slice(None) if all_segments else written.order[written.order >= 0]
        kept = _sum(lengths[real])
        fillers = 0 if all_segments else int((written.order < 0).sum())
        stored = _sum(padded[real]) + fillers
        dropped = Counter[str](
            {Dropped(reason): _sum(counts) for reason, counts in account.dropped.items()}
        )
        dropped[Dropped.SMALL_PACK] = small
        dropped[Dropped.REMAINDER] = _sum(lengths) - small - kept
        sums = Sums(
            tokens_in=_sum(written.documents.length),
            overlap=_sum(account.overlap),
            continuation_bos=_sum(account.continuation_bos),
            filler=stored - kept,
            tokens_packed=stored,
            truncated=_sum(account.truncated),
            shared=0 if account.shared is None else _sum(account.shared),
            dropped=dropped,
            segments=len(written.order),
            max_length=config.max_length,
            packs=len(written),
            planned=self.plan.num_packs,
            bound=self.bound,
        )
        figures = measure(self.plan, written.documents, self.account, config)
        return replace(sums, measured=terms(figures, sums))

    def tree_rows(self, config: BuildConfig, change: int = 0) -> int:
        """Number of rows of the trees in packs; 0 without trees. change: see `sums`."""
        if self.packs.trees is None:
            return 0
        return _sum(resized(self.packs, change, config).rows_per_pack)

    @property
    def cut(self) -> int:
        """Number of documents in several pieces or with tokens cut off."""
        segments = self.packs.segments
        cut = self.account.truncated > 0
        cut[segments.document[1:][segments.document[1:] == segments.document[:-1]]] = True
        return int(np.count_nonzero(cut))


def _sum(counts: NDArray[Any]) -> int:
    return int(counts.sum(dtype=np.int64))
