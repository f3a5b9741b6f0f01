"""`packprep verify`."""

from pathlib import Path
from typing import Any

import click

from ..look.verify import verify
from ..schemas.files import is_url
from ..schemas.manifest import open_output
from ..support.errors import InputError
from .options import amount_of, progress_of

_HELP = """Check that an output is sound: digests, invariants, each document, account.

\b
Example: packprep verify packed --rebuild
"""


@click.command(help=_HELP, context_settings={"max_content_width": 80})
@click.argument("output", metavar="OUT")
@click.option("--rebuild", is_flag=True, help="Build again in a temporary folder, and compare.")
@click.option(
    "--against",
    type=click.Choice(["transformers"]),
    help="Encode documents again with its library.",
)
@click.option("--sample", default="1000", metavar="ROWS", help="Rows for --against.  [1000]")
@click.option("--tokenizer", metavar="NAME", help="The tokenizer, if it has moved.")
@click.option("--chat-template", metavar="FILE", help="The template, if it is code, or has moved.")
@click.option("--store", multiple=True, metavar="DIR", help="Token store of a plan that has moved.")
def command(
    output: str,
    rebuild: bool,
    against: str | None,
    sample: str,
    store: tuple[str, ...],
    **moved: Any,
) -> None:
    """Print the findings; exit 1 if there are any."""
    if not is_url(output) and not Path(output).is_dir():
        raise InputError(f"{output} is no folder; expected an output of packprep")
    rows = amount_of("sample", sample) or 1
    findings, words = verify(output, store), "sound"
    try:
        with progress_of(quiet=False) as progress:
            if rebuild and not findings:
                from ..look.rebuild import rebuild as built_again

                findings += built_again(open_output(output, store), progress, **moved)
                words += ", and what its sources make"
            if against and not findings:
                from ..look.against import compare

                found, compared = compare(open_output(output, store), rows, progress, **moved)
                findings, words = findings + found, f"{words}; {compared}"
    except InputError as error:
        raise InputError(f"{error}; run this where the build ran, with its files") from None
    for finding in findings:
        more = f" (and {finding.count - 1:,} more)" if finding.count > 1 else ""
        click.echo(f"{finding.kind}: {finding.what}{more}")
    click.echo(f"{output}: {words if not findings else f'{len(findings)} kinds of findings'}")
    if findings:
        raise click.exceptions.Exit(1)
