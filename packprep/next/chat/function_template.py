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
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..support.errors import ConfigError, nearest
from .left_out import left_out
from .pieces import read_pieces
from .rendering import own_specials
from .special_tokens import Specials
from .template import as_object, with_arguments
from .types import BadRowError, Conversation, Document, Piece, RenderError


@dataclass(frozen=True, kw_only=True)
class FunctionTemplate:
    """A function of the user, loaded when it is first called.

    name: as the user wrote it. source: content of its file.
    """

    name: str
    source: bytes = field(repr=False)
    variables: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """All that decides its pieces, as JSON."""
        digest = hashlib.sha256(self.source).hexdigest()
        return {"function": self._parts[1], "sha256": digest, "variables": dict(self.variables)}

    @property
    def _parts(self) -> tuple[str, str]:
        """Path of the file, and name of the function in it."""
        path, _, function = self.name.rpartition(":")
        return path, function

    def call(self, conversation: Conversation) -> Any:
        """The result of the function, unchecked. Raises RenderError for any failure.

        Variables of the row win over those of the build. Messages that are not trained have
        `train: False`. The function gets copies, which it may change.
        """
        messages: list[Any] = [
            message | {"train": False} if number in conversation.untrained else message
            for number, message in enumerate(conversation.messages)
        ]
        given = messages, conversation.tools, {**self.variables, **conversation.variables}
        messages, tools, variables = copy.deepcopy(given)
        try:
            return self.loaded(messages, tools, **variables)
        except (Exception, SystemExit) as error:
            raise RenderError(f"{self.name} raised {_in_words(error, self._parts[0])}") from None

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """The function. Raises ConfigError if the file cannot be run, or has none of that name."""
        path, function = self._parts
        # A module of its own, where dataclasses look for theirs; no compiled file is kept.
        module = ModuleType(f"packprep_template_{hashlib.sha256(self.source).hexdigest()[:16]}")
        module.__file__ = path
        sys.modules[module.__name__] = module
        try:
            exec(compile(self.source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 the user named it
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"--chat-template {self.name} cannot be loaded: it raised {_in_words(error, path)}"
            ) from None
        found: Any = getattr(module, function, None)
        if not callable(found):
            names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            missing = f"--chat-template {self.name}: the file has no function {function!r}"
            raise ConfigError(missing + nearest(function, names))
        made: Callable[..., Any] = found
        return made


def load_function(name: str, variables: Mapping[str, Any]) -> FunctionTemplate:
    """The template FILE.py:FUNCTION. Raises ConfigError if there is none that takes variables."""
    path = name.rpartition(":")[0]
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"there is no chat template {path}: {error.strerror}; check the path"
        ) from None
    template = FunctionTemplate(name=name, source=source, variables=variables)
    try:
        inspect.signature(template.loaded).bind([], None, **variables)
    except TypeError as error:
        takes = ", ".join(["messages", "tools", *variables])
        raise ConfigError(f"--chat-template {name} cannot take ({takes}): {error}") from None
    return template


def _in_words(error: BaseException, path: str) -> str:
    """An exception in one line, with the last line of this file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())}"


class FunctionFinder:
    """Makes documents of conversations by a template in Python; stands in for a `Finder`."""

    def __init__(self, template: FunctionTemplate, specials: Any, vocab_size: int) -> None:
        self.template = template
        self._tokens = Specials(specials)
        self._vocab_size = vocab_size

    def render(self, conversation: Conversation) -> Document:
        """The pieces of a conversation.

        As with a template, no text of a message becomes a special token, whatever it spells: only
        those that the function writes itself count. Raises RenderError where they cannot be told
        apart, or the function fails.
        """
        pieces = self._pieces(conversation)
        texts = [piece.text for piece in pieces]
        specials = own_specials(
            self._tokens, conversation, texts, lambda c: [each.text for each in self._pieces(c)]
        )
        if specials is not None:
            both = zip(pieces, specials, strict=True)
            pieces = [piece._replace(specials=own) for piece, own in both]
        gone = []
        if all(piece.ids is None for piece in pieces):
            with suppress(BadRowError):  # JSON text may be written in another form
                conversation = with_arguments(conversation, as_object)
            gone = left_out(conversation, "".join(texts))
        return Document(pieces, gone)

    def reads(self, conversation: Conversation, key: str) -> bool:
        """True: the function gets all keys."""
        return True

    def _pieces(self, conversation: Conversation) -> list[Piece]:
        name = self.template.name
        try:
            return read_pieces(
                self.template.call(conversation), f"the result of {name}", self._vocab_size
            )
        except RenderError:
            raise
        except BadRowError as error:
            detail = str(error) if name in str(error) else f"{error}, from {name}"
            raise RenderError(detail) from None
