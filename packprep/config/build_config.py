"""The options of one build, checked.

The command line, a YAML file and Python all give one BuildConfig.

fields.py has the options; values.py reads a value; checks.py says which values and combinations are
refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from packprep.config import checks, mix
from packprep.config.executors import MERGE as MERGE
from packprep.config.options import COLUMN_CHOICE as COLUMN_CHOICE
from packprep.config.options import Options
from packprep.config.values import parse_size as parse_size
from packprep.config.values import value_of
from packprep.support.errors import ConfigError, nearest


class BuildConfig(
    Options
):  # a frozen dataclass by inheritance: compiling its methods twice is 15 ms at every start
    """Options of one build, checked at construction.

    A wrong value raises ConfigError before any work is done.

    Example: BuildConfig(sources=["docs/*.jsonl"], output="packed", tokenizer="tokenizer.json",
    max_length=8192)
    """

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, value_of(spec, getattr(self, spec.name)))
        checks.check(self)
        self._check_sources()
        object.__setattr__(
            self, "columns", tuple(name for name in COLUMN_CHOICE if name in self.columns)
        )

    def _check_sources(self) -> None:
        """Raise ConfigError with the first wrong option of those that each source has."""
        for entry in self.entries():
            for key in mix.NUMBERS:
                if key in entry.reading and (entry.reading[key] is None) != (
                    getattr(self, key) is None
                ):
                    raise ConfigError(
                        f"source {entry.label} alone has {key}: rows of one build are alike; give "
                        "the build one too"
                    )
            try:
                self.reading(entry.reading)
            except ConfigError as error:
                raise ConfigError(f"source {entry.label}: {error}") from None

    def reading(self, own: Mapping[str, Any]) -> "BuildConfig":
        """These options with those that a source has for itself, to read its rows with."""
        if not own:
            return self
        if ("text_column" in own) != (
            "text_template" in own
        ):  # either says what the text is, in place of both
            own = {"text_column": "text", "text_template": None} | dict(own)
        return replace(self, sources=(), weights=(), max_epochs=1.0, **own)

    def identity(self) -> dict[str, Any]:
        """The options that decide the bytes of the output.

        Sources and tokenizer enter by digest instead.
        """
        return {
            spec.name: list(value)
            if isinstance(value := getattr(self, spec.name), tuple)
            else value
            for spec in fields(self)
            if spec.metadata["identity"]
        }


def check_keys(options: dict[str, Any], where: str, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The same options; an unknown name raises ConfigError that suggests the nearest one."""
    known = [*(spec.name for spec in fields(BuildConfig)), *extra]
    for key in options:
        if key not in known:
            raise ConfigError(f"{where} has an unknown option {key!r}{nearest(key, known)}")
    return options
