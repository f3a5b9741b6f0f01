"""Rules of the packs of a window, and of the draw of a mix, as values."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packprep.config.grammar.mix import Entry
from packprep.config.grammar.phases import Phase
from packprep.config.stages import Cutting, Ordering, Packing

if TYPE_CHECKING:
    from packprep.support.arrays import Int64


@dataclass(frozen=True, kw_only=True)
class PackRules:
    """Rules of cutting, packing and ordering the documents of a window.

    cutting, packing, ordering: options of a build.
    repack: True if another epoch packs the same documents, so that neighbours must change.
    skipped: ids of the documents of `cutting.skip_rows`; None if it lists none.
    """

    cutting: Cutting
    packing: Packing
    ordering: Ordering
    repack: bool = False
    skipped: "Int64 | None" = field(default=None, compare=False)

    def in_phase(self, phase: Phase) -> "PackRules":
        """The rules of a phase, which has lengths of its own."""
        return replace(
            self,
            cutting=replace(
                self.cutting,
                max_length=phase.max_length,
                min_document_tokens=phase.min_document_tokens,
                max_document_tokens=phase.max_document_tokens,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class MixRules:
    """Rules of drawing the documents of a mix from its sources.

    entries: the sources. phases: empty without phases. packs: rules of each phase; of the build, if
    it has no phases.
    epochs: packings of the documents.
    holdout: share of the documents of the validation split.
    max_tokens: tokens of the mix; None for as many as it can have.
    window: bytes of text of one window.
    """

    entries: tuple[Entry, ...]
    phases: tuple[Phase, ...]
    packs: tuple[PackRules, ...]
    epochs: int
    holdout: float
    max_tokens: int | None
    window: int

    @property
    def ordering(self) -> Ordering:
        """The order of packs, which is that of the build in every phase."""
        return self.packs[0].ordering
