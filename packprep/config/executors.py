"""Properties of each executor; `packprep.execute.pipeline` maps the names to functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Properties of an executor.

    many_processes: the work is done by processes that share only files, so the process that signs
    off does not report finished work.
    many_commands: each task is a separate command that resolves the sources again; see
    `Options.is_task`.
    """

    many_processes: bool = False
    many_commands: bool = False


EXECUTORS: Final[Mapping[str, Executor]] = {
    "local": Executor(),
    "ray": Executor(many_processes=True),
    "array": Executor(many_processes=True, many_commands=True),
}
"""Executors by name, see `Command.runner`."""
