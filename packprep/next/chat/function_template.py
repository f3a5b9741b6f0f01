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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..support.errors import ConfigError, InputError, nearest
from .left_out import left_out
from .pieces import read_pieces
from .rendering import own_specials
from .special_tokens import Specials
from .template import as_object, with_arguments
from .types import BadRowError, Conversation, Document, Piece, RenderError


@dataclass(frozen=True, kw_only=True)
class FunctionTemplate:
    """A function of the user, loaded when it is first called.

    name: as the user wrote it. path: of its file. function: its name there. sha256: of the file.
    """

    name: str
    path: str
    function: str
    sha256: str
    variables: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """All that decides its pieces, as JSON."""
        variables = dict(self.variables)
        return {"function": self.function, "sha256": self.sha256, "variables": variables}

    def call(self, conversation: Conversation) -> Any:
        """What the function returns, unchecked. Raises RenderError for any failure.

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
            raise RenderError(f"{self.name} raised {_in_words(error, self.path)}") from None

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """The function. Raises InputError if its file is another one than the build began with."""
        source = _bytes(self.path)
        if hashlib.sha256(source).hexdigest() != self.sha256:
            raise InputError(
                f"{self.path} has changed since the build began; restore it, or build again with "
                "--overwrite"
            )
        # A module of its own, where dataclasses look for theirs; no compiled file is kept.
        module = ModuleType(f"packprep_template_{self.sha256[:16]}")
        module.__file__ = self.path
        sys.modules[module.__name__] = module
        try:
            exec(compile(source, self.path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 the user named it
        except (Exception, SystemExit) as error:
            raised = _in_words(error, self.path)
            raise ConfigError(
                f"--chat-template {self.name} cannot be loaded: it raised {raised}"
            ) from None
        function: Any = getattr(module, self.function, None)
        if not callable(function):
            names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            raise ConfigError(
                f"--chat-template {self.name}: the file has no function {self.function!r}"
                + nearest(self.function, names)
            )
        made: Callable[..., Any] = function
        return made


def load_function(name: str, variables: Mapping[str, Any]) -> FunctionTemplate:
    """The template FILE.py:FUNCTION. Raises ConfigError if there is none that takes variables."""
    path, _, function = name.rpartition(":")
    path = str(Path(path).absolute())
    digest = hashlib.sha256(_bytes(path)).hexdigest()
    template = FunctionTemplate(
        name=name, path=path, function=function, sha256=digest, variables=variables
    )
    loaded = template.loaded
    try:
        inspect.signature(loaded).bind([], None, **variables)
    except TypeError as error:
        takes = ", ".join(["messages", "tools", *variables])
        raise ConfigError(
            f"--chat-template {name} cannot be called with ({takes}): {error}; expected "
            f"{function}(messages, tools, **variables)"
        ) from None
    except ValueError:  # a built-in has no signature
        pass
    return template


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"there is no chat template {path}: {error.strerror}; check the path"
        ) from None


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
            gone = left_out(conversation, "".join(texts), conversation, self._text)
        return Document(pieces, gone)

    def reads(self, conversation: Conversation, key: str) -> bool:
        """True: the function gets all keys."""
        return True

    def _text(self, conversation: Conversation) -> str:
        return "".join(piece.text for piece in self._pieces(conversation))

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
