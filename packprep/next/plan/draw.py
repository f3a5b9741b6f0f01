"""Which documents each window has, never their order in packs.

A source is a stream of its documents: its token files, each with its documents, permuted by the
seed of the draw, pass after pass, each pass in the same order. A build takes an interval of each
stream, a window an equal part of each interval. With order input nothing is permuted, all sources
are one stream, and windows cut it in order.

A stream goes round its files many times and takes a few documents of each, so that any part of it
samples the whole source, however that is sorted: a part of a thousandth has documents of at least
64 files, or of all. What a window has of a file is one range of an order of the file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ..schemas.arrays import Int32, Int64
from ..support.errors import ConfigError
from ..support.hashing import Purpose, mix, stream
from .types import Range

_SLICES = 1 << 16  # of a stream in one pass, at least

KeptOf = Callable[[int], Int32]
"""f(file) -> tokens that each of its documents has in packs, [documents]."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Documents of some token files, in the order in which they are drawn.

    files: numbers of the files. sizes: documents of each. seed: of the draw; None keeps the order
    of the input. Places in the stream are numbers of documents, over all passes.
    """

    files: tuple[int, ...]
    sizes: Int64
    seed: int | None

    @cached_property
    def documents(self) -> int:
        """Documents of one pass."""
        return int(self.sizes.sum())

    @property
    def _rounds(self) -> int:
        return 1 if self.seed is None else max(1, _SLICES // max(1, len(self.files)))

    @cached_property
    def _order(self) -> Int64:
        """The files as indices, in the order of each round."""
        if self.seed is None:
            return np.arange(len(self.files))
        key = stream(self.seed, Purpose.DRAW)
        return np.argsort(mix(key, np.array(self.files, np.int64)), kind="stable")

    @cached_property
    def _edges(self) -> Int64:
        """Documents of each file before each round, in its order, [rounds + 1, files]."""
        rounds = np.arange(self._rounds + 1)[:, None]
        edges: Int64 = self.sizes[self._order] * rounds // self._rounds
        return edges

    @cached_property
    def _starts(self) -> Int64:
        """Place of each slice of a pass and its end, [slices + 1]; a slice is a file in a round."""
        return np.append(0, np.cumsum(np.diff(self._edges, axis=0).ravel()))

    def _counts(self, place: int) -> Int64:
        """Documents of each file that are before a place of one pass, [files]."""
        at = int(np.searchsorted(self._starts, place, side="right")) - 1
        counts = np.empty_like(self.sizes)
        if at == len(self._starts) - 1:
            return self.sizes
        done, number = divmod(at, len(self.files))
        counts[self._order] = self._edges[done]
        counts[self._order[:number]] = self._edges[done + 1, :number]
        counts[self._order[number]] += place - self._starts[at]
        return counts

    def ranges(self, first: int, last: int) -> list[Range]:
        """Ranges of the documents first..last - 1, which are at most one pass."""
        if not self.documents or last <= first:
            return []
        begin, end = first % self.documents, last - first // self.documents * self.documents
        parts = [(begin, min(end, self.documents)), (0, end - self.documents)]
        ranges = []
        for start, stop in parts:
            if stop <= start:
                continue
            counts = zip(
                self.files, self._counts(start), self._counts(stop), self.sizes, strict=True
            )
            for file, low, high, size in counts:
                if high > low:
                    whole = self.seed is None or (low, high) == (0, size)
                    order = 0 if whole else file_order(self.seed or 0, file)
                    ranges.append(Range(file, int(low), int(high), order))
        return sorted(ranges, key=lambda each: (each.file, each.first))

    def _kept_before(self, kept_of: KeptOf) -> Int64:
        """Kept tokens before each slice of a pass and after the last, [slices + 1]."""
        slices = np.zeros((self._rounds, len(self.files)), np.int64)
        for number, index in enumerate(self._order):
            sums = np.append(0, np.cumsum(self._kept(int(index), kept_of), dtype=np.int64))
            slices[:, number] = np.diff(sums[self._edges[:, number]])
        return np.append(0, np.cumsum(slices.ravel()))

    def _kept(self, index: int, kept_of: KeptOf) -> Int32:
        """Kept tokens of the documents of a file in the order of the stream."""
        file = self.files[index]
        kept = kept_of(file)
        return kept if self.seed is None else kept[permuted(len(kept), file_order(self.seed, file))]

    def places(
        self, tokens: Sequence[Fraction], first: int, kept_of: KeptOf
    ) -> tuple[list[int], int]:
        """The places nearest to these numbers of kept tokens after the place `first`.

        Returns also the kept tokens of one pass.
        """
        before = self._kept_before(kept_of)
        total = int(before[-1])

        def tokens_before(place: int) -> int:
            passes, rest = divmod(place, max(1, self.documents))
            at = min(int(np.searchsorted(self._starts, rest, side="right")) - 1, len(before) - 2)
            index, done = self._order[at % len(self.files)], at // len(self.files)
            low = int(self._edges[done, at % len(self.files)])
            kept = self._kept(int(index), kept_of)[low : low + rest - int(self._starts[at])]
            return passes * total + int(before[at]) + int(kept.sum(dtype=np.int64))

        def place_of(target: Fraction) -> int:
            passes = int(target // total) if total else 0
            rest = target - passes * total
            at = min(int(np.searchsorted(before, float(rest), side="right")) - 1, len(before) - 2)
            at = max(at, 0)
            number, done = at % len(self.files), at // len(self.files)
            low, high = self._edges[done, number], self._edges[done + 1, number]
            kept = self._kept(int(self._order[number]), kept_of)[low:high]
            sums = before[at] + np.append(0, np.cumsum(kept, dtype=np.int64))
            nearest = int(np.argmin(np.abs(sums - float(rest))))
            return passes * self.documents + int(self._starts[at]) + nearest

        begin = tokens_before(first)
        return [place_of(begin + each) for each in tokens], total


def streams(groups: Sequence[Sequence[int]], sizes: Int64, seed: int | None) -> list[Stream]:
    """A stream for each group of files; one of all files in their order if seed is None.

    sizes: documents of each file.
    """
    if seed is None:
        groups = [range(len(sizes))]
    return [
        Stream(files=tuple(files), sizes=sizes[list(files)].astype(np.int64), seed=seed)
        for files in groups
    ]


def equal_places(each: Stream, windows: int) -> list[int]:
    """Places at which windows that take all of a stream begin, and the end, [windows + 1]."""
    return [each.documents * window // windows for window in range(windows + 1)]


def mixed_places(
    sources: Sequence[Stream],
    shares: Sequence[Fraction],
    passes: Sequence[Fraction],
    firsts: Sequence[int],
    max_tokens: int | None,
    windows: int,
    kept_of: KeptOf,
) -> list[list[int]]:
    """Places of each stream at which windows begin, and the end; [sources][windows + 1].

    shares: of tokens, sum 1. passes: most times that each source is used, passes before `firsts`
    included. firsts: place at which each interval begins. max_tokens: of all; None for as many as
    the passes allow. Each share is exact to one document a window. Raises ConfigError if
    max_tokens needs more passes than a source may have.
    """
    totals = [each.places([], 0, kept_of)[1] for each in sources]
    room = [
        limit * total - Fraction(first * total, max(1, each.documents))
        for each, limit, total, first in zip(sources, passes, totals, firsts, strict=True)
    ]
    most = min(
        (left / share for left, share in zip(room, shares, strict=True) if share),
        default=Fraction(0),
    )
    tokens = most if max_tokens is None else Fraction(max_tokens)
    if tokens > most:
        scarce = min(range(len(room)), key=lambda n: room[n] / shares[n] if shares[n] else most + 1)
        raise ConfigError(
            f"--max-tokens is {max_tokens:,} but source {scarce} has only {int(room[scarce]):,} "
            f"tokens left of its max_epochs, which allow {int(most):,} in all; ask for fewer, or "
            "raise max_epochs"
        )
    needed = max(
        (tokens * share / total for share, total in zip(shares, totals, strict=True) if total),
        default=Fraction(1),
    )
    windows = max(windows, -int(-needed // 1), 1)
    places = []
    for each, share, first in zip(sources, shares, firsts, strict=True):
        edges = [tokens * share * window / windows for window in range(1, windows + 1)]
        places.append([first, *each.places(edges, first, kept_of)[0]])
    return places


def file_order(seed: int, file: int) -> int:
    """Key of the permutation of the documents of a file; never 0."""
    return int(stream(seed, Purpose.DRAW, file)) | 1


def permuted(documents: int, order: int) -> Int64:
    """The documents of a file in an order, as indices; 0 is the order of the file."""
    if not order:
        return np.arange(documents)
    return np.argsort(mix(np.uint64(order), np.arange(documents)), kind="stable")
