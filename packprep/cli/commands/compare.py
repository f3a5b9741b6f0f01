"""`packprep compare`: two outputs or reports side by side."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import OutputType
from packprep.cli.printing import print_grid, print_table

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output

_COLOURS = {"better": "green", "worse": "red", "differs": "yellow", "same": None}


@click.command("compare", short_help="Compare two outputs or reports.")
@click.argument("a", metavar="A", type=OutputType("file"))
@click.argument("b", metavar="B", type=OutputType("file"))
@click.option("--all", "everything", is_flag=True, help="Also show the numbers that are equal.")
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON.")
def command(a: "Output", b: "Output", everything: bool, as_json: bool) -> None:
    """Show the differences between A and B, and whether B is better or worse.

    A and B are output directories or report.json files. For directories, options, sources and
    tokenizer that differ are shown too.

    \b
    Example:
      packprep compare packed-best_fit packed-greedy
    """
    from packprep.inspect.report_file import read_report
    from packprep.reports.compare import compare_reports, options_of
    from packprep.reports.figures import figure_text, shown_change

    reports = read_report(a), read_report(b)
    differences = compare_reports(*reports)
    left, right = options_of(a), options_of(b)
    settings = {
        key: (left.get(key), right.get(key))
        for key in dict.fromkeys([*left, *right])
        if left and right and left.get(key) != right.get(key)
    }
    if as_json:
        numbers = [asdict(each) | {"change": each.change} for each in differences]
        click.echo(json.dumps({"options": settings, "figures": numbers}, indent=2))
        return
    if reports[0].get("sha256") == reports[1].get("sha256"):
        click.echo(f"the data files of {a} and {b} are identical, byte for byte")
    kept = [each for each in differences if everything or each.judgement != "same"]
    if settings or kept:
        print_table("compared", [("A", str(a)), ("B", str(b))])
        click.echo()
    if settings:
        rows = [(key, *(value or "none" for value in pair)) for key, pair in settings.items()]
        print_grid("options that differ", ("", "A", "B"), rows)
        click.echo()
    if not kept:
        click.echo(f"all {len(differences)} numbers are equal")
        return
    rows = [
        (
            each.name,
            figure_text(each.name, each.a),
            figure_text(each.name, each.b),
            ""
            if each.change is None
            else shown_change(each.name, each.change)
            if each.change
            else "0",
            "" if each.judgement == "same" else each.judgement,
        )
        for each in kept
    ]
    colours = [_COLOURS[each.judgement] for each in kept]
    same = sum(each.judgement == "same" for each in differences)
    print_grid("numbers", ("", "A", "B", "change", "B is"), rows, left=(0, 4), colours=colours)
    if same and not everything:
        click.echo(f"{same} more numbers are equal; --all shows them")
