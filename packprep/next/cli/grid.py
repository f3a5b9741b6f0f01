"""Tables of text, with numbers to the right and words to the left."""

from collections.abc import Sequence

import click


def print_grid(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """Print rows under their heads. left: columns from the first one that hold words."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for number, row in enumerate([heads, *rows]):
        cells = [
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.secho("  ".join(cells).rstrip(), bold=number == 0)
