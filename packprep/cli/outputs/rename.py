"""`packprep rename`: other names for the columns of an output."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import DirectoryType
from packprep.cli.printing import HOW_TO_TRAIN, print_sentence

if TYPE_CHECKING:
    from packprep.schemas.names import Names


@click.command("rename", short_help="Give the columns of an output the names of another reader.")
@click.argument("output", metavar="OUT", type=DirectoryType())
@click.option(
    "--names",
    required=True,
    type=click.Choice(["packprep", "hf"]),
    help="packprep: tokens and cu_seqlens. hf: input_ids, labels, position_ids and seq_lengths, "
    "which TRL and transformers read.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no result.")
def command(output: Path, names: "Names", quiet: bool) -> None:
    """Rename the columns of OUT in place, in one step; packs and tokens stay.

    The shards are written again beside OUT, without tokenizing or packing, and then replace it, so
    this needs as much free disk space as OUT has. labels and position_ids are added if they are
    missing. The other direction restores the bytes of before.

    \b
    Example:
      packprep rename packed --names hf
    """
    from packprep.execute.array_tasks import at_work
    from packprep.output.rename import rename
    from packprep.support.errors import ConfigError
    from packprep.support.progress import open_progress

    if by := ", ".join(at_work(output).values()):
        raise ConfigError(
            f"{output} is being built by tasks of an array ({by}); wait until they are done"
        )
    with open_progress(quiet=quiet) as progress:
        rename(output, names, progress)
    if names == "hf" and not quiet:
        print_sentence(HOW_TO_TRAIN)
