"""`packprep env`: facts for a bug report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from packprep.cli.completion import of_paths
from packprep.cli.printing import print_table


@click.command("env", short_help="Print versions and settings for a bug report.")
@click.argument("output", metavar="[OUT]", required=False, shell_complete=of_paths("dir"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--bundle",
    metavar="FILE",
    shell_complete=of_paths(),
    help="Write a zip file for an issue: the same facts, and options, manifest, report and "
    "receipts of OUT or OUT.incomplete.",
)
def command(output: str | None, as_json: bool, bundle: str | None) -> None:
    """Print versions of packprep and its libraries, the machine, and settings that change a build.

    Nothing printed is a path or a secret. A bundle has names of sources and columns, but no
    documents, no secrets and no tokenizer. OUT may be unfinished or damaged.

    \b
    Example:
      packprep env --json
      packprep env --bundle issue.zip packed
    """
    if bundle is not None:
        _write(bundle, output, as_json)
        return
    if output is not None:
        raise click.UsageError(f"{output} is read for a bundle only; add --bundle FILE")
    from packprep.cli.environment import environment

    facts = environment()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    print_table(
        "packprep " + facts.pop("packprep"),
        [row for key, value in facts.items() for row in _rows(key, value)],
    )


def _write(bundle: str, output: str | None, as_json: bool) -> None:
    from packprep.cli.bundle import write_bundle

    names = write_bundle(Path(bundle), output)
    if as_json:
        click.echo(json.dumps({"bundle": bundle, "files": names}, indent=2))
        return
    click.echo(f"{bundle}: {len(names)} files; read them before you attach it to an issue")


def _rows(key: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(key, str(value))]
    if not value:
        return [(key, "none set")]
    return [
        (name, "not installed" if item is None else _shown(name, item))
        for name, item in value.items()
    ]


def _shown(name: str, value: Any) -> str:
    return f"{value / 1e9:,.1f} GB" if name.endswith("memory_bytes") else str(value)
