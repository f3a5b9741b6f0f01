"""A mix: the documents drawn from each source, and the documents of each window.

Documents are drawn after everything is tokenized. A draw needs lengths only, so builds with other
weights reuse the token store. Lengths are read three times, one token file at a time: to find where
each draw ends, to finish it, and to lay out the streams; with phases, twice more for each of them.
Then each window reads those of its files. Memory: a few numbers per file.

The documents are laid out as parallel streams, which are cut into windows of equal length. A stream
has documents of one source that are drawn equally often, copy after copy. A document at a tenth of
its stream is at a tenth of the mix, so every part of the mix has the wanted shares. Two copies of a
document are a full copy of the stream apart: with at least as many windows as copies, no window has
a document twice.

Example: 4 tokens of A and 2 of B, each document one token -> A B A A B A; two windows hold A B A
each.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from packprep.config.grammar.mix import shares
from packprep.config.pack_rules import MixRules
from packprep.engines.tokenizer import Tokenizer
from packprep.packing.account import Dropped, Sums
from packprep.support.arrays import Bools, Int64
from packprep.tokens.store import TokenFile
from packprep.windows.documents import Documents, read_chosen, unit_order
from packprep.windows.mix_cells import Cells, Measure
from packprep.windows.specs import WindowSpec


class RequestedSource(TypedDict):
    """A source of a mix: its files, and the tokens asked for and available."""

    name: str
    files: list[int]
    asked: dict[str, float]
    asked_share: float
    available: int


class RequestedMix(TypedDict):
    """A mix as asked for. limited_by: the source that limits its size."""

    limited_by: str | None
    sources: list[RequestedSource]


class RequestedPhase(TypedDict):
    """A phase as asked for: its tokens, and the share of each source."""

    tokens: int
    shares: list[float]
    max_length: int
    min_len: int
    max_len: int | None


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Places of the documents of each token file in a stream.

    begins, ends: tokens of the stream where each file begins and ends in each copy, [copies,
    files]. has_documents: False for files without documents, [files]. windows: number of windows of
    the mix.
    """

    begins: Int64
    ends: Int64
    has_documents: Bools
    windows: int

    @property
    def total(self) -> int:
        return max(1, int(self.ends.max(initial=0)))

    def window(self, places: Int64) -> Int64:
        """The windows of places, in tokens from the beginning of the stream."""
        windows: Int64 = np.minimum(places * self.windows // self.total, self.windows - 1)
        return windows

    def files(self) -> list[tuple[int, int]]:
        """Pairs (window, file) of all files of each window."""
        first, last = self.window(self.begins), self.window(self.ends)
        return [
            (window, file)
            for copy in range(len(self.begins))
            for file in np.flatnonzero(self.has_documents).tolist()
            for window in range(first[copy, file], last[copy, file] + 1)
        ]

    def stretch(self, file: int, sizes: Int64, window: int) -> tuple[Int64, NDArray[np.float64]]:
        """Documents of a file in a window, as indices, and their places in the mix, 0 to 1.

        sizes: tokens of all documents that the stream has of the file, [documents]. Documents of 0
        tokens are in the first copy only.
        """
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for copy in range(len(self.begins)):
            begin = self.begins[copy, file]
            if not self.window(begin) <= window <= self.window(self.ends[copy, file]):
                continue
            taken = np.flatnonzero((sizes > 0) | (copy == 0))
            starts = begin + np.cumsum(sizes[taken]) - sizes[taken]
            inside = self.window(starts) == window
            rows.append(taken[inside])
            places.append(starts[inside] / self.total)
        return np.concatenate(rows), np.concatenate(places)


def lay_out(copies: int, tokens: Int64, has_documents: Bools, order: Int64, windows: int) -> Stream:
    """The stream of this many copies.

    tokens, has_documents: of one copy, [files]. order: the order of the files in each copy.
    """
    ends = np.empty(len(tokens), np.int64)
    ends[order] = np.cumsum(tokens[order])
    before = np.arange(copies)[:, None] * tokens.sum()
    return Stream(
        begins=before + ends - tokens,
        ends=before + ends,
        has_documents=has_documents,
        windows=windows,
    )


_Streams = dict[tuple[int, int], Stream]  # by cell and copies of its documents


class Mix:
    """The draw of a build, and its windows; those of a run follow those of the run before.

    entry_of_source: the entry of each input file. measure: see `Measure`. max_memory: see
    `read_documents`.

    cells: see `Cells`. windows: in their order, without number, split and seed.
    """

    def __init__(
        self,
        files: Sequence[TokenFile],
        directory: Path,
        entry_of_source: Sequence[int],
        rules: MixRules,
        measure: Measure,
        max_memory: int | None = None,
    ) -> None:
        self._files, self._directory, self._rules = files, directory, rules
        self._max_memory = max_memory
        self.cells = Cells(files, directory, entry_of_source, rules, measure)
        self._counted = [Counter[str]() for _ in entry_of_source]
        self._streams: list[_Streams] = []  # of each run
        self.windows: list[WindowSpec[TokenFile]] = []
        self._lay_out()

    def _documents(self, run: int, window: int, numbers: Sequence[int], split: str) -> Documents:
        """The documents of one window and split in the order of the mix.

        window: of its run. numbers: of its token files.
        """
        places: list[NDArray[np.float64]] = [np.empty(0)]

        def chosen(number: int, documents: Documents) -> Int64:
            rows, places_of_rows = self._stretch(numbers[number], documents, run, window, split)
            places.append(places_of_rows)
            return rows

        files = [self._files[number] for number in numbers]
        documents = read_chosen(self._directory, files, chosen, self._max_memory)
        return documents.take(np.argsort(np.concatenate(places), kind="stable"))

    def left_out(self, tokenizer: Tokenizer) -> list[Sums]:
        """Sums of the documents not drawn, and of the repeated copies, for each input file.

        A repeated document counts in tokens_in once for each copy; `repeated` counts all copies but
        the first.
        """
        has_bos, has_eos = tokenizer.bos is not None, tokenizer.eos is not None
        return [
            Sums(
                tokens_in=counts["not_drawn_tokens"],
                dropped=Counter({Dropped.NOT_DRAWN: counts["not_drawn_tokens"]}),
                dropped_documents=Counter({Dropped.NOT_DRAWN: counts["not_drawn_documents"]}),
                repeated_documents=counts["repeated_documents"],
                repeated_tokens=counts["repeated_tokens"],
                bos_added=counts["not_drawn_documents"] * has_bos,
                eos_added=counts["not_drawn_documents"] * has_eos,
            )
            for counts in self._counted
        ]

    def as_dict(self) -> RequestedMix:
        """Tokens wanted and available of each source in the training split, for the report."""
        cells, count = self.cells, len(self.cells.entries)
        by_weight = shares(cells.entries)
        wanted = [sum(each[number] for each in cells.wanted) for number in range(count)]
        total = sum(wanted) or 1
        sources: list[RequestedSource] = [
            {
                "name": entry.label,
                "files": np.flatnonzero(cells.entry_of_source == number).tolist(),
                "asked": {} if cells.phases else entry.asked,
                "asked_share": float(by_weight[number])
                if entry.weight and not cells.phases
                else wanted[number] / total,
                "available": max(each[number] for each in cells.available),
            }
            for number, entry in enumerate(cells.entries)
        ]
        return {"limited_by": cells.scarce.label if cells.scarce else None, "sources": sources}

    def phases_asked(self) -> list[RequestedPhase]:
        """Tokens and shares that each phase asks for in the training split; [] without phases."""
        count = len(self.cells.entries)
        return [
            {
                "tokens": tokens,
                "shares": [float(share) for share in phase.shares]
                if phase.shares
                else [amount / (sum(wanted[:count]) or 1) for amount in wanted[:count]],
                "max_length": phase.max_length,
                "min_len": phase.min_document_tokens,
                "max_len": phase.max_document_tokens,
            }
            for phase, tokens, wanted in zip(
                self.cells.phases, self.cells.asked, self.cells.wanted, strict=False
            )
        ]

    def notes(self) -> Iterator[str]:
        """Notes for the user about the amounts of the sources."""
        cells = self.cells
        if cells.total is not None and cells.scarce is not None:
            yield (
                f"the phases have {cells.total:,} tokens, as many as {cells.scarce.label} allows "
                f"(in phase {cells.scarce_phase + 1}); a larger max_epochs repeats it"
            )
            return
        for entry, tokens in zip(cells.entries, cells.available[0], strict=False):
            if entry is cells.scarce:
                times = "once" if entry.max_epochs == 1 else f"{float(entry.max_epochs):g} times"
                yield (
                    f"the mix is as large as {entry.label} allows: its {tokens:,} tokens {times}; "
                    "a larger max_epochs repeats it"
                )
            elif entry.max_tokens is not None and tokens < entry.max_tokens:
                yield (
                    f"{entry.label} has {tokens:,} tokens, fewer than its max_tokens of "
                    f"{entry.max_tokens:,}"
                )

    def _lay_out(self) -> None:
        """The streams and windows of each run. Counts the documents that are not drawn.

        A stream has the documents of a cell that a phase draws equally often. Epochs draw the same
        documents, in other windows.
        """
        phases = len(self._rules.packs)
        tokens: list[dict[tuple[int, int], Int64]] = [{} for _ in range(phases)]
        has_documents: list[dict[tuple[int, int], NDArray[np.bool_]]] = [{} for _ in range(phases)]
        drawn = [[0] * len(self._files) for _ in range(phases)]
        for number, file in self.cells.read():
            copies = self.cells.copies(file)
            for phase in range(phases):
                cell_of = np.unique(np.stack([file.cell, copies[phase]]), axis=1).T.tolist()
                for cell, times in cell_of:
                    if not times:
                        continue
                    rows = (file.cell == cell) & (copies[phase] == times)
                    key = (cell, times)
                    sums = tokens[phase].setdefault(key, np.zeros(len(self._files), np.int64))
                    sums[number] = file.sizes[phase, rows].sum()
                    has_documents[phase].setdefault(key, np.zeros(len(self._files), np.bool_))[
                        number
                    ] = True
                drawn[phase][number] = int(copies[phase].sum())
            self._count(file.documents, copies.sum(axis=0))
        runs = itertools.product(range(self._rules.epochs), range(phases))  # several of one kind
        for run, (epoch, phase) in enumerate(runs):
            order = self._order(epoch)
            windows = self._windows_of(phase, [times for _, times in tokens[phase]])
            streams = {
                key: lay_out(key[1], sums, has_documents[phase][key], order, windows)
                for key, sums in sorted(tokens[phase].items())
            }
            files: list[list[int]] = [[] for _ in range(windows)]
            for window, number in sorted(
                {pair for stream in streams.values() for pair in stream.files()}
            ):
                files[window].append(number)
            self._streams.append(streams)
            parts = Counter(number for numbers in files for number in numbers)
            self.windows += [
                WindowSpec(
                    run=run,
                    rules=self._rules.packs[phase],
                    slices=[self._files[number] for number in numbers],
                    # The documents of a file in several windows are divided evenly.
                    documents=int(sum(drawn[phase][each] / parts[each] for each in numbers)),
                    draw=partial(self._documents, run, window, numbers),
                    mixed=self.cells.entry_of_source if self.cells.phases else None,
                )
                for window, numbers in enumerate(files)
            ]

    def _order(self, epoch: int) -> Int64:
        """Token files in the order of the streams: units in seeded order, or in input order."""
        return unit_order(
            np.array([file.unit for file in self._files]), self._rules.ordering, epoch
        )

    def _windows_of(self, phase: int, copies: Sequence[int]) -> int:
        """Number of windows of a phase. copies: numbers of copies that documents have in it."""
        text_bytes = sum(file.text_bytes for file in self._files)
        text_tokens = sum(file.tokens for file in self._files)
        wanted = sum(self.cells.wanted[phase][: len(self.cells.entries)])
        windows = max(1, wanted * text_bytes // max(1, text_tokens * self._rules.window))
        if self._rules.packs[phase].cutting.packer.name == "balanced":  # it has one window
            return windows
        return max(windows, *copies, 1)

    def _count(self, documents: Documents, copies: Int64) -> None:
        not_drawn, repeated = (copies == 0).astype(np.int64), np.maximum(copies - 1, 0)
        for name, times in (("not_drawn", not_drawn), ("repeated", repeated)):
            for unit, counts in (("documents", times), ("tokens", times * documents.length)):
                for source, count in enumerate(np.bincount(documents.source, weights=counts)):
                    self._counted[source][f"{name}_{unit}"] += int(count)

    def _stretch(
        self, number: int, documents: Documents, run: int, window: int, split: str
    ) -> tuple[Int64, NDArray[np.float64]]:
        """Rows of one file in a window, and the place of each in its phase, 0 to 1."""
        phase = run if self.cells.phases else 0
        file = self.cells.measured(documents)
        copies = self.cells.copies(file)[phase]
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for (cell, times), stream in self._streams[run].items():
            if (cell >= len(self.cells.entries)) != (split == "validation"):
                continue
            rows_of_stream = np.flatnonzero((file.cell == cell) & (copies == times))
            sizes = file.sizes[phase, rows_of_stream]
            indices, places_of_rows = stream.stretch(number, sizes, window)
            rows.append(rows_of_stream[indices])
            places.append(places_of_rows)
        return np.concatenate(rows), np.concatenate(places)
