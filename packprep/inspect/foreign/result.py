"""Result of checking files of other tools, and names of files in it."""

from dataclasses import dataclass, field
from pathlib import Path

from packprep.schemas.findings import Findings


@dataclass(kw_only=True)
class ForeignResult:
    """Faults found, and counts of what was checked.

    vocab_size: ids are below it; None if it is not known. not_checked: a sentence for each check
    that was not possible.
    """

    findings: Findings
    vocab_size: int | None
    not_checked: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    packs: int = 0
    segments: int = 0
    tokens: int = 0

    def count_file(self, path: Path) -> None:
        self.files += 1
        self.bytes += path.stat().st_size

    def say(self, sentence: str) -> None:
        """Add a sentence to `not_checked`, once."""
        if sentence not in self.not_checked:
            self.not_checked.append(sentence)
