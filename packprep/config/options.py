"""The fields of a build, from all stages, and each stage as a value."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from packprep.config.grammar.phases import LENGTHS, Phase, checked_phases
from packprep.config.stages import (
    Command,
    Cutting,
    Ordering,
    Packing,
    Parsing,
    Reading,
    Running,
    Tokenizing,
    Writing,
)

S = TypeVar("S")


def held(stage: type[S]) -> "cached_property[S]":
    """The fields of one stage as a value of it, an attribute of `BuildConfig`."""
    names = [spec.name for spec in fields(stage)]  # type: ignore[arg-type]

    def of(config: Any) -> S:
        return stage(**{name: getattr(config, name) for name in names})

    return cached_property(of)


# The last base has the first fields.
@dataclass(frozen=True, kw_only=True)
class Options(Command, Running, Writing, Ordering, Packing, Cutting, Tokenizing, Parsing, Reading):
    """The fields of `BuildConfig`."""

    def __post_init__(self) -> None:
        """Keep the values unchanged; `BuildConfig` checks them here."""

    def phase_list(self) -> tuple[Phase, ...]:
        """One entry for each of `phases`; empty for a build without phases."""
        if not self.phases:
            return ()
        entries = self.entries()
        return checked_phases(
            self.phases,
            [entry.label for entry in entries],
            [entry.weight for entry in entries],
            self.max_tokens,
            {name: getattr(self, name) for name in LENGTHS},
        )
