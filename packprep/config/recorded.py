"""Options of a record: missing ones, defaults that changed, and how to give them."""

import shlex
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from packprep.config.aliases import from_recorded
from packprep.config.grammar.rules import flag
from packprep.config.options import Options
from packprep.config.values import value_of
from packprep.support.errors import ConfigError

_OPTIONS: Mapping[str, "Field[Any]"] = {spec.name: spec for spec in fields(Options)}


def as_recorded(value: Any) -> Any:
    """The value of an option as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def named_now(record: Mapping[str, object]) -> dict[str, object]:
    """The options of an identity by their names now, each as JSON has it; others unchanged."""
    return {name: _as_now(name, value) for name, value in from_recorded(record).items()}


def _as_now(name: str, value: object) -> object:
    try:
        return as_recorded(value_of(_OPTIONS[name], value)) if name in _OPTIONS else value
    except ConfigError:  # of a later packprep
        return value


def earlier_defaults(name: str) -> list[Any]:
    """Defaults that an option had before its present one, the first one first."""
    if (spec := _OPTIONS.get(name)) is None:
        return []
    return [as_recorded(value_of(spec, value)) for value in spec.metadata["earlier"]]


def value_before(name: str) -> Any:
    """Value of an option that a record does not have: as builds were before the option."""
    if (spec := _OPTIONS.get(name)) is None:
        return None
    return [*earlier_defaults(name), as_recorded(value_of(spec, spec.default))][0]


def first_defaults() -> dict[str, Any]:
    """Values of the options whose default changed, for a record without them."""
    specs = (spec for spec in fields(Options) if spec.metadata["earlier"])
    return {spec.name: spec.metadata["earlier"][0] for spec in specs}


def as_typed(settings: Mapping[str, object]) -> str:
    """Values of options as a user gives them, without what is no option."""
    return " ".join(
        _typed(spec, value) for name, value in settings.items() if (spec := _OPTIONS.get(name))
    )


def _typed(spec: "Field[Any]", value: object) -> str:
    """A value as it is typed; None has no flag, and is null in YAML."""
    option = flag(spec.name)
    if value is None:
        return f"no {option}" if spec.default is None else f"{spec.name}: null"
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    return f"{option} {shlex.quote(','.join(value) if isinstance(value, list) else str(value))}"
