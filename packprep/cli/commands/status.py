"""`packprep status`: how far a build is."""

import json

import click

from packprep.cli.completion import of_paths
from packprep.cli.printing import print_table


@click.command("status", short_help="How far a running or stopped build is.")
@click.argument("output", metavar="OUT", shell_complete=of_paths("dir"))
@click.option(
    "--work-dir",
    metavar="DIR",
    shell_complete=of_paths("dir"),
    help="Where the build of an output in a store works.  [default: here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(output: str, work_dir: str | None, as_json: bool) -> None:
    """Show how far the build of OUT is.

    It is running, stopped (the same command resumes it), waiting (for more tasks of its array, or
    --task-index merge) or finished.

    \b
    Example:
      packprep status packed
    """
    from packprep.inspect.status import status

    found = status(output, work_dir)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return

    def text(key: str) -> str:
        return f"{found[key]:,}" if type(found[key]) is int and key != "pid" else str(found[key])

    print_table(output, [(key.replace("_", " "), text(key)) for key in found])
