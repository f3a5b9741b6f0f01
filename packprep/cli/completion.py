"""Shell completion of values: `--strategy <TAB>` lists strategies, `-o <TAB>` directories.

click completes commands and options by itself. An option whose value is text completes nothing, not
even a path, unless it has one of these functions as its `shell_complete`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def of_names(names: Sequence[str], *, several: bool = False) -> Complete:
    """Completion of one of `names`.

    several: of the last name in a list with commas, without names that the list already has.
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        before, comma, prefix = incomplete.rpartition(",") if several else ("", "", incomplete)
        unused = [name for name in names if name not in before.split(",")]
        return [CompletionItem(before + comma + name) for name in unused if name.startswith(prefix)]

    return complete


def of_paths(kind: str = "file") -> Complete:
    """Completion of a path by the shell itself.

    kind: "file", which includes directories, or "dir".
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=kind)]

    return complete
