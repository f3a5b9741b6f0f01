"""Document ids to source and row."""

import numpy as np
import pytest

from packprep.inspect.policy import Sources
from packprep.schemas import FormatError, Manifest


def manifest(*sources: tuple[int, int], paths: list[str] | None = None) -> Manifest:
    """(first_document, documents) of each source."""
    table = [{"first_document": first, "documents": rows} for first, rows in sources]
    return Manifest(
        data={"sources": table}, run={} if paths is None else {"source_paths": paths}, sha256=""
    )


def test_a_source_without_rows_has_no_document() -> None:
    sources = Sources(manifest((0, 0), (0, 3), (3, 0), (3, 2), (5, 0)))
    assert sources.indices(np.arange(5)).tolist() == [1, 1, 1, 3, 3]
    assert sources.total == 5


def test_rows_are_named_by_path_or_by_the_number_of_the_source() -> None:
    sources = Sources(manifest((0, 3), (3, 2), paths=["a.jsonl"]))
    assert [sources.row(document) for document in (0, 2, 3, 5, -1)] == [
        "a.jsonl row 0",
        "a.jsonl row 2",
        "source 1 row 0",
        "document 5",
        "document -1",
    ]
    assert sources.place(4) == ("source 1", 1)


def test_first_documents_that_are_no_sums_are_refused() -> None:
    with pytest.raises(FormatError, match="not the number of documents before"):
        Sources(manifest((0, 3), (4, 2)))
