"""Documents of a window, read from its token files."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..schemas.arrays import Int64
from ..schemas.files import Files
from ..schemas.tokens import Documents, mapped_documents, no_documents
from ..support.hashing import Purpose, drawn, stream
from ..tokens.store import TokenFile
from .cut import cut
from .types import Cutting, Range


class StoredFile(NamedTuple):
    """A token file in the order of the input. first_row: input row of its first row.

    sources: number to add to the numbers of its sources, where several stores are read. place: see
    `mapped_documents`.
    """

    folder: Files
    receipt: TokenFile
    first_row: int
    sources: int = 0
    place: int | None = None

    @property
    def path(self) -> Path:
        """The file here, fetched if its place is a URL."""
        return self.folder.local(self.receipt.name, self.receipt.digest)


def stored_files(
    entries: Sequence[tuple[Files, Sequence[TokenFile], int]], *, places: bool = False
) -> list[StoredFile]:
    """The files of entries one after another. entries: (folder, receipts, number of sources).

    places: number their documents.
    """
    files, row, sources, place = list[StoredFile](), 0, 0, 0
    for folder, receipts, count in entries:
        for receipt in receipts:
            number = place if places else None
            files.append(StoredFile(folder, receipt, row, sources, number))
            row += sum(receipt.rows.values())
            place += receipt.documents
        sources += count
    return files


def read_file(file: StoredFile) -> Documents:
    """All documents of a token file."""
    rows = {source + file.sources: count for source, count in file.receipt.rows.items()}
    return mapped_documents(file.path, file.first_row, rows, file.place)


def read_parts(files: Sequence[StoredFile], ranges: Sequence[Range]) -> Iterator[Documents]:
    """Documents of the rows of ranges, file by file."""
    starts = [file.first_row for file in files]
    wanted: dict[int, list[Range]] = {}
    for each in ranges:
        first = bisect_right(starts, each.first) - 1
        for number in range(first, bisect_left(starts, each.last)):
            wanted.setdefault(number, []).append(each)
    for number in sorted(wanted):
        documents = read_file(files[number])
        chosen = np.zeros(len(documents), np.bool_)
        for each in wanted[number]:
            chosen |= each.has(documents.id)
        yield documents if chosen.all() else documents.take(chosen)


def read_documents(files: Sequence[StoredFile], ranges: Sequence[Range]) -> Documents:
    """Documents of the rows of ranges, sorted by source, row and part.

    Groups are numbered over all of them, held-out ones and those without tokens included.
    """
    return Documents.joined(parts) if (parts := list(read_parts(files, ranges))) else no_documents()


class HeldOut(NamedTuple):
    """A share of the rows for the validation split.

    It depends on the seed and the row alone; rows of one group are held out together. shift: added
    to rows of each source, so that they have the numbers that they had in an earlier output.
    """

    share: float
    seed: int
    shift: Int64

    def split(self, documents: Documents, split: str) -> Documents:
        """The documents of one split."""
        if not self.share:
            return documents
        numbers = documents.hashes
        if numbers is None:
            numbers = documents.id + self.shift[documents.source]
        validation = drawn(stream(self.seed, Purpose.HOLDOUT), numbers, self.share)
        return documents.take(validation if split == "validation" else ~validation)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptTokens:
    """How many tokens of input rows are in training packs; see `draw`."""

    files: Sequence[StoredFile]
    cutting: Cutting
    held_out: HeldOut

    def __call__(self, first: int, last: int) -> Int64:
        """Tokens of the rows first..last - 1, [rows]."""
        starts = [file.first_row for file in self.files]
        numbers = range(bisect_right(starts, first) - 1, bisect_left(starts, last))
        counts = np.concatenate([self._of_file(number) for number in numbers])
        begin = first - starts[numbers[0]]
        return counts[begin : begin + last - first]

    @cached_property
    def _of_file(self) -> Callable[[int], Int64]:
        return lru_cache(maxsize=128)(self._read)

    def _read(self, number: int) -> Int64:
        file, cutting = self.files[number], self.cutting
        if cutting.overflow == "error":  # the window that has a document that is too long says so
            cutting = replace(cutting, overflow="drop")
        documents = self.held_out.split(read_file(file), "train")
        segments, _ = cut(documents, cutting)
        rows = documents.id[segments.document] - file.first_row
        counts = np.bincount(rows, segments.lengths, sum(file.receipt.rows.values()))
        return counts.astype(np.int64)
