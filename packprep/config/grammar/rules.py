"""Refusals as data: a sentence, and the condition under which it is said."""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from packprep.support.errors import ConfigError, brief, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A sentence that refuses a subject, such as the options of a build.

    sentence: names options as flags, see ConfigError. `{name}` is an attribute of the subject, and
    `{name!r}` is cut if it is long.
    wrong: true for a subject to refuse. A mapping has more values for the sentence, and an iterator
    the mappings of all that is wrong.
    """

    sentence: str
    wrong: Callable[[T], object]


def flag(option: str) -> str:
    """The option as the command line spells it: --max-length for max_length."""
    return "--" + option.replace("_", "-")


def enforce(rules: Sequence[Rule[T]], subject: T) -> None:
    """Raise ConfigError for the first rule that a subject breaks."""
    for rule in rules:
        found = rule.wrong(subject)
        if wrong := next(found, None) if isinstance(found, Iterator) else found:
            raise ConfigError(_Sentence(subject, wrong).vformat(rule.sentence, (), {}))


def unknown(names: Iterable[object], known: Iterable[str]) -> Iterator[Mapping[str, object]]:
    """Names that are unknown, and as `near` the end of a sentence: the name that may be meant."""
    known = [*known]
    return (
        {"name": name, "near": nearest(str(name)[:100], known)}
        for name in names
        if name not in known
    )


class _Sentence(string.Formatter):
    """Fills in the attributes of a subject, and the values that a rule found."""

    def __init__(self, subject: object, found: object) -> None:
        self._subject = subject
        self._found: Mapping[Any, object] = found if isinstance(found, Mapping) else {}

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._found[key] if key in self._found else getattr(self._subject, str(key))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return brief(value) if conversion == "r" else value
