"""Convert the values that Python, YAML and the command line give to an option.

"64MB" is 64,000,000 bytes, "64MiB" is 67,108,864; "2k" tokens are 2,000, "2Ki" are 2,048; "1%" is
0.01.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import Field
from typing import Any, Literal, get_args, get_origin

from packprep.config.grammar.amounts import count_of, share_of, size_of
from packprep.config.grammar.phases import phase_tables
from packprep.config.grammar.rules import flag
from packprep.config.grammar.spellings import say
from packprep.config.stages import LEAST_SHARED
from packprep.support.errors import ConfigError, brief, nearest

_BELOW = {"max_length": 31, "max_row_size": 31}  # 2^31; all other numbers are below 2^63


def value_of(spec: "Field[Any]", value: Any) -> Any:
    """Return the value of an option as BuildConfig stores it.

    Raises ConfigError for a value of the wrong type or out of bounds.
    """
    if value is None and (spec.default is None or type(None) in get_args(spec.type)):
        return None
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if setting := spec.metadata["setting"]:
        return setting.parse(spec.name, value).written
    choices = get_args(spec.type) if get_origin(spec.type) is Literal else None
    if choices and value not in choices:
        raise ConfigError(f"{flag(spec.name)} is {brief(value)}{nearest(brief(value), choices)}")
    expected, convert = _kind(spec)
    if (converted := convert(value)) is None:
        raise ConfigError(f"{flag(spec.name)} is {brief(value)}, expected {expected}")
    if type(converted) is int:
        _check_bounds(spec, converted)
        if spec.name == "max_length" and isinstance(value, str) and value.strip()[-1] in "kK":
            binary = converted * 1024 // 1000
            say(f"max_length {value} is {converted:,} tokens; {value.strip()[:-1]}Ki is {binary:,}")
    return converted


def _check_bounds(spec: "Field[Any]", number: int) -> None:
    least, bits = spec.metadata["least"], _BELOW.get(spec.name, 63)
    least = -(2**63) if least is None else least
    if not least <= number < 2**bits:
        bound = f"at least {least}" if number < least else f"less than 2^{bits}"
        shown = f"{number:,}" if abs(number) < 2**64 else brief(number)
        raise ConfigError(f"{flag(spec.name)} is {shown}, expected {bound}")


def _kind(spec: "Field[Any]") -> tuple[str, Callable[[Any], Any]]:
    """Words for what an option takes, and the function of its value, None for a wrong one."""
    if spec.metadata["metavar"] == "SIZE":
        return "a size such as 500MB or 64MiB", _size
    if spec.metadata["metavar"] == "SHARE":
        return "a share such as 0.01 or 1%", _real
    if spec.name in _NAMED:
        return _NAMED[spec.name]
    if isinstance(spec.default, tuple):
        return "a list of names", _names
    of_type = (kind for base, kind in _TYPES.items() if spec.type in (base, base | None))
    return next(of_type, ("", lambda value: value))


def _size(value: Any) -> int | None:
    return size_of(value) if isinstance(value, str) else _whole(value)


def _whole(value: Any) -> int | None:
    number = count_of(value) if isinstance(value, str) else value
    return number if type(number) is int else None


def _real(value: Any) -> float | None:
    number = share_of(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if abs(number) < 2**63 or isinstance(number, float) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _shared(value: Any) -> int | None:
    switched = {"true": LEAST_SHARED, "false": 0}.get(str(value).lower())
    return _whole(value) if switched is None else switched


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _names(value: Any, kinds: tuple[type, ...] = (str,)) -> tuple[str, ...] | None:
    """Return a tuple of names or numbers from a list, or from one text with commas."""
    entries = [value] if isinstance(value, kinds) else value
    if not isinstance(entries, (list, tuple)) or not all(isinstance(e, kinds) for e in entries):
        return None
    return tuple(
        name for entry in entries for name in map(str.strip, str(entry).split(",")) if name
    )


def _sources(value: Any) -> tuple[str | dict[str, Any], ...] | None:
    """Return names and tables of sources; a single name or table needs no list."""
    value = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(source, (str, os.PathLike, Mapping)) for source in value
    ):
        return None
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


def _json(value: Any) -> str | None:
    """The text of a table of JSON values."""
    try:
        return value if isinstance(value, str) else json.dumps({**value}, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None


_TYPES: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    int: ("a whole number such as 2000, 2k or 2Ki", _whole),
    float: ("a number", _real),
    bool: ("true or false", _switch),
    str: ("text", _text),
}
_NAMED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "phases": ("tables", phase_tables),
    "share_prefixes": ("true, false or a whole number such as 32", _shared),
    "sources": ("a list of names, or of tables with path and weight", _sources),
    "template_variables": ('JSON such as {"enable_thinking": false}', _json),
    "weights": ("a list of numbers", lambda value: _names(value, (str, int, float))),
}
"""Words and function of each option that is not of a plain type, see `_kind`."""
