"""Which rows each window has, never their order in packs.

A stream is an entry of `sources`: the rows of its files, pass after pass, each pass in the same
order. The files are cut into blocks of about 16 MB, the seed permutes the blocks and joins them to
groups of at least 64, and the rows of a group have random keys, by which they are sorted. So a part
of a stream has rows of 64 blocks, or single rows of all blocks where there are fewer, however the
files are sorted; and most of what a part has are whole blocks. Nothing but the files of an entry
decides its stream, so sources may come and go beside it.

A build takes an interval of each stream, a window an equal part of each interval. With order input,
which has no seed, nothing is permuted, all sources are one stream, and windows cut it in order.
Rows are drawn whole: the sides of a pair and the turns of a chat stay together.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..schemas.arrays import Int64, UInt64
from ..support.errors import ConfigError
from ..support.hashing import Purpose, mix, stream
from .types import Range

BLOCK, GROUP = 16_000_000, 64  # bytes of a block, and blocks of a group, at least

KeptOf = Callable[[int, int], Int64]
"""f(first, last) -> tokens that the input rows first..last - 1 have in packs, int64 [rows]."""


class SourceRows(NamedTuple):
    """Rows of a file of the input, which follow those of the file before.

    entry: number of the store, and of the entry in it. bytes, digest: of the file. first_row: input
    row of its first row.
    """

    entry: tuple[int, int]
    name: str
    rows: int
    bytes: int
    digest: str = ""
    first_row: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Rows of one entry in the order in which they are drawn; places in it are numbers of rows.

    name, sources: see `Drawn`. groups: of blocks, in order. Without keys a group is one block.
    first, most: place at which the interval begins, and the last at which it may end.
    """

    name: str
    sources: range
    groups: tuple[tuple[Range, ...], ...]
    kept_of: KeptOf
    first: int = 0
    most: int = 0

    @cached_property
    def _starts(self) -> Int64:
        """Place of each group in a pass, and the end of the pass, [groups + 1]."""
        rows = [sum(block.last - block.first for block in group) for group in self.groups]
        return np.append(0, np.cumsum(rows, dtype=np.int64))

    @property
    def rows(self) -> int:
        """Rows of one pass."""
        return int(self._starts[-1])

    @cached_property
    def _tokens(self) -> Int64:
        """Kept tokens before each group and of a pass, [groups + 1]."""
        tokens = [sum(int(self.kept_of(*b[:2]).sum()) for b in group) for group in self.groups]
        return np.append(0, np.cumsum(tokens, dtype=np.int64))

    def ranges(self, first: int, last: int) -> list[Range]:
        """Ranges of the rows first..last - 1, which are at most one pass."""
        made = list[Range]()
        begin = first % max(1, self.rows)
        end = begin + last - first
        for start, stop in ((begin, min(end, self.rows)), (0, end - self.rows)):
            group = int(np.searchsorted(self._starts, start, side="right")) - 1
            while start < stop:
                edge, following = self._starts[group : group + 2].tolist()
                made += _part(self, group, start - edge, min(stop, following) - edge)
                start, group = following, group + 1
        return sorted(made)

    def _before(self, place: int) -> int:
        """Kept tokens before a place, over all passes."""
        passes, rest = divmod(place, max(1, self.rows))
        group = int(np.searchsorted(self._starts, rest, side="right")) - 1
        tokens = passes * int(self._tokens[-1]) + int(self._tokens[group])
        if rest > self._starts[group]:
            tokens += int(_kept(self, group)[: rest - int(self._starts[group])].sum())
        return tokens

    @cached_property
    def room(self) -> int:
        """Kept tokens that the interval may have."""
        return self._before(self.most) - self._before(self.first)

    def after(self, tokens: Fraction) -> int:
        """The place in the interval that is nearest to so many kept tokens after its begin."""
        total = int(self._tokens[-1])
        if not total:
            return self.first
        passes, rest = divmod(self._before(self.first) + tokens, total)
        group = int(np.searchsorted(self._tokens[:-1], int(rest), side="right")) - 1
        sums = np.append(0, np.cumsum(_kept(self, group))) + self._tokens[group]
        nearest = int(np.argmin(np.abs(sums - float(rest))))
        place = int(passes) * self.rows + int(self._starts[group]) + nearest
        return min(max(place, self.first), self.most)


@lru_cache(maxsize=2)
def _order(each: Stream, number: int) -> tuple[Int64, UInt64]:
    """The rows of a group in their order, as places in its blocks, and the keys of these rows."""
    keys = np.concatenate([block.keys(np.arange(*block[:2])) for block in each.groups[number]])
    order = np.argsort(keys)
    return order, keys[order]


@lru_cache(maxsize=2)
def _kept(each: Stream, number: int) -> Int64:
    """Kept tokens of the rows of a group, in their order."""
    kept = [each.kept_of(block.first, block.last) for block in each.groups[number]]
    return np.concatenate(kept)[_order(each, number)[0]]


def _part(each: Stream, number: int, low: int, high: int) -> list[Range]:
    """Ranges of the rows low..high - 1 of a group."""
    blocks = each.groups[number]
    if high - low == sum(block.last - block.first for block in blocks):
        return list(blocks)
    if not blocks[0].key:
        return [Range(blocks[0].first + low, blocks[0].first + high)]
    keys = _order(each, number)[1]
    return [block._replace(low=int(keys[low]), high=int(keys[high - 1])) for block in blocks]


def streams(sources: Sequence[SourceRows], seed: int | None, kept_of: KeptOf) -> list[Stream]:
    """A stream for each entry; one of all sources in their order if seed is None."""
    made, first, number = list[Stream](), 0, 0
    key = 0 if seed is None else int(stream(seed, Purpose.DRAW)) | 1
    for _, of_entry in itertools.groupby(sources, lambda each: seed is not None and each.entry):
        files, base, blocks = list(of_entry), first, list[Range]()
        for source in files:
            count = max(1, source.bytes // BLOCK)
            edges = [first + source.rows * at // count for at in range(count + 1)]
            pairs = itertools.pairwise(edges)
            blocks += [Range(*ends, key, base) for ends in pairs if ends[0] < ends[1]]
            first += source.rows
        groups = max(1, len(blocks) // GROUP)
        if seed is None:
            groups = len(blocks)
        else:
            order = np.argsort(mix(stream(seed, Purpose.DRAW, 1), np.arange(len(blocks))))
            blocks = [blocks[at] for at in order]
        ends = [len(blocks) * group // max(1, groups) for group in range(groups + 1)]
        parts = tuple(tuple(blocks[a:b]) for a, b in itertools.pairwise(ends) if a < b)
        numbers = range(number, number := number + len(files))
        made.append(Stream(name=files[0].name, sources=numbers, groups=parts, kept_of=kept_of))
    return made


class Drawn(NamedTuple):
    """What is drawn of a stream: its rows first..last - 1, over all passes.

    name: of its first file. sources: numbers of its files. rows: of one pass. blocks: parts of
    about 16 MB that have some of the rows.
    """

    name: str
    sources: range
    rows: int
    first: int
    last: int
    blocks: int


class Draw(NamedTuple):
    """What a build draws.

    windows: ranges of each. left: rows of a pass that are in no window. again: rows that are drawn
    once more, pass by pass. streams: all of them. seed: None in the order of the input.
    """

    windows: list[list[Range]]
    left: list[Range]
    again: list[list[Range]]
    streams: list[Drawn]
    seed: int | None


def draw(
    sources: Sequence[SourceRows],
    kept_of: KeptOf,
    *,
    seed: int | None,
    weights: Sequence[Fraction] = (),
    max_tokens: int | None = None,
    passes: Sequence[Fraction] = (),
    windows: Fraction = Fraction(1),
    after: Sequence[int] = (),
) -> Draw:
    """Draw the rows of a build, and deal them to its windows.

    kept_of: read once for all rows, and again for groups at the ends of intervals; never without
    weights and max_tokens. weights: of each stream; without them rows are drawn once, in proportion
    to what is left. max_tokens: of all; None for as many as there are. passes: most times that each
    stream is used, those before `after` included; without, once. windows: how many windows all rows
    have, once each. after: place at which each interval begins.

    Shares of kept tokens are exact to a row a stream and window, and no window has a row twice.
    Raises ConfigError if a stream has too little left.
    """
    every = streams(sources, seed, kept_of)
    if weights and len(weights) != len(every):
        raise ConfigError(
            f"--weights has {len(weights)} shares for {len(every)} sources; give one for each"
        )
    firsts, times = after or [0] * len(every), passes or [Fraction(1)] * len(every)
    every = [
        replace(each, first=first, most=max(first, int(most * each.rows)))
        for each, first, most in zip(every, firsts, times, strict=True)
    ]
    if weights or max_tokens is not None:
        edges = _by_tokens(every, weights, max_tokens, windows)
    else:
        count = _windows(every, [each.most for each in every], windows)
        edges = [
            [each.first + (each.most - each.first) * at // count for at in range(count + 1)]
            for each in every
        ]
    if any(after) and all(each.first >= each.most for each in every):
        raise ConfigError("--after names an output that has every row; nothing is left to draw")
    made = Draw([[] for _ in edges[0][1:]], [], [], [], seed)
    for each, places in zip(every, edges, strict=True):
        blocks = set[int]()
        for ranges, ends in zip(made.windows, itertools.pairwise(places), strict=True):
            drawn = each.ranges(*ends)
            blocks.update(part.first for part in drawn)
            ranges += drawn
        first, last = places[0], places[-1]
        made.left.extend(each.ranges(last, max(last, first + each.rows)))
        for begin in range(first + each.rows, last, max(each.rows, 1)):
            made.again.append(each.ranges(begin, min(begin + each.rows, last)))
        made.streams.append(Drawn(each.name, each.sources, each.rows, first, last, len(blocks)))
    return made


def _windows(every: Sequence[Stream], ends: Sequence[int], windows: Fraction) -> int:
    """Number of windows, so that none has a row twice. windows: how many all rows have."""
    drawn = [end - each.first for each, end in zip(every, ends, strict=True)]
    passes = [-(-part // max(1, each.rows)) for part, each in zip(drawn, every, strict=True)]
    rows = max(1, sum(each.rows for each in every))
    return max(1, math.ceil(windows * sum(drawn) / rows), *passes)


def _by_tokens(
    every: Sequence[Stream], weights: Sequence[Fraction], asked: int | None, windows: Fraction
) -> list[list[int]]:
    """Places of each stream at which windows begin, and the end. weights, asked: see `draw`."""
    parts = list(weights) or [Fraction(each.room) for each in every]
    scales = [
        (each.room / part, each.name) for each, part in zip(every, parts, strict=True) if part
    ]
    scale, scarce = min(scales, default=(Fraction(0), every[0].name))
    if not scale:
        raise ConfigError(f"{scarce} has no tokens left to draw; leave it out")
    if asked is not None and weights and asked > scale * sum(parts):
        raise ConfigError(
            f"--max-tokens is {asked:,} and {scarce} has tokens left for a mix of "
            f"{int(scale * sum(parts)):,}; ask for fewer, or raise its max_epochs"
        )
    if asked is not None:
        scale = min(scale, asked / sum(parts, Fraction()))
    wanted = [part * scale for part in parts]
    ends = [each.after(tokens) for each, tokens in zip(every, wanted, strict=True)]
    count = _windows(every, ends, windows)
    edges = [[each.first] for each in every]
    for each, tokens, end, places in zip(every, wanted, ends, edges, strict=True):
        for window in range(1, count + 1):
            place = each.after(tokens * window / count) if window < count else end
            places.append(min(max(place, places[-1]), places[-1] + each.rows, end))
    return edges
