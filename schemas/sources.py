"""Sources of an output, and its rows by name: SOURCE:ROW, as people and lists of rows give them."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .manifest import Manifest

_Row = TypeVar("_Row")


def split_row(name: str, example: str) -> tuple[str, int]:
    """Source and row of "SOURCE:ROW"; no source of a bare number.

    example: a source, for the ValueError about another name.
    """
    source, _, row = name.rpartition(":")
    if not row.isdecimal():
        raise ValueError(f"{name!r} is not SOURCE:ROW, for instance {example}:17")
    return source, int(row)


def source_number(source: str, names: Sequence[str], holder: str) -> int:
    """Number of the source with this path, or with a path that ends with it.

    names: of the sources of `holder`, such as "this output". Raises ValueError if none or several
    match.
    """
    numbers = [number for number, known in enumerate(names) if known == source]
    if not numbers:
        parts = Path(source).parts
        numbers = [
            number
            for number, known in enumerate(names)
            if Path(known).parts[-len(parts) :] == parts
        ]
    if len(numbers) == 1:
        return numbers[0]
    if numbers:
        listed = ", ".join(names[number] for number in numbers[:4])
        raise ValueError(
            f"{source} matches {len(numbers)} sources ({listed}); give more of the path"
        )
    close = get_close_matches(source, names[:100], n=1)
    end = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(names[:100])}"
    raise ValueError(f"{holder} has no source {source}; {end}")


def listed_rows(path: Path, find: Callable[[str], _Row]) -> Iterator[tuple[int, _Row]]:
    """Number of each line of a file that is not blank, from 1, and the row that it names.

    find: f(SOURCE:ROW) -> the row. Raises ValueError that names the line of a row that it refuses.
    """
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if name := line.strip():
            try:
                yield number, find(name)
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}") from None


class Sources:
    """Sources of an output, and the range of document ids of each."""

    def __init__(self, manifest: Manifest) -> None:
        sources, paths = manifest.data["sources"], manifest.run.get("source_paths")
        self.names = [str(path) for path in paths] if isinstance(paths, list) else []
        self.names += [f"source {number}" for number in range(len(self.names), len(sources))]
        self.rows = [int(source["documents"]) for source in sources]
        self.firsts = np.array([source["first_document"] for source in sources], np.int64)
        self.total = sum(self.rows)
        self.part_name = manifest.part_name
        if self.firsts.tolist() != [sum(self.rows[:number]) for number in range(len(sources))]:
            raise FormatError(
                "manifest.json has sources whose first_document is not the number of documents "
                "before it; restore the file"
            )

    def indices(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the source of each document."""
        return np.searchsorted(self.firsts, documents, side="right") - 1

    def place(self, document: int) -> tuple[str, int]:
        """Source of a document, and its row there."""
        source = int(self.indices(np.array([document]))[0])
        return self.names[source], document - int(self.firsts[source])

    def row(self, document: int) -> str:
        """Name of a document, such as "a.jsonl row 17"."""
        if not 0 <= document < self.total:
            return f"document {document}"
        return "{} row {}".format(*self.place(document))

    def document(self, name: str) -> int:
        """Document id of "SOURCE:ROW" or of a bare number.

        SOURCE: path of a source, or the end of one. Raises ValueError if no source or several
        match, or if the source has no such row.
        """
        source, row = split_row(name, self.names[0])
        if not source:
            if row >= self.total:
                raise ValueError(
                    f"there is no document {row}; the sources have {self.total:,} rows, numbered "
                    "from 0"
                )
            return row
        number = source_number(source, self.names, "this output")
        if row >= self.rows[number]:
            raise ValueError(
                f"{source} has {self.rows[number]:,} rows, numbered from 0; there is no row {row}"
            )
        return int(self.firsts[number]) + row

    def listed_documents(self, path: Path) -> NDArray[np.int64]:
        """Document ids of the rows in a file, a SOURCE:ROW a line, sorted.

        Raises ValueError that names the line of a row that does not exist.
        """
        documents = [document for _, document in listed_rows(path, self.document)]
        return np.unique(np.array(documents, np.int64))
