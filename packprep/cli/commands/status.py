"""`packprep status`: the progress of a build."""

import json

import click

from packprep.cli.completion import of_paths
from packprep.cli.printing import print_table


@click.command("status", short_help="Show the progress of a running or stopped build.")
@click.argument("output", metavar="OUT", shell_complete=of_paths("dir"))
@click.option(
    "--work-dir",
    metavar="DIR",
    shell_complete=of_paths("dir"),
    help="--work-dir of the build, for an output in a store.  [default: here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(output: str, work_dir: str | None, as_json: bool) -> None:
    """Show the progress of the build of OUT.

    A build is running, stopped (run the same command to resume), waiting (for other tasks of its
    array, or for --task-index merge) or finished.

    \b
    Example:
      packprep status packed
    """
    from packprep.inspect.status import status

    progress = status(output, work_dir)
    if as_json:
        click.echo(json.dumps(progress, indent=2))
        return

    def text(key: str) -> str:
        value = progress[key]
        return f"{value:,}" if type(value) is int and key != "pid" else str(value)

    print_table(output, [(key.replace("_", " "), text(key)) for key in progress])
