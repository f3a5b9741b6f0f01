"""Variables of the environment in a YAML file: ${NAME}, ${NAME:default}; $${ is a plain ${.

A value that is not quoted is then read as YAML reads it: ${LENGTH:4096} is a number.
"""

import re
from collections.abc import Mapping
from typing import Any

from packprep.support.errors import ConfigError

_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\})?")


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
    def value(match: "re.Match[str]") -> str:
        name, default = match[1], match[2]
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ConfigError(
                f"{where} has {text[match.start() :][:40]!r}, expected ${{NAME}} or "
                "${NAME:default}; write $${ for a plain ${"
            )
        if (found := environment.get(name, default)) is None:
            raise ConfigError(
                f"{where} needs the environment variable {name}, which is not set; set it, or "
                f"give a default: ${{{name}:...}}"
            )
        return found

    return _VARIABLE.sub(value, text)


def escaped(text: str) -> str:
    """Return a text that stands for itself in a YAML file."""
    return text.replace("${", "$${")


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given."""
    return text.replace("$${", "${")
