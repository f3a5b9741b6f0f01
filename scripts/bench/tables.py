"""A table of a benchmark: for a terminal, or as Markdown."""

from collections.abc import Iterable, Sequence
from itertools import chain

import click
from rich.console import Console
from rich.table import Table


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], markdown: bool) -> None:
    """Print rows of text under their columns; Markdown row by row, as each is measured."""
    if markdown:
        for row in chain((columns, ["---"] * len(columns)), rows):
            click.echo(f"| {' | '.join(row)} |")
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)
