"""Prints several outputs or reports side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from string import ascii_uppercase
from typing import TYPE_CHECKING

import click

from packprep.cli.printing import print_grid, print_json, print_table
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.reports.compare import ComparedFigure
    from packprep.schemas.manifest import Output

_COLOURS = {"better": "green", "worse": "red", "differs": "yellow", "same": None}


def print_side_by_side(outputs: "Sequence[Output]", *, everything: bool, as_json: bool) -> None:
    """Print options and numbers that differ, and whether the others are better than the first.

    everything: also numbers that are equal. Raises ConfigError for more outputs than letters.
    """
    from packprep.inspect.report_file import read_report
    from packprep.reports.compare import compare_reports, differing_options

    if len(outputs) > len(ascii_uppercase):
        raise ConfigError(f"{len(outputs)} outputs are too many side by side; give at most 26")
    reports = [read_report(output) for output in outputs]
    figures, options = compare_reports(*reports), differing_options(outputs)
    names = list(map(str, outputs))
    if as_json:
        numbers = [
            {"output": name} | asdict(each) | {"change": each.change}
            for row in figures.values()
            for name, each in zip(names[1:], row, strict=True)
        ]
        facts = {"outputs": names, "options": options, "figures": numbers}
        print_json(facts)
        return
    digests = [report.get("sha256") for report in reports]
    for other, digest in zip(names[1:], digests[1:], strict=True):
        if digest == digests[0]:
            click.echo(f"the data files of {names[0]} and {other} are identical, byte for byte")
    kept = [row for row in figures.values() if everything or not _is_same(row)]
    heads = ascii_uppercase[: len(outputs)]
    if options or kept:
        print_table("compared", list(zip(heads, names, strict=True)))
        click.echo()
    if options:
        rows = [(key, *(value or "none" for value in row)) for key, row in options.items()]
        print_grid("options that differ", ("", *heads), rows)
        click.echo()
    if not kept:
        click.echo(f"all {len(figures)} numbers are equal")
        return
    _print_numbers(kept, heads)
    if not everything and (same := sum(map(_is_same, figures.values()))):
        click.echo(f"{same} more numbers are equal; --all shows them")


def _is_same(row: "Iterable[ComparedFigure]") -> bool:
    return all(each.judgement == "same" for each in row)


def _print_numbers(rows: "Sequence[Sequence[ComparedFigure]]", heads: str) -> None:
    """Print a line for each number: of the first output, then of each other with its judgement."""
    from packprep.reports.figures import figure_text

    others = [(head, "change", f"{head} is") for head in heads[1:]]
    cells = [
        (
            row[0].name,
            figure_text(row[0].name, row[0].a),
            *(cell for each in row for cell in _cells(each)),
        )
        for row in rows
    ]
    two = len(heads) == 2
    print_grid(
        "numbers",
        ("", heads[0], *(head for other in others for head in other)),
        cells,
        left=(0, *range(4, len(cells[0]), 3)),
        colours=[_COLOURS[row[0].judgement] for row in rows] if two else (),
    )


def _cells(figure: "ComparedFigure") -> tuple[str, str, str]:
    """Value, change and judgement of one number of one output."""
    from packprep.reports.figures import figure_text, shown_change

    change = ""
    if figure.change is not None:
        change = shown_change(figure.name, figure.change) if figure.change else "0"
    judgement = "" if figure.judgement == "same" else figure.judgement
    return figure_text(figure.name, figure.b), change, judgement
