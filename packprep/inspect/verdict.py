"""Result of `packprep verify`, which the checks fill in one after another."""

from dataclasses import dataclass, field

from packprep.schemas.findings import Findings


@dataclass(kw_only=True)
class Verdict:
    """Faults found, and counts of what was checked.

    not_checked: a sentence for each check that was not possible. against: the tokenizer of a
    trainer that ids were compared with, and on how many texts.
    """

    output: str
    level: str
    findings: Findings = field(default_factory=Findings)
    not_checked: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    packs: int = 0
    segments: int = 0
    tokens: int = 0
    sources: list[dict[str, object]] = field(default_factory=list)
    sampled: int = 0  # rows tokenized again
    against: str = ""

    @property
    def sound(self) -> bool:
        return not len(self.findings)
