"""Sources of an output, and its rows by name: SOURCE:ROW, as people and lists of rows give them."""

from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .manifest import Manifest


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
        source, _, row = name.rpartition(":")
        if not row.isdecimal():
            raise ValueError(f"{name!r} is not SOURCE:ROW, for instance {self.names[0]}:17")
        if not source:
            if int(row) >= self.total:
                raise ValueError(
                    f"there is no document {row}; the sources have {self.total:,} rows, numbered "
                    "from 0"
                )
            return int(row)
        numbers = [number for number, known in enumerate(self.names) if known == source]
        if not numbers:
            parts = Path(source).parts
            numbers = [
                number
                for number, known in enumerate(self.names)
                if Path(known).parts[-len(parts) :] == parts
            ]
        if len(numbers) != 1:
            listed = ", ".join(self.names[number] for number in numbers[:4])
            if numbers:
                raise ValueError(
                    f"{source} matches {len(numbers)} sources ({listed}); give more of the path"
                )
            close = get_close_matches(source, self.names[:100], n=1)
            end = f"did you mean {close[0]!r}?" if close else f"expected one of {self._listed}"
            raise ValueError(f"this output has no source {source}; {end}")
        if int(row) >= self.rows[numbers[0]]:
            raise ValueError(
                f"{source} has {self.rows[numbers[0]]:,} rows, numbered from 0; there is no row "
                f"{row}"
            )
        return int(self.firsts[numbers[0]]) + int(row)

    @property
    def _listed(self) -> str:
        return ", ".join(self.names[:100])

    def listed_documents(self, path: Path) -> NDArray[np.int64]:
        """Document ids of the rows in a file, a SOURCE:ROW a line, sorted.

        Raises ValueError that names the line of a row that does not exist.
        """
        documents = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if name := line.strip():
                try:
                    documents.append(self.document(name))
                except ValueError as error:
                    raise ValueError(f"{path} line {number}: {error}") from None
        return np.unique(np.array(documents, np.int64))
