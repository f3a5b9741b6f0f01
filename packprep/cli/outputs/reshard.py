"""`packprep reshard`: the same packs in shards of another size."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import DirectoryType, OutputType

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("reshard", short_help="Rewrite an output with shards of another size.")
@click.argument("source", metavar="OUT", type=OutputType())
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=DirectoryType(), help="Directory to write."
)
@click.option(
    "--shard-size",
    required=True,
    metavar="SIZE",
    help="Approximate bytes of a shard, such as 100MB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no table.")
def command(source: "Output", output: Path, shard_size: str, as_json: bool, quiet: bool) -> None:
    """Write the packs of OUT, unchanged and in the same order, in shards of about SIZE bytes.

    \b
    Example:
      packprep reshard packed -o packed-small --shard-size 100MB
    """
    from packprep.cli.printing import print_report
    from packprep.config.build_config import parse_size
    from packprep.execute.merge import merge
    from packprep.support.progress import open_progress

    size = parse_size(shard_size, "shard_size")
    with open_progress(quiet=quiet) as progress:
        merge([source], output, shard_size=size, progress=progress)
    print_report(output, as_json=as_json, quiet=quiet)
