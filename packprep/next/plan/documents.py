"""Documents of a window, read from its token files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..schemas.arrays import Bools
from ..schemas.tokens import Documents, mapped_documents, no_documents
from ..support.hashing import Purpose, drawn, stream
from ..tokens.store import TokenFile
from .draw import permuted
from .types import Range


class StoredFile(NamedTuple):
    """A token file in the order of the input. first_row: input row of its first row.

    sources: number to add to the numbers of its sources, where several stores are read.
    """

    path: Path
    receipt: TokenFile
    first_row: int
    sources: int = 0


def stored_files(entries: Sequence[tuple[Path, Sequence[TokenFile], int]]) -> list[StoredFile]:
    """The files of entries one after another. entries: (folder, receipts, number of sources)."""
    files, row, sources = list[StoredFile](), 0, 0
    for folder, receipts, count in entries:
        for receipt in receipts:
            files.append(StoredFile(folder / receipt.name, receipt, row, sources))
            row += sum(receipt.rows.values())
        sources += count
    return files


def read_file(file: StoredFile) -> Documents:
    """All documents of a token file."""
    rows = {source + file.sources: count for source, count in file.receipt.rows.items()}
    return mapped_documents(file.path, file.first_row, rows)


def read_documents(files: Sequence[StoredFile], ranges: Sequence[Range]) -> Documents:
    """Documents of ranges, sorted by source, row and part.

    Groups are numbered over all of them, held-out ones and those without tokens included.
    """
    parts = []
    for each in ranges:
        documents = read_file(files[each.file])
        if (each.first, each.last) != (0, len(documents)):
            order = permuted(len(documents), each.order)
            documents = documents.take(np.sort(order[each.first : each.last]))
        parts.append(documents)
    return Documents.joined(parts) if parts else no_documents()


def held_out(documents: Documents, share: float, seed: int) -> Bools:
    """Mask of the documents that are in the validation split, a share of all.

    It depends on the seed and the row alone; rows of one group are held out together.
    """
    numbers = documents.id if documents.hashes is None else documents.hashes
    return drawn(stream(seed, Purpose.HOLDOUT), numbers, share)


def of_split(documents: Documents, split: str, share: float, seed: int) -> Documents:
    """The documents of one split."""
    if not share:
        return documents
    validation = held_out(documents, share, seed)
    return documents.take(validation if split == "validation" else ~validation)
