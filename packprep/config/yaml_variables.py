"""Variables of the environment in a YAML file: ${NAME}, ${NAME:default}; $${ is a plain ${.

A default may hold variables, ${NAME:${OTHER:text}}, which are needed only if NAME is not set.
A value that is not quoted is then read as YAML reads it: ${LENGTH:4096} is a number.
"""

import re
from collections.abc import Mapping
from typing import Any

from packprep.support.errors import ConfigError

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)([:}]))?")
_BRACKET = re.compile(r"\$\$\{|\$\{|\}")


def fill_variables(root: Any, loader: Any, environment: Mapping[str, str], where: str) -> None:
    """Replace the variables in the values of a document, in place.

    root: a node of PyYAML. loader: its loader, which says again what a value is. where: the file,
    for errors. Raises ConfigError for a variable that is not set and has no default; it names file
    and key.
    """
    nodes = [(root, "")]
    while nodes:
        node, key = nodes.pop()
        if isinstance(node.value, str):
            if "${" in node.value:
                node.value = _filled(node.value, environment, f"{where}: {key}")
                if node.style is None:  # not quoted
                    node.tag = loader.resolve(type(node), node.value, (True, False))
        elif isinstance(node.value, list):
            for number, child in enumerate(node.value):
                if isinstance(child, tuple):  # of a table
                    nodes.append((child[1], f"{key}.{child[0].value}".lstrip(".")))
                else:
                    nodes.append((child, f"{key}[{number}]"))


def _filled(text: str, environment: Mapping[str, str], where: str) -> str:
    """Return the text with the values of its variables, which are not read for variables again."""
    parts, place = list[str](), 0
    while match := _VARIABLE.search(text, place):
        parts.append(text[place : match.start()])
        name, place = match[1], match.end()
        if match[0] == "$${":
            parts.append("${")
            continue
        end = _end_of_default(text, place) if match[2] == ":" else place - 1
        if name is None or end < 0:
            raise ConfigError(
                f"{where} has {text[match.start() :][:40]!r}, expected ${{NAME}} or "
                "${NAME:default}; write $${ for a plain ${"
            )
        if name in environment:
            parts.append(environment[name])
        elif match[2] == ":":
            parts.append(_filled(text[place:end], environment, where))
        else:
            raise ConfigError(
                f"{where} needs the environment variable {name}, which is not set; set it, or "
                f"give a default: ${{{name}:...}}"
            )
        place = end + 1
    return "".join([*parts, text[place:]])


def _end_of_default(text: str, place: int) -> int:
    """Place of the bracket that ends a default, which begins at `place`; -1 if there is none.

    Example: "${A:${B}}", 4 -> 8
    """
    depth = 1
    for match in _BRACKET.finditer(text, place):
        depth += {"${": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.start()
    return -1


def escaped(text: str) -> str:
    """Return a text that stands for itself in a YAML file."""
    return text.replace("${", "$${")


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given."""
    return text.replace("$${", "${")
