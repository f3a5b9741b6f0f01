"""Arguments that name an output: a directory, or a URL such as s3://bucket/packed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.completion import of_paths
from packprep.cli.options import Decorated
from packprep.support.errors import ConfigError, asked

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


def output_argument(
    name: str = "output", metavar: str = "OUT", *, completes: str = "dir", several: bool = False
) -> Callable[[Decorated], Decorated]:
    """Decorator that adds an argument with one or several outputs, opened by `output_at`.

    completes: "dir", or "file" where a report.json is accepted too.
    """

    def opened(
        context: click.Context, parameter: click.Parameter, value: Any
    ) -> "Output | tuple[Output, ...]":
        return tuple(map(output_at, value)) if several else output_at(value)

    return click.argument(
        name,
        metavar=metavar,
        nargs=-1 if several else 1,
        required=True,
        shell_complete=of_paths(completes),
        callback=opened,
    )


def with_store(output: "Output", store: Sequence[str], *, one_of_several: bool = False) -> "Output":
    """The output, with token stores at other places if some are given.

    one_of_several: the stores may be those of other outputs.
    """
    if not store:
        return output
    from packprep.schemas.manifest import read_manifest
    from packprep.tokens.reading import MovedStore

    manifest = read_manifest(output)
    if manifest.is_index:
        return MovedStore(output, manifest, store)
    if one_of_several:
        return output
    raise ConfigError(f"{output} is not an index, so it needs no token store; leave out --store")


def output_at(name: str) -> "Output":
    """The output at a path or a URL.

    Raises ConfigError where the store cannot be opened, FormatError where it holds no output.
    """
    from packprep.schemas.storage.places import finished_output

    with asked():
        return finished_output(name)
