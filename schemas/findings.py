"""Faults of an output: each finding with its place.

A collection counts all and keeps the first.

A check tells a `Findings` what it found. One that collects lets the check go on; `StopAtFirst`
raises instead, so the writer, which stops at the first defect, and `verify`, which wants them all,
run the same code.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One defect.

    kind: a word or two, the same for defects of a kind. pack: number in the file, from 0.

    >>> str(Finding(kind="position", file="a.arrow", pack=17, token=5, what="it is 6, not 5"))
    'a.arrow pack 17 token 5: it is 6, not 5'
    """

    kind: str
    what: str
    file: str = ""
    pack: int | None = None
    segment: int | None = None
    token: int | None = None

    def __str__(self) -> str:
        numbers = {"pack": self.pack, "segment": self.segment, "token": self.token}
        place = " ".join(
            [
                self.file,
                *(f"{name} {number}" for name, number in numbers.items() if number is not None),
            ]
        ).strip()
        return f"{place}: {self.what}" if place else self.what


class Findings:
    """Findings in the order they came: of each kind the first `keep`, and the number of all."""

    def __init__(self, keep: int = 20) -> None:
        self.keep = keep
        self.kept: dict[str, list[Finding]] = {}
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """All there are, those that were not kept too."""
        return self.counts.total()

    def __iter__(self) -> Iterator[Finding]:
        return (finding for findings in self.kept.values() for finding in findings)

    def add(self, finding: Finding) -> None:
        self.many(finding.kind, np.zeros(1, np.int64), lambda _: finding)

    def many(
        self, kind: str, found: NDArray[np.integer[Any]], make: Callable[[int], Finding]
    ) -> None:
        """Any number of findings of one kind.

        found: what `make` turns into a finding, only for those that are kept.
        """
        if len(found):
            self.counts[kind] += len(found)
            kept = self.kept.setdefault(kind, [])
            kept.extend(make(int(number)) for number in found[: self.keep - len(kept)])

    def damaged(self, error: FormatError, file: str, pack: int | None = None) -> None:
        """A part that could not be read at all."""
        what = str(error).removeprefix(file).lstrip(" :")
        self.add(Finding(kind="damaged", file=file, pack=pack, what=what))

    def update(self, other: "Findings") -> None:
        """All of `other` behind these."""
        for kind, findings in other.kept.items():
            kept = self.kept.setdefault(kind, [])
            kept.extend(findings[: self.keep - len(kept)])
        self.counts.update(other.counts)


class StopAtFirst(Findings):
    """Raises FormatError with the first finding."""

    def many(
        self, kind: str, found: NDArray[np.integer[Any]], make: Callable[[int], Finding]
    ) -> None:
        if len(found):
            raise FormatError(str(make(int(found[0]))))

    def damaged(self, error: FormatError, file: str, pack: int | None = None) -> NoReturn:
        raise error
