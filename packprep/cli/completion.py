"""The shell's completion of values.

`--strategy <TAB>` lists the strategies, `-o <TAB>` the directories.

click completes commands and options by itself. An option whose value is text completes nothing, not
even a path, unless it has one of these as its `shell_complete`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def of_names(names: Sequence[str], *, several: bool = False) -> Complete:
    """Completion of one of `names`.

    With `several`, of the last one of a list with commas, each name once.
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        free = [name for name in names if name.startswith(begun) and name not in before.split(",")]
        return [CompletionItem(before + comma + name) for name in free]

    return complete


def of_paths(kind: str = "file") -> Complete:
    """Completion of a path by the shell itself.

    kind: "file", which takes directories too, or "dir".
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=kind)]

    return complete
