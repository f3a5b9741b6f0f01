"""Source and row of a document id, from the sources and paths in the manifest."""

import numpy as np

from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.support.arrays import Int64


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

    def indices(self, documents: Int64) -> Int64:
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
