"""`packprep env`: what to paste into a bug report."""

import json
from collections.abc import Mapping
from typing import Any

import click

from packprep.cli.printing import print_table


@click.command("env", short_help="Versions and settings for a bug report.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def command(as_json: bool) -> None:
    """Versions of packprep and what it uses, the machine, and the settings that change a build.

    No paths, no secrets.

    \b
    Example:
      packprep env --json
    """
    from packprep.cli.environment import environment

    found = environment()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    print_table(
        "packprep " + found.pop("packprep"),
        [row for key, value in found.items() for row in _rows(key, value)],
    )


def _rows(key: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(key, str(value))]
    if not value:
        return [(key, "none set")]
    return [
        (name, "not installed" if held is None else _shown(name, held))
        for name, held in value.items()
    ]


def _shown(name: str, value: Any) -> str:
    return f"{value / 1e9:,.1f} GB" if name == "memory_bytes" else str(value)
