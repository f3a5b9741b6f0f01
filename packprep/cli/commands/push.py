"""`packprep push`: an output to the Hugging Face hub."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from packprep.cli.options import json_option
from packprep.cli.output_type import output_argument
from packprep.cli.printing import print_json
from packprep.support.errors import ConfigError


@click.command("push", short_help="Push an output to the Hugging Face hub.")
@output_argument()
@click.argument("name", metavar="NAME")
@click.option(
    "--revision", metavar="BRANCH", help="Branch to push to; made if missing.  [default: main]"
)
@click.option("--public", is_flag=True, help="Make a new repository public, not private.")
@click.option("--overwrite", is_flag=True, help="Replace another output in the repository.")
@click.option(
    "--dry-run", is_flag=True, help="Check OUT, show its size and print the card; send nothing."
)
@json_option()
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def command(
    output: object,
    name: str,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Push OUT, the directory of a finished build, to the dataset repository NAME of the hub.

    NAME is USER/NAME or ORGANIZATION/NAME. A repository that does not exist is made, private. All
    files are in one commit, with a dataset card: readers see the whole output or none of it. A push
    that was stopped sends only what is missing: run the same command.

    The token is that of hf auth login, or HF_TOKEN.

    \b
    Example:
      packprep push packed someone/packed-prose
    """
    if not isinstance(output, Path):
        raise ConfigError(f"{output} is in a store; push a local directory: copy it here first")
    from packprep.derive.push import check_ready, push
    from packprep.reports.card import MARK, dataset_card
    from packprep.support.progress import open_progress

    if dry_run:
        files, size = check_ready(output, name)
        facts = {"output": str(output), "repository": name, "files": files, "bytes": size}
        card = dataset_card(output, name)
        if as_json:
            print_json(facts | {"card": card})
            return
        click.echo(f"{output}: {files} files, {size / 1e6:,.1f} MB, ready for {name}")
        click.echo(f"\n{card}", nl=False)
        return
    with open_progress("the hub", quiet=quiet) as progress:
        pushed = push(
            output,
            name,
            card=lambda repository: dataset_card(output, repository),
            mark=MARK,
            progress=progress,
            **options,
        )
    if as_json:
        print_json(dataclasses.asdict(pushed))
        return
    what = "is there already" if pushed.already_there else f"{pushed.bytes / 1e6:,.1f} MB"
    click.echo(f"{pushed.url}: {pushed.files} files, {what}, commit {pushed.commit[:12]}")
    if not pushed.card and not pushed.already_there:
        click.echo("README.md was changed on the hub and is kept; --dry-run prints a new one")
