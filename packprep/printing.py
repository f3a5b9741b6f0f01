"""What commands print: tables with colour in a terminal, plain text anywhere else."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packprep.schemas import Output


def stopped() -> str:
    """What a command says that was stopped: how to go on."""
    return f"stopped; to go on: {shlex.join(['packprep', *sys.argv[1:]])}"


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns on standard output, with colour in a terminal only."""
    width = max((len(key) for key, _ in rows), default=0)
    click.secho(title, italic=True)
    for key, value in rows:
        click.echo(f"{click.style(key.ljust(width), bold=True)}  {value}")


def print_report(output: "Output", *, as_json: bool, quiet: bool) -> None:
    """report.json of an output that was just made: as it is, as a table, or not at all."""
    from packprep.report import table
    from packprep.reportfile import read_report

    if as_json or not quiet:
        report = read_report(output)
        if as_json:
            click.echo(json.dumps(report, indent=2))
        else:
            print_table(str(output), table(report))


def print_columns(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same keys as a table with a heading; numbers stand on the right, None is a dash."""
    if not rows:
        return
    names = list(rows[0])
    texts = [at for at, name in enumerate(names) if not all(isinstance(row[name], int | None) for row in rows)]
    cells = [[_cell(row[name]) for name in names] for row in rows]
    print_grid("", [name.replace("_", " ") for name in names], cells, left=texts)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if type(value) is int else str(value)


def print_grid(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    colours: Sequence[str | None] = (),
) -> None:
    """Rows of several columns under their heads; the columns `left` begin at the left, numbers end at the right.

    title: a line above, where there is one. colours: of each row, for a terminal only, so a row must say in words what
    its colour means.
    """
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        parts = (
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    if title:
        click.secho(title, italic=True)
    click.secho(line(heads), bold=True)
    for number, row in enumerate(rows):
        click.secho(line(row), fg=colours[number] if colours else None)
