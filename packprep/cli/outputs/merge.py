"""`packprep merge`: several outputs as one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import DirectoryType, OutputType

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("merge", short_help="Merge several outputs into one.")
@click.argument("outputs", nargs=-1, required=True, metavar="OUT...", type=OutputType())
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=DirectoryType(), help="Directory to write."
)
@click.option(
    "--shard-size", metavar="SIZE", help="Also rewrite the shards, with about this many bytes each."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no table.")
def command(
    outputs: "tuple[Output, ...]", output: Path, shard_size: str | None, as_json: bool, quiet: bool
) -> None:
    """Merge the packs of OUT..., in this order, into one output with one account.

    The outputs must have the same tokenizer, columns and max_length. Document ids of the second
    begin where those of the first end. Shards whose bytes do not change are hard links where the
    file system allows it.

    \b
    Example:
      packprep merge packed-2025 packed-2026 -o packed
    """
    from packprep.cli.printing import print_report
    from packprep.config.build_config import parse_size
    from packprep.execute.merge import merge
    from packprep.support.progress import open_progress

    size = parse_size(shard_size, "shard_size") if shard_size is not None else None
    with open_progress(quiet=quiet) as progress:
        merge(outputs, output, shard_size=size, progress=progress)
    print_report(output, as_json=as_json, quiet=quiet)
