"""A template in Python: FILE.py:FUNCTION, a function that makes pieces of the messages of a row.

    def render(messages, tools, **variables):
        return [{"text": "<|user|>Hi<|end|>", "train": False}, {"text": "Hello", "train": True}]

It is for tokenizers whose template is code, and it is code, so only the command line, a
configuration file or Python names it. The digest of its file decides the output: the bytes of the
digest are those that run. A module that the file imports is not in the digest.
"""

import copy
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

from ..support.errors import ConfigError, nearest
from .marks import Specials
from .pieces import read_pieces
from .rendering import left_out, own_specials
from .template import as_object, read_file, with_arguments
from .types import BadRowError, Conversation, Document, Piece, RenderError


@dataclass(frozen=True, kw_only=True)
class FunctionTemplate:
    """A function of the user. source: content of its file."""

    path: str
    function: str
    source: bytes = field(repr=False)
    variables: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """All that decides its pieces, as JSON."""
        digest = hashlib.sha256(self.source).hexdigest()
        return {"function": self.function, "sha256": digest, "variables": dict(self.variables)}

    def pieces(self, conversation: Conversation, vocab_size: int) -> list[Piece]:
        """The pieces that the function makes. Raises RenderError for any failure.

        Variables of the row win over those of the build. Messages that are not trained have
        `train: False`. The function gets copies, which it may change.
        """
        messages: list[Any] = [
            message | {"train": False} if number in conversation.untrained else message
            for number, message in enumerate(conversation.messages)
        ]
        name = f"{self.path}:{self.function}"
        variables = {**self.variables, **conversation.variables}
        messages, tools, variables = copy.deepcopy((messages, conversation.tools, variables))
        try:
            made = _loaded(self.path, self.function, self.source)(messages, tools, **variables)
        except (Exception, SystemExit) as error:
            raise RenderError(f"{name} raised {_in_words(error, self.path)}") from None
        try:
            return read_pieces(made, "the result", vocab_size)
        except BadRowError as error:
            raise RenderError(f"{error}, from {name}") from None


@lru_cache(maxsize=8)
def _loaded(path: str, function: str, source: bytes) -> Callable[..., Any]:
    """The function. Raises ConfigError if the file cannot be run, or has none of that name."""
    # A module of its own, where dataclasses look for theirs; no compiled file is kept.
    module = ModuleType(f"packprep_template_{hashlib.sha256(source).hexdigest()[:16]}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    name = f"--chat-template {path}:{function}"
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 the user named it
    except (Exception, SystemExit) as error:
        words = _in_words(error, path)
        raise ConfigError(f"{name} cannot be loaded: it raised {words}") from None
    made: Any = getattr(module, function, None)
    if not callable(made):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        missing = f"{name}: the file has no function {function!r}"
        raise ConfigError(missing + nearest(function, names))
    return made  # type: ignore[no-any-return]


def load_function(name: str, variables: Mapping[str, Any]) -> FunctionTemplate:
    """The template FILE.py:FUNCTION. Raises ConfigError if there is none that takes variables."""
    path, _, function = name.rpartition(":")
    source = read_file(path)
    try:
        inspect.signature(_loaded(path, function, source)).bind([], None, **variables)
    except TypeError as error:
        takes = ", ".join(["messages", "tools", *variables])
        raise ConfigError(f"--chat-template {name} cannot take ({takes}): {error}") from None
    return FunctionTemplate(path=path, function=function, source=source, variables=variables)


def _in_words(error: BaseException, path: str) -> str:
    """An exception in one line, with the last line of this file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())}"


class PieceFinder:
    """Makes documents of conversations by a function that makes pieces of them.

    As with a template, no text of a message becomes a special token, whatever it spells: only those
    that the function writes itself count.
    """

    def __init__(self, specials: Any, make: Callable[[Conversation], list[Piece]]) -> None:
        self._tokens, self._make = Specials(specials), make

    def render(self, conversation: Conversation) -> Document:
        """The pieces of a conversation.

        Raises RenderError where the function fails, or special tokens cannot be told apart.
        """
        pieces = self._make(conversation)
        texts = [piece.text for piece in pieces]
        specials = own_specials(
            self._tokens, conversation, texts, lambda c: [piece.text for piece in self._make(c)]
        )
        both = zip(pieces, specials, strict=True)
        pieces = [piece._replace(specials=own) for piece, own in both]
        if any(piece.ids is not None for piece in pieces):
            return Document(pieces)
        with suppress(BadRowError):  # JSON text may be written in another form
            conversation = with_arguments(conversation, as_object)
        return Document(pieces, left_out(conversation, "".join(texts)))
