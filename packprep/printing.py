"""What commands print: tables with colour in a terminal, plain text anywhere else."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click


def stopped() -> str:
    """What a command says that was stopped: how to go on."""
    return f"stopped; to go on: {shlex.join(['packprep', *sys.argv[1:]])}"


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns on standard output, with colour in a terminal only."""
    width = max((len(key) for key, _ in rows), default=0)
    click.secho(title, italic=True)
    for key, value in rows:
        click.echo(f"{click.style(key.ljust(width), bold=True)}  {value}")


def print_report(output: Path, *, as_json: bool, quiet: bool) -> None:
    """report.json of an output that was just made: as it is, as a table, or not at all."""
    from packprep.report import read_report, table

    if as_json or not quiet:
        report = read_report(output)
        if as_json:
            click.echo(json.dumps(report, indent=2))
        else:
            print_table(str(output), table(report))
