"""A mix: the documents drawn from each source, and the documents of each window.

Documents are drawn after everything is tokenized. A draw needs lengths only, so builds with other
weights reuse the token store. Lengths are read three times, one token file at a time: to find where
each draw ends, to finish it, and to lay out the streams. Then each window reads those of its files.
Memory: a few numbers per file.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.config.mix import Entry, shares, targets
from packprep.engines.tokenizer import Tokenizer
from packprep.packing.account import Dropped, Sums
from packprep.support.arrays import Int64
from packprep.tokens.store import TokenFile
from packprep.windows.documents import Documents, held_out, read_chosen, read_documents, unit_order
from packprep.windows.mix_draw import BUCKETS, Draw, DrawEnd, buckets, finish_draw, hashes, place
from packprep.windows.mix_order import Stream, lay_out

Measure = Callable[[Documents], Int64]
"""Tokens that each document will have in packs, [documents]; shares are of these tokens."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """Documents of one token file; every array is [documents].

    cell: split * sources + source of the mix.
    """

    documents: Documents
    size: Int64
    cell: Int64
    hashed: NDArray[np.uint64]

    def take(self, kept: NDArray[np.bool_]) -> "_File":
        return _File(
            documents=self.documents.take(kept),
            size=self.size[kept],
            cell=self.cell[kept],
            hashed=self.hashed[kept],
        )


class Mix:
    """The draw of a build, and its windows.

    entry_of_source: the entry of each input file. measure: see `Measure`. epoch: each draws the
    same documents, in other windows.

    windows: the token files of each window. available, wanted: tokens of each cell; a cell is a
    source of the mix in one split, training first.
    """

    def __init__(
        self,
        files: Sequence[TokenFile],
        directory: Path,
        entry_of_source: Sequence[int],
        config: BuildConfig,
        measure: Measure,
        epoch: int = 0,
    ) -> None:
        self._files, self._directory, self._config, self._measure = (
            files,
            directory,
            config,
            measure,
        )
        self._entries = config.entries()
        self._entry_of_source = np.array(entry_of_source, np.int64)
        self._cells = len(self._entries) * (2 if config.holdout else 1)
        tokens, documents = self._histograms()
        self.available: list[int] = tokens.sum(axis=1).tolist()
        self.wanted, self._scarce = self._targets()
        self._draws = self._finish(
            [place(*cell) for cell in zip(self.wanted, tokens, documents, strict=True)]
        )
        self._counted = [Counter[str]() for _ in entry_of_source]
        self._streams, self._drawn = self._lay_out(epoch)
        pairs = {pair for streams in self._streams for stream in streams for pair in stream.files()}
        self._files_of_window: list[list[int]] = [[] for _ in range(self._streams[0][0].windows)]
        for window, number in sorted(pairs):
            self._files_of_window[window].append(number)
        self.windows = [[files[number] for number in numbers] for numbers in self._files_of_window]

    def documents(self, window: int, split: str) -> Documents:
        """The documents of one window and split in the order of the mix."""
        places: list[NDArray[np.float64]] = [np.empty(0)]

        def chosen(number: int, documents: Documents) -> Int64:
            rows, places_of_rows = self._stretch(
                self._files_of_window[window][number], documents, window, split
            )
            places.append(places_of_rows)
            return rows

        documents = read_chosen(
            self._directory, self.windows[window], chosen, self._config.max_memory
        )
        return documents.take(np.argsort(np.concatenate(places), kind="stable"))

    @property
    def most_documents(self) -> int:
        """Approximate number of documents in the largest window.

        The documents of a file in several windows are divided evenly.
        """
        times = Counter(number for numbers in self._files_of_window for number in numbers)
        return int(
            max(
                sum(self._drawn[number] / times[number] for number in numbers)
                for numbers in self._files_of_window
            )
        )

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

    def as_dict(self) -> dict[str, Any]:
        """Tokens wanted and available of each source in the training split, for the report."""
        by_weight, total = shares(self._entries), sum(self.wanted[: len(self._entries)]) or 1
        sources = [
            {
                "name": entry.label,
                "files": np.flatnonzero(self._entry_of_source == number).tolist(),
                "asked": entry.asked,
                "asked_share": float(by_weight[number])
                if entry.weight
                else self.wanted[number] / total,
                "available": self.available[number],
            }
            for number, entry in enumerate(self._entries)
        ]
        return {"limited_by": self._scarce.label if self._scarce else None, "sources": sources}

    def notes(self) -> Iterator[str]:
        """Notes for the user about the amounts of the sources."""
        for entry, tokens in zip(self._entries, self.available, strict=False):
            if entry is self._scarce:
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

    def _read(self) -> Iterator[tuple[int, _File]]:
        for number, file in enumerate(self._files):
            yield number, self._measured(read_documents(self._directory, [file]))

    def _measured(self, documents: Documents) -> _File:
        validation = (
            held_out(documents.id, self._config)
            if self._config.holdout
            else np.zeros(len(documents), np.bool_)
        )
        return _File(
            documents=documents,
            size=self._measure(documents),
            cell=validation * len(self._entries) + self._entry_of_source[documents.source],
            hashed=hashes(self._config.seed, documents.id),
        )

    def _histograms(self) -> tuple[Int64, Int64]:
        """Tokens and documents of each cell by bucket, [cells, BUCKETS] each."""
        tokens, documents = np.zeros((2, self._cells * BUCKETS), np.int64)
        for _, file in self._read():
            index = file.cell * BUCKETS + buckets(file.hashed)
            tokens += np.bincount(index, weights=file.size, minlength=len(tokens)).astype(np.int64)
            documents += np.bincount(index[file.size > 0], minlength=len(documents))
        return tokens.reshape(self._cells, BUCKETS), documents.reshape(self._cells, BUCKETS)

    def _targets(self) -> tuple[list[int], Entry | None]:
        """Tokens to draw of each cell.

        Validation has the rates of training, reduced until nothing repeats.
        """
        count = len(self._entries)
        train, validation = self.available[:count], self.available[count:]
        limit = self._config.max_tokens
        if limit is not None and validation:
            limit = limit * sum(train) // max(1, sum(train) + sum(validation))
        wanted, scarce = targets(self._entries, train, limit)
        rates = [
            Fraction(drawn, max(1, tokens)) for drawn, tokens in zip(wanted, train, strict=True)
        ]
        most = max([Fraction(1), *rates])
        return wanted + [
            int(tokens * rate / most) for tokens, rate in zip(validation, rates, strict=False)
        ], scarce

    def _finish(self, ends: Sequence[DrawEnd]) -> list[Draw]:
        """The draw of each cell, from the documents in the buckets where it ends."""
        first, last = (np.array([getattr(end, name) for end in ends]) for name in ("first", "last"))
        candidates: list[list[Any]] = [[] for _ in ends]
        for _, file in self._read() if (first < last).any() else ():
            bucket = buckets(file.hashed)
            near = file.take(
                (bucket >= first[file.cell]) & (bucket < last[file.cell]) & (file.size > 0)
            )
            for cell in np.unique(near.cell).tolist():
                rows = near.take(near.cell == cell)
                candidates[cell].append((rows.hashed, rows.documents.id, rows.size))
        return [finish_draw(*pair) for pair in zip(ends, candidates, strict=True)]

    def _lay_out(self, epoch: int) -> tuple[list[tuple[Stream, Stream]], list[int]]:
        """Two streams of each cell, and the number of documents drawn from each token file.

        The first is of documents drawn `times`, the second of those drawn once more. Counts the
        documents that are not drawn.
        """
        tokens = np.zeros((self._cells, 2, len(self._files)), np.int64)
        has_documents = np.zeros(tokens.shape, np.bool_)
        drawn = [0] * len(self._files)
        for number, file in self._read():
            copies = np.zeros(len(file.size), np.int64)
            for cell in np.unique(file.cell).tolist():
                in_cell = file.cell == cell
                rows = file.take(in_cell)
                partly = self._partly(cell, rows)
                copies[in_cell] = self._draws[cell].copies(rows.size, partly)
                for more, chosen in enumerate((~partly, partly)):
                    tokens[cell, more, number] = rows.size[chosen].sum()
                    has_documents[cell, more, number] = chosen.any()
            drawn[number] = int(copies.sum())
            self._count(file.documents, copies)
        text_bytes, text_tokens = (
            sum(getattr(file, field) for file in self._files) for field in ("text_bytes", "tokens")
        )
        windows = max(
            1,
            sum(self.wanted[: len(self._entries)])
            * text_bytes
            // max(1, text_tokens * self._config.window),
        )
        if self._config.strategy != "balanced":  # balanced has one window
            most = [
                draw.times + int(has_documents[cell, 1].any())
                for cell, draw in enumerate(self._draws)
            ]
            windows = max(windows, *most)
        order = unit_order(np.array([file.unit for file in self._files]), self._config, epoch)
        streams = [
            (
                lay_out(draw.times, tokens[cell, 0], has_documents[cell, 0], order, windows),
                lay_out(draw.times + 1, tokens[cell, 1], has_documents[cell, 1], order, windows),
            )
            for cell, draw in enumerate(self._draws)
        ]
        return streams, drawn

    def _partly(self, cell: int, file: _File) -> NDArray[np.bool_]:
        """Mask of the documents of one cell that are drawn once more than the others."""
        return self._draws[cell].partly(file.documents.id, buckets(file.hashed), file.size)

    def _count(self, documents: Documents, copies: Int64) -> None:
        not_drawn, repeated = (copies == 0).astype(np.int64), np.maximum(copies - 1, 0)
        for name, times in (("not_drawn", not_drawn), ("repeated", repeated)):
            for unit, counts in (("documents", times), ("tokens", times * documents.length)):
                for source, count in enumerate(np.bincount(documents.source, weights=counts)):
                    self._counted[source][f"{name}_{unit}"] += int(count)

    def _stretch(
        self, number: int, documents: Documents, window: int, split: str
    ) -> tuple[Int64, NDArray[np.float64]]:
        """Rows of one file in a window, and the place of each in the mix, 0 to 1."""
        file = self._measured(documents)
        first = len(self._entries) * (split == "validation")
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for cell in range(first, first + len(self._entries)):
            in_cell = file.cell == cell
            if not in_cell.any():
                continue
            partly = self._partly(cell, file.take(in_cell))
            for stream, chosen in zip(self._streams[cell], (~partly, partly), strict=True):
                rows_of_cell = np.flatnonzero(in_cell)[chosen]
                indices, places_of_rows = stream.stretch(number, file.size[rows_of_cell], window)
                rows.append(rows_of_cell[indices])
                places.append(places_of_rows)
        return np.concatenate(rows), np.concatenate(places)
