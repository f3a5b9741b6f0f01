"""`packprep report`: an output as a web page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.options import STORE_OPTION
from packprep.cli.output_type import output_argument, with_store
from packprep.cli.printing import print_json
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("report", short_help="Write a report of an output: one web page.")
@output_argument()
@click.option(
    "-o",
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Page to write.",
)
@STORE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Also print the data of the page as JSON.")
def command(output: "Output", page: Path, store: tuple[str, ...], as_json: bool) -> None:
    """Write the report of OUT, the directory of a finished build, as one self-contained page.

    The page shows the outcome of every token, the first packs, histograms of lengths and packs,
    and the results of every other strategy on the same documents. It loads nothing from the
    network, fits a phone and has a dark mode.

    \b
    Example:
      packprep report packed -o report.html
    """
    if isinstance(output, Path) and page.resolve().is_relative_to(output.resolve()):
        raise ConfigError(
            f"{page} is inside {output}, whose manifest lists every file; choose another place"
        )
    from packprep.reports.facts import gather
    from packprep.reports.page import as_data, write_page
    from packprep.support.progress import open_progress

    with open_progress("the shards") as progress:
        facts = gather(with_store(output, store), progress)
    written = write_page(facts, page)
    if as_json:
        print_json(as_data(facts) | {"written": [str(written)]})
    else:
        click.echo(written)
