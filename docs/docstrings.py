"""Prepares docstrings and defaults for mkdocstrings.

Docstrings are plain text with examples. The default of an option is the first argument of a call.
"""

import re
from typing import Any

import griffe

OPTIONS = ("option", "number")
"""The functions of packprep/config/options.py that make the fields of BuildConfig."""
_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_CODE = re.compile(r"(`[^`]+`)")


def markdown_of(docstring: str) -> str:
    """The docstring with its examples in blocks, and no character that Markdown would take away.

    Example: "a * b [c]" -> a string that Markdown shows as "a * b [c]"
    """
    parts = []
    end = 0
    for example in _EXAMPLE.finditer(docstring):
        parts += [_escaped(docstring[end : example.start()]), f"```pycon\n{example[0]}\n```"]
        end = example.end()
    return "".join([*parts, _escaped(docstring[end:])])


def _escaped(text: str) -> str:
    pieces = _CODE.split(text)
    pieces[::2] = [re.sub(r"([\\*_\[\]<])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


class PlainDocstrings(griffe.Extension):
    """mkdocstrings calls it for each object that it loads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown_of(obj.docstring.value)
        if not isinstance(obj, griffe.Attribute):
            return
        if isinstance(obj.value, griffe.ExprCall) and str(obj.value.function) in OPTIONS:
            obj.value = obj.value.arguments[0]
