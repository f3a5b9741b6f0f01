"""Types of arguments that name an output: a directory, or a URL such as s3://bucket/packed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.completion import of_paths
from packprep.support.errors import ConfigError, asked

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from packprep.schemas.manifest import Output


class OutputType(click.ParamType):  # type: ignore[type-arg]
    """Type of a finished output, converted to a `packprep.schemas.manifest.Output`.

    completes: "dir", or "file" where a report.json is accepted too.
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
    """Type of a local directory that a command writes."""

    name = "directory"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Path:
        if "://" in str(value):
            raise ConfigError(
                f"{value} is a URL, and only packprep build writes to a store; give a local "
                "directory, and copy it to the store"
            )
        return Path(value)

    def shell_complete(
        self, context: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        return of_paths("dir")(context, param, incomplete)


def with_store(output: "Output", store: Sequence[str]) -> "Output":
    """The output, with token stores at other places if some are given."""
    if not store:
        return output
    from packprep.schemas.manifest import read_manifest
    from packprep.tokens.index_shards import MovedStore

    manifest = read_manifest(output)
    if not manifest.is_index:
        raise ConfigError(
            f"{output} is not an index, so it needs no token store; leave out --store"
        )
    return MovedStore(output, manifest, store)


def with_stores(outputs: "Sequence[Output]", store: Sequence[str]) -> "list[Output]":
    """The outputs, of which each index has its token stores at other places if some are given."""
    if not store or len(outputs) == 1:
        return [with_store(output, store) for output in outputs]
    from packprep.schemas.manifest import read_manifest

    return [
        with_store(output, store) if read_manifest(output).is_index else output
        for output in outputs
    ]


def output_at(name: str) -> "Output":
    """The output at a path or a URL.

    Raises ConfigError where the store cannot be opened, FormatError where it holds no output.
    """
    from packprep.schemas.storage.places import finished_output

    with asked():
        return finished_output(name)
