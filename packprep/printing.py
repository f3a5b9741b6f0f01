"""What commands print: tables with colour in a terminal, plain text anywhere else."""

from collections.abc import Sequence

import click

STOPPED = "stopped; run the same command to start again"


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns on standard output, with colour in a terminal only."""
    width = max((len(key) for key, _ in rows), default=0)
    click.secho(title, italic=True)
    for key, value in rows:
        click.echo(f"{click.style(key.ljust(width), bold=True)}  {value}")
