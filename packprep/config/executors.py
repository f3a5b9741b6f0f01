"""Properties of each executor; `packprep.execute.executors` maps the names to functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MERGE: Final = "merge"  # the task of an array that signs off


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Properties of an executor.

    options: those that no other executor takes.
    many_processes: the work is done by processes that share only files, so the process that signs
    off does not report finished work.
    many_commands: each task is a separate command that resolves the sources again; see
    `Options.is_task`.
    refuses: error sentences by the setting that a config must not have: keep_tokens, isolate,
    standard_input.
    """

    options: tuple[str, ...] = ()
    many_processes: bool = False
    many_commands: bool = False
    refuses: Mapping[str, str] = field(default_factory=dict)


def _keep_tokens(executor: str) -> dict[str, str]:
    return {
        "keep_tokens": f"keep_tokens is for one process, and executor {executor} has many; leave "
        "it out"
    }


EXECUTORS: Final[Mapping[str, Executor]] = {
    "local": Executor(),
    "ray": Executor(
        options=("ray_address",),
        many_processes=True,
        refuses=_keep_tokens("ray")
        | {"isolate": "executor ray already replaces processes that die; leave out isolate"},
    ),
    "array": Executor(
        options=("task_index", "num_tasks"),
        many_processes=True,
        many_commands=True,
        refuses=_keep_tokens("array")
        | {
            "standard_input": "standard input cannot be read by every task of an array; give files",
        },
    ),
}
"""Executors by the value of the option `executor`."""
