"""The checked options of one build, from the command line, a YAML file or Python.

stages.py has the options, values.py converts their values, checks.py refuses wrong ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from packprep.config import checks
from packprep.config.aliases import ALIASES, default_overflow, recorded, respelled
from packprep.config.grammar import mix
from packprep.config.grammar.label_columns import LossKind, labels_fit, with_label_kind
from packprep.config.grammar.option import COLUMN_CHOICE, TRAIN_FIELDS
from packprep.config.grammar.phases import Phase
from packprep.config.grammar.settings import AUTO, OrderSetting
from packprep.config.grammar.source_names import IDS_COLUMN, HubPart, names_token_files
from packprep.config.grammar.spellings import gone, option_here, say
from packprep.config.keywords import unknown_option
from packprep.config.options import Options, held
from packprep.config.pack_rules import MixRules, PackRules
from packprep.config.recorded import as_recorded, value_before
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
    options_in,
    replaced_by,
)
from packprep.config.values import value_of
from packprep.support.errors import ConfigError, nearest

if TYPE_CHECKING:
    from packprep.support.arrays import Int64


# Not decorated: it inherits a frozen dataclass, and compiling the methods again costs 15 ms.
class BuildConfig(Options):
    """Options of one build, checked at construction.

    A wrong value raises ConfigError before any work is done. An option is an attribute; all of one
    stage are one value, which functions of that stage take.

    Example: BuildConfig(sources=["docs/*.jsonl"], output="packed", tokenizer="tokenizer.json",
    max_length=8192)
    """

    reading = held(Reading)
    parsing = held(Parsing)
    tokenizing = held(Tokenizing)
    cutting = held(Cutting)
    packing = held(Packing)
    ordering = held(Ordering)
    writing = held(Writing)
    running = held(Running)
    command = held(Command)
    given: frozenset[str]
    """Names of the options that have no default here: the user gave them."""

    if not TYPE_CHECKING:  # the types are those of the fields

        @wraps(Options.__init__)
        def __init__(self, **options: Any) -> None:
            for name in options:
                if option := option_here(name):
                    raise ConfigError(f"{name} is called {option} here")
                if answer := gone(name):
                    raise ConfigError(answer)
            options = respelled(options, say)
            known = {spec.name for spec in fields(self)}
            for name in options:
                if name not in known:
                    raise unknown_option(name)
            object.__setattr__(self, "given", frozenset(options))
            super().__init__(**{"overflow": default_overflow(options)} | options)

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, value_of(spec, getattr(self, spec.name)))
        if self.input_ids_column is None and not self.is_rendered and self._has_token_files():
            object.__setattr__(self, "input_ids_column", IDS_COLUMN)
        if self.executor == "array" and self.part is None:
            object.__setattr__(self, "part", AUTO)
        elif self.executor == "local" and self.part is not None:
            object.__setattr__(self, "executor", "array")
        if self.materialize == "auto":
            object.__setattr__(self, "materialize", "index" if self.epochs > 1 else "shards")
        if self.cost_of is not None:
            order = OrderSetting.parse("order", self.order).of_model(self.cost_of)
            object.__setattr__(self, "order", str(order))
            object.__setattr__(self, "cost_of", None)
        if phases := self.phase_list():
            longest = max(phase.max_length for phase in phases)
            object.__setattr__(self, "phases", _written_out(self.phases, phases))
            object.__setattr__(self, "max_length", longest)
        checks.check(self)
        self._check_sources()
        self._check_phases()
        for key, choice in (("columns", COLUMN_CHOICE), ("train_fields", TRAIN_FIELDS)):
            chosen = getattr(self, key)
            object.__setattr__(self, key, tuple(name for name in choice if name in chosen))

    def _has_token_files(self) -> bool:
        return names_token_files(path for entry in self.entries() for path in entry.paths)

    def _check_sources(self) -> None:
        """Raise ConfigError for the first wrong option in a table of `sources`."""
        for entry in self.entries():
            for key in mix.NUMBERS:
                if key in entry.reading and (entry.reading[key] is None) != (
                    getattr(self, key) is None
                ):
                    raise ConfigError(
                        f"source {entry.label} and the build differ in {key}: either all sources "
                        "have it or none; set it for the build too"
                    )
            if not labels_fit(entry.reading, self.labels_column):
                raise ConfigError(
                    f"source {entry.label} and the build differ in labels_column: either all "
                    "sources have labels or all have a mask; set it for the build too"
                )
            try:
                self.of_source(entry.reading)
            except ConfigError as error:
                raise ConfigError(f"source {entry.label}: {error}") from None

    def _check_phases(self) -> None:
        """Raise ConfigError for the first phase whose options are wrong for the build."""
        for number, phase in enumerate(self.phase_list(), 1):
            try:
                self.in_phase(phase)
            except ConfigError as error:
                raise ConfigError(f"phase {number}: {error}") from None

    def in_phase(self, phase: Phase) -> "BuildConfig":
        """The config that cuts and packs the documents of a phase."""
        return replace(
            self,
            phases=(),
            sources=(),
            weights=(),
            max_epochs=1.0,
            max_length=phase.max_length,
            min_document_tokens=phase.min_document_tokens,
            max_document_tokens=phase.max_document_tokens,
        )

    def pack_rules(self, skipped: "Int64 | None" = None) -> PackRules:
        """Rules of the packs of a window, without phases. skipped: see `PackRules`."""
        return PackRules(
            cutting=self.cutting,
            packing=self.packing,
            ordering=self.ordering,
            repack=self.epochs > 1,
            skipped=skipped,
        )

    def mix_rules(self, skipped: "Int64 | None" = None) -> MixRules:
        """Rules of the draw of a mix. skipped: see `PackRules`."""
        rules, phases = self.pack_rules(skipped), self.phase_list()
        return MixRules(
            entries=self.entries(),
            phases=phases,
            packs=tuple(rules.in_phase(phase) for phase in phases) or (rules,),
            epochs=self.epochs,
            holdout=self.holdout,
            max_tokens=self.max_tokens,
            window=self.window,
        )

    def of_source(self, options: Mapping[str, Any]) -> "BuildConfig":
        """The config to read a source with: this one, changed by the `options` of the source."""
        if not options:
            return self
        own = {key: value for key, value in options.items() if key not in HubPart._fields}
        own = replaced_by(own, self.labels_column)
        return replace(self, sources=(), weights=(), max_epochs=1.0, phases=(), **own)

    def with_label_kind(self, kind: LossKind | None) -> "BuildConfig":
        """The config with the kind of labels that the first rows have."""
        options = {"labels_column": self.labels_column, "sources": self.sources}
        return self if kind is None else replace(self, **with_label_kind(options, kind))

    def identity(self) -> dict[str, Any]:
        """The options that decide the bytes of the output, by their names in manifests.

        Sources and tokenizer are not among them: their digests are recorded instead. Nor are later
        options with the value of builds before them, see `option`.
        """
        options = {
            name: part
            for spec in fields(self)
            if spec.metadata["identity"] and spec.name not in _NEVER_BYTES
            for value in [getattr(self, spec.name)]
            if spec.metadata["identity"] is True or as_recorded(value) != value_before(spec.name)
            for name, part in recorded(spec.name, value).items()
        }
        return options | self.label_columns.recorded()


_NEVER_BYTES = options_in(Running, Command)


def _written_out(
    tables: Sequence[Mapping[str, Any]], phases: Sequence[Phase]
) -> tuple[dict[str, Any], ...]:
    """The tables of `phases` with the max_length of each.

    max_length of the build is the largest, so it is no longer the default of a phase.
    """
    return tuple(
        {**table, "max_length": phase.max_length}
        for table, phase in zip(tables, phases, strict=True)
    )


def check_keys(options: Iterable[str], where: str, extra: Sequence[str] = ()) -> None:
    """Raise ConfigError for an unknown name, with the name to use.

    where: the file, for the error. extra: names allowed besides the options of a build.
    """
    known = [*(spec.name for spec in fields(BuildConfig)), *extra]
    for key in options:
        if key not in known and key not in ALIASES:
            if option := option_here(key):
                raise ConfigError(f"{where}: {key} is called {option} here")
            if answer := gone(key):
                raise ConfigError(f"{where}: {answer}")
            raise ConfigError(f"{where} has an unknown option {key!r}{nearest(key, known)}")
