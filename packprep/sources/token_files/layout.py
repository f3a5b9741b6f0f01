"""Tokens of a file and where its documents end: one record for every kind of token file.

Documents are next to each other, from the first token to the last, as every tool writes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.errors import FormatError

# Tokens read at once: one read is long enough for a disk, and short enough for the caches.
_TOKENS = 1 << 20
_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """One file of tokens.

    first_byte: of the first token.
    offsets: tokens before each document, and of all, int64 [documents + 1].
    mask: a file with a byte for each token, 1 where there is a loss.
    """

    data: Path
    dtype: np.dtype[Any]
    offsets: NDArray[np.int64]
    first_byte: int = 0
    mask: Path | None = None
    mask_first_byte: int = 0

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    def runs(self, first: int = 0) -> Iterator[tuple[int, int]]:
        """Ranges of documents, from `first` on, with about 1 M tokens each."""
        while first < self.documents:
            goal = self.offsets[first] + _TOKENS
            last = int(np.searchsorted(self.offsets, goal, side="right")) - 1
            last = min(max(last, first + 1), first + _ROWS, self.documents)
            yield first, last
            first = last

    def tokens(self, first: int, last: int) -> NDArray[Any]:
        """Ids of documents first to last - 1, one after another."""
        at = self.first_byte + int(self.offsets[first]) * self.dtype.itemsize
        return _values(self.data, self.dtype, at, int(self.offsets[last] - self.offsets[first]))

    def mask_values(self, first: int, last: int) -> NDArray[np.uint8]:
        """Bytes of the mask, as `tokens`."""
        assert self.mask is not None
        count = int(self.offsets[last] - self.offsets[first])
        at = self.mask_first_byte + int(self.offsets[first])
        return _values(self.mask, np.dtype(np.uint8), at, count)


def _values(path: Path, dtype: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    """Read, not mapped: a file that shrinks while it is mapped would end the process."""
    values = np.fromfile(path, dtype, count, offset=at)
    if len(values) < count:
        raise FormatError(
            f"{path} ends within the {count:,} values from byte {at:,} on: it was cut while it was "
            "read"
        )
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def check_rising(offsets: NDArray[np.int64], where: str) -> None:
    """Raise FormatError for a document that ends before it begins."""
    for row in np.flatnonzero(offsets[1:] < offsets[:-1]):
        raise FormatError(
            f"{where} segment {row}: it begins at token {offsets[row]:,} and ends at "
            f"{offsets[row + 1]:,}, before its beginning"
        )


def width_of(size: int, tokens: int) -> int | None:
    """Bytes of a token in a file of this size without a header; None if no width fits.

    Example: 12 bytes and 6 tokens -> 2; 12 bytes and 5 tokens -> None
    """
    return next((width for width in (1, 2, 4, 8) if tokens * width == size), None)


UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
"""Types of ids by their width, in files that do not name a type."""
