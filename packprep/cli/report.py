"""`packprep report`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..look.compare import compared
from ..look.places import Place, look
from ..support.errors import ConfigError
from ..support.records import write_file
from .printing import print_findings, print_table


@click.command(
    short_help="Show the numbers of outputs, stores and builds, or a page.",
    context_settings={"max_content_width": 80},
)
@click.argument("places", nargs=-1, required=True, metavar="OUT...")
@click.option("-o", "page", metavar="FILE.html", help="Write the report of OUT as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each OUT.")
def command(places: tuple[str, ...], page: str | None, as_json: bool) -> None:
    """Show the numbers of OUT, and what is wrong or can be better.

    OUT is an output or its report.json, a token store, or a build that is running or was stopped.
    Several outputs are compared with the first. The page needs no network.

    \b
    Examples:
      packprep report packed
      packprep report packed -o report.html
      packprep report packed other/packed
    """
    if page is not None and as_json:
        raise ConfigError("-o and --json are two forms of a report; leave out one of them")
    shown = [look(place) for place in places]
    if page is not None:
        _write_page(shown, page)
    elif as_json:
        for each in shown:
            click.echo(json.dumps(each.values))
    elif len(shown) > 1 and all(each.facts for each in shown):
        for line in compared(shown):
            click.echo(line)
    else:
        for each in shown:
            print_table(each.name, each.rows)
            print_findings(each.found, sys.stdout)


def _write_page(shown: Sequence[Place], path: str) -> None:
    from ..look.page import page

    output, facts = shown[0].output, shown[0].facts
    if len(shown) > 1 or output is None or facts is None:
        raise ConfigError("-o writes the page of one finished output; name one")
    content = page(output, facts).encode()
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(Path(path), content)
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror}") from None
    click.echo(path)
