"""`packprep report`: an output as a page to look at, and as plots."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.output_type import OutputType
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("report", short_help="Show an output as a web page, or as plots.")
@click.argument("output", metavar="OUT", type=OutputType())
@click.option(
    "-o",
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Page to write.",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also write plots there, as PNG and SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the page shows as JSON.")
def command(output: "Output", page: Path, plots: Path | None, as_json: bool) -> None:
    """Write the report of OUT, the directory of a finished build, as one self-contained page.

    It shows what became of every token, the first packs, how lengths and packs are spread, and what
    every other strategy would have made of the same documents. It loads nothing, and can be read on
    a phone and in the dark.

    \b
    Example:
      packprep report packed -o report.html --plots plots
    """
    for given in (page, plots):
        if (
            given is not None
            and isinstance(output, Path)
            and given.resolve().is_relative_to(output.resolve())
        ):
            raise ConfigError(
                f"{given} is inside {output}, whose manifest lists every file; choose another place"
            )
    from packprep.reports.facts import gather
    from packprep.reports.page import as_data, write_page
    from packprep.support.progress import open_progress

    with open_progress("the shards") as progress:
        facts = gather(output, progress)
    written = [write_page(facts, page)]
    if plots is not None:
        from packprep.reports.plots import write_plots

        written += write_plots(facts, plots)
    if as_json:
        click.echo(json.dumps(as_data(facts) | {"written": list(map(str, written))}, indent=2))
        return
    for path in written:
        click.echo(path)
