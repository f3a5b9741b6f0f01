"""Findings: defects of an output, each with its place.

A check reports defects to a `Findings`, which counts all and keeps the first of each kind.
`StopAtFirst` raises instead. So the writer, which stops at the first defect, and `verify`, which
collects all, run the same checks.
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

    kind: one or two words, equal for defects of one kind. pack: number in the file, from 0.

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
    """Findings in order of arrival: the first `keep` of each kind, and the number of all."""

    def __init__(self, keep: int = 20) -> None:
        self.keep = keep
        self.kept: dict[str, list[Finding]] = {}
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Number of all findings, including those not kept."""
        return self.counts.total()

    def __iter__(self) -> Iterator[Finding]:
        return (finding for findings in self.kept.values() for finding in findings)

    def add(self, finding: Finding) -> None:
        """Add one finding."""
        self.many(finding.kind, np.zeros(1, np.int64), lambda _: finding)

    def many(
        self, kind: str, places: NDArray[np.integer[Any]], make: Callable[[int], Finding]
    ) -> None:
        """Add any number of findings of one kind.

        places: numbers that `make` turns into findings, called only for those that are kept.
        """
        if len(places):
            self.counts[kind] += len(places)
            kept = self.kept.setdefault(kind, [])
            kept.extend(make(int(number)) for number in places[: self.keep - len(kept)])

    def damaged(self, error: FormatError, file: str, pack: int | None = None) -> None:
        """Add a file, or a part of one, that cannot be read at all."""
        what = str(error).removeprefix(file).lstrip(" :")
        what = f"it {what}" if what.startswith(("is ", "has ")) else what
        self.add(Finding(kind="damaged", file=file, pack=pack, what=what))

    def update(self, other: "Findings") -> None:
        """Append all findings of `other`."""
        for kind, findings in other.kept.items():
            kept = self.kept.setdefault(kind, [])
            kept.extend(findings[: self.keep - len(kept)])
        self.counts.update(other.counts)


class StopAtFirst(Findings):
    """Findings that raise FormatError at the first one."""

    def many(
        self, kind: str, places: NDArray[np.integer[Any]], make: Callable[[int], Finding]
    ) -> None:
        if len(places):
            raise FormatError(str(make(int(places[0]))))

    def damaged(self, error: FormatError, file: str, pack: int | None = None) -> NoReturn:
        raise error
