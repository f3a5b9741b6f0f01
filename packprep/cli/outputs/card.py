"""`packprep card`: the dataset card of an output."""

from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import OutputType

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("card", short_help="Print the dataset card of an output.")
@click.argument("output", metavar="OUT", type=OutputType())
@click.option("--name", metavar="USER/NAME", help="Name on the hub.  [default: name of OUT]")
def command(output: "Output", name: str | None) -> None:
    """Print the dataset card of OUT, which push writes as README.md: figures, account, sources.

    \b
    Example:
      packprep card packed --name someone/packed-prose > README.md
    """
    from packprep.reports.card import dataset_card

    click.echo(dataset_card(output, name or f"USER/{output.name}"), nl=False)
