"""A renderer of the user: a function that makes pieces of the messages of a row.

    def render(messages, tools, **variables):
        return [{"text": "<|user|>Hi<|end|>", "train": False}, {"text": "Hello", "train": True}]

It is code, so only the command line, a configuration file or Python names it: FILE.py:FUNCTION or
MODULE:FUNCTION. No source, tokenizer or output is ever asked for one. It stands in the place of the
chat template: messages, tools and variables are those that a template gets.

The digest of its file is part of the identity of a build. The bytes of the digest are those that
run: a file is read once, and compiled from there. Every process loads it for itself, and refuses a
file with another digest. A module that the file imports is not in the digest.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from packprep.support.errors import ConfigError, InputError, nearest

_FORM = "expected FILE.py:FUNCTION or MODULE:FUNCTION"


class RendererError(Exception):
    """A call of a renderer raised. `str` names the function, the line and the exception."""


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """A function of the user, loaded when it is first called.

    name: as the user wrote it. place: absolute path of its file, or the name of its module.
    function: its name there. sha256: of the file. variables: of the build.
    """

    FACT: ClassVar = "renderer"

    name: str
    place: str
    function: str
    sha256: str
    variables: Mapping[str, object]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Facts that enter the identity of a build."""
        return {
            "function": self.function,
            "sha256": self.sha256,
            "variables": dict(self.variables),
        }

    def call(
        self, messages: Sequence[object], tools: object, variables: Mapping[str, object]
    ) -> Any:
        """The pieces of a row, unchecked. Raises RendererError.

        variables: of the row; they win over those of the build. The function gets copies, which it
        may change.
        """
        function = self._loaded
        given = copy.deepcopy((list(messages), tools, {**self.variables, **variables}))
        try:
            return function(given[0], given[1], **given[2])
        except (Exception, SystemExit) as error:
            raise RendererError(f"{self.name} raised {_told(error, self.place)}") from error

    @cached_property
    def _loaded(self) -> Callable[..., Any]:
        """The function. Raises InputError if its file is another one than the build began with."""
        path, package, source = _file_of(self.name, self.place)
        digest = hashlib.sha256(source).hexdigest()
        if digest != self.sha256:
            raise InputError(
                f"{path} is not the renderer that this build began with: it has sha256 {digest}, "
                f"expected {self.sha256}; restore it, or build again with --overwrite"
            )
        return _function(self.name, self.function, _module(self.name, path, package, source))


def load_renderer(name: str, variables: Mapping[str, object]) -> Renderer:
    """The renderer with this name. Raises ConfigError if there is none that takes the variables."""
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ConfigError(f"--renderer is {name!r}, {_FORM}")
    if place.endswith(".py"):
        place = str(Path(place).absolute())
    _, _, source = _file_of(name, place)
    renderer = Renderer(
        name=name,
        place=place,
        function=function,
        sha256=hashlib.sha256(source).hexdigest(),
        variables=variables,
    )
    loaded = renderer._loaded
    try:
        inspect.signature(loaded).bind([], None, **variables)
    except TypeError as error:
        takes = ", ".join(["messages", "tools", *variables])
        raise ConfigError(
            f"--renderer {name} cannot be called with ({takes}): {error}; expected "
            f"{function}(messages, tools, **variables)"
        ) from None
    except ValueError:  # a built-in has no signature
        pass
    return renderer


def _file_of(name: str, place: str) -> tuple[str, str, bytes]:
    """Path of a renderer's file, the package of its module ("" for none), and its bytes."""
    path, package = place, ""
    if not place.endswith(".py"):
        try:
            spec = importlib.util.find_spec(place)
        except Exception as error:  # of a package that is imported on the way
            raise ConfigError(
                f"--renderer {name}: the module cannot be imported: {_told(error, '')}; install "
                "it, add its folder to PYTHONPATH, or give FILE.py:FUNCTION"
            ) from None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            found = "there is no module" if spec is None else "there is no Python file of module"
            raise ConfigError(
                f"--renderer {name}: {found} {place!r}; install it, add its folder to PYTHONPATH, "
                "or give FILE.py:FUNCTION"
            )
        path, package = spec.origin, spec.parent or ""
    try:
        return path, package, Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"--renderer {name}: there is no file {path}; check the path") from None
    except OSError as error:
        raise ConfigError(f"--renderer {name}: {path} cannot be read: {error.strerror}") from None


def _module(name: str, path: str, package: str, source: bytes) -> ModuleType:
    """Run these bytes as a module of their own, which keeps no compiled file."""
    digest = hashlib.sha256(source).hexdigest()
    module = ModuleType(f"packprep_renderer_{digest[:16]}")
    module.__file__, module.__package__ = path, package
    sys.modules[module.__name__] = module  # where dataclasses look for their module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 the user named it
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"--renderer {name} cannot be loaded: it raised {_told(error, path)}"
        ) from None
    return module


def _function(name: str, function: str, module: ModuleType) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(module, function, None)
    if found is None or not callable(found):
        names = [
            each
            for each, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise ConfigError(
            f"--renderer {name}: the file has no function {function!r}" + nearest(function, names)
        )
    return found


def _told(error: BaseException, path: str) -> str:
    """An exception in one line, with the last line of this file that it passed."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, text = [error.lineno], error.msg
    else:
        text = " ".join(str(error).split())
    where = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}" + (f": {text}" if text else "")
