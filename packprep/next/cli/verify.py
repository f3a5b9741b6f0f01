"""`packprep verify`."""

from pathlib import Path

import click

from ..look.verify import verify
from ..support.errors import InputError


@click.command(help="Check that an output is sound: digests, invariants, each document, account.")
@click.argument("output")
@click.option("--store", multiple=True, metavar="DIR", help="Token store of a plan that has moved.")
def command(output: str, store: tuple[str, ...]) -> None:
    """Print the findings; exit 1 if there are any."""
    if not Path(output).is_dir():
        raise InputError(f"{output} is no folder; expected an output of packprep")
    findings = verify(output, store)
    for finding in findings:
        more = f" (and {finding.count - 1:,} more)" if finding.count > 1 else ""
        click.echo(f"{finding.kind}: {finding.what}{more}")
    click.echo(f"{output}: {'sound' if not findings else f'{len(findings)} kinds of findings'}")
    if findings:
        raise click.exceptions.Exit(1)
