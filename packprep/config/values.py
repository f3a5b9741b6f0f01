"""Convert the values that Python, YAML and the command line give to an option.

"64MB" is 64,000,000 bytes, "64MiB" is 67,108,864; "2k" tokens are 2,000, "2Ki" are 2,048; "1%" is
0.01.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, Literal, get_args, get_origin

from packprep.config.amounts import count_of, share_of
from packprep.config.phases import phase_tables
from packprep.config.spellings import say
from packprep.support.errors import ConfigError, brief, nearest

_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


def value_of(spec: "Field[Any]", value: Any) -> Any:
    """Return the value of an option as BuildConfig stores it.

    Raises ConfigError for a value of the wrong type.
    """
    if spec.metadata["size"]:
        value = parse_size(value, spec.name)
    elif spec.name == "sources":
        value = _sources(value)
    elif spec.name == "phases":
        value = phase_tables(_loaded(value))
    elif isinstance(spec.default, tuple):
        value = _names(spec.name, value)
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif spec.name == "template_variables" and isinstance(value, Mapping):
        value = _json(value)
    elif spec.name == "task_index" and type(value) is int:
        value = str(value)
    elif isinstance(value, str):
        value = _number(spec, value)
    _check_type(spec, value)
    return float(value) if spec.type is float else value


def _number(spec: "Field[Any]", text: str) -> Any:
    """Return the number of a text for an option that is a number; else the text."""
    if spec.type in (int, int | None):
        if (count := count_of(text)) is None:
            raise ConfigError(
                f"{spec.name} is {brief(text)}, expected a whole number such as 2000, 2k or 2Ki"
            )
        if spec.name == "max_length" and text.strip()[-1] in "kK":
            binary = count * 1024 // 1000
            say(f"max_length {text} is {count:,} tokens; {text.strip()[:-1]}Ki is {binary:,}")
        return count
    if spec.type is float:
        if (share := share_of(text)) is None:
            example = "a share such as 0.01 or 1%"
            expected = example if spec.metadata["metavar"] == "SHARE" else "a number"
            raise ConfigError(f"{spec.name} is {brief(text)}, expected {expected}")
        return share
    return text


def _check_type(spec: "Field[Any]", value: Any) -> None:
    if get_origin(spec.type) is Literal:
        choices = get_args(spec.type)
        if value not in choices:
            raise ConfigError(f"{spec.name} is {brief(value)}{nearest(brief(value), choices)}")
        return
    optional = value is None and spec.default is None
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    expected: type | None = next((base for base in kind if spec.type in (base, base | None)), None)
    if expected is None or optional:
        return
    matches = isinstance(value, (int, float) if expected is float else expected)
    if not matches or (isinstance(value, bool) and expected is not bool):
        raise ConfigError(f"{spec.name} is {brief(value)}, expected {kind[expected]}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{spec.name} is {brief(value)}, expected a 64-bit integer")


def _names(key: str, value: Any) -> tuple[str, ...]:
    """Return a tuple of names or numbers from a list, or from one text with commas."""
    entries = (
        [value]
        if isinstance(value, str) or (key == "weights" and isinstance(value, (int, float)))
        else value
    )
    kinds = (str, int, float) if key == "weights" else (str,)
    if not isinstance(entries, (list, tuple)) or not all(isinstance(e, kinds) for e in entries):
        raise ConfigError(
            f"{key} is {brief(value)}, expected a list of "
            f"{'numbers' if key == 'weights' else 'names'}"
        )
    return tuple(
        name for entry in entries for name in map(str.strip, str(entry).split(",")) if name
    )


def _sources(value: Any) -> tuple[str | dict[str, Any], ...]:
    """Return names and tables of sources; a single name or table needs no list."""
    value = [value] if isinstance(value, (str, os.PathLike, Mapping)) else value
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(source, (str, os.PathLike, Mapping)) for source in value
    ):
        raise ConfigError(
            f"sources is {brief(value)}, expected a list of names, or of tables with path and "
            "weight"
        )
    return tuple(
        _table(source) if isinstance(source, Mapping) else os.fspath(source) for source in value
    )


def _table(source: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the table of a source with keys spelled like options: max_epochs, not max-epochs."""
    table = {str(key).replace("-", "_"): value for key, value in source.items()}
    paths = table.get("path")
    if isinstance(paths, (list, tuple)):
        table["path"] = [
            os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths
        ]
    elif isinstance(paths, os.PathLike):
        table["path"] = os.fspath(paths)
    return table


def _loaded(value: Any) -> Any:
    """Return phases that the command line gives as JSON; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _json(variables: Mapping[Any, Any]) -> str:
    try:
        return json.dumps(variables, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"template_variables is {brief(variables)}, expected JSON values: {error}"
        ) from None


def parse_size(value: int | str, key: str) -> int:
    """Return the bytes of "64MB", "1.5GiB", "4096" or 4096."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]I?)?B?\s*", str(value).upper())
    try:
        if match is None:
            raise ValueError
        return int(float(match[1]) * _UNITS[match[2] or ""])
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{key} is {brief(value)}, expected a size such as 500MB or 64MiB"
        ) from None
