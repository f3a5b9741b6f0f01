"""Beginning and end of a slice of the input.

The base of every record about a slice, whether it is measured, read or tokenized.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Position:
    """The beginning of slice `slice` of unit `unit`: document `first_document` is its first."""

    unit: int = 0
    slice: int = 0
    first_document: int = 0


@dataclass(frozen=True, kw_only=True)
class Extent(Position):
    """A slice from its beginning to its end. text_bytes: UTF-8, or four for each id."""

    documents: int
    text_bytes: int

    @property
    def end(self) -> int:
        """Number of the first document after it."""
        return self.first_document + self.documents

    @property
    def documents_made(self) -> int:
        """Documents to pack."""
        return self.documents

    @property
    def extent(self) -> "Extent":
        """Beginning and end alone: equal of two records about the same slice."""
        return Extent(**{field.name: getattr(self, field.name) for field in fields(Extent)})
