"""`packprep materialize`: the shards of an index."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import STORE_OPTION, DirectoryType, OutputType, with_store

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("materialize", short_help="Write the shards of an index, with their tokens.")
@click.argument("index", metavar="OUT", type=OutputType())
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=DirectoryType(), help="Directory to write."
)
@STORE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no table.")
def command(
    index: "Output", output: Path, store: tuple[str, ...], as_json: bool, quiet: bool
) -> None:
    """Write the packs of OUT, made with --materialize index, as shards that hold their tokens.

    The shards have the bytes that the same build without an index writes. Nothing is tokenized or
    packed again. The same command resumes it.

    \b
    Example:
      packprep materialize packed-index -o packed
    """
    from packprep.cli.printing import print_report
    from packprep.exports.materialize import materialize
    from packprep.support.progress import open_progress

    with open_progress(quiet=quiet) as progress:
        materialize(with_store(index, store), output, progress=progress)
    print_report(output, as_json=as_json, quiet=quiet)
