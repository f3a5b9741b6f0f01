"""The type of a command's argument that is a finished output.

A directory, or an address such as s3://bucket/packed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.completion import of_paths
from packprep.support.errors import ConfigError, asked

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from packprep.schemas.manifest import Output


class OutputType(click.ParamType):  # type: ignore[type-arg]
    """Gives a `packprep.schemas.Output`.

    completes: "dir", or "file" where a report.json is taken too.
    """

    name = "output"

    def __init__(self, completes: str = "dir") -> None:
        self._completes = completes

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> "Output":
        return output_at(value) if isinstance(value, str) else Path(value)

    def shell_complete(
        self, context: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        return of_paths(self._completes)(context, param, incomplete)


class DirectoryType(click.ParamType):  # type: ignore[type-arg]
    """A directory that a command writes, and that cannot be in a store."""

    name = "directory"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Path:
        if "://" in str(value):
            raise ConfigError(
                f"{value} is in a store, where only packprep build writes; give a directory, and "
                "copy it"
            )
        return Path(value)

    def shell_complete(
        self, context: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        return of_paths("dir")(context, param, incomplete)


def output_at(name: str) -> "Output":
    """The output at a path or a URL.

    ConfigError where no store is to be had, FormatError where it holds no output.
    """
    if "://" not in name:
        return Path(name)
    from packprep.schemas.storage.remote import RemoteOutput

    with asked():
        return RemoteOutput(name)
