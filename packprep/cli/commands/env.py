"""`packprep env`: facts for a bug report."""

from collections.abc import Mapping
from typing import Any

import click

from packprep.cli.options import json_option
from packprep.cli.printing import print_json, print_table


@click.command("env", short_help="Print versions and settings for a bug report.")
@json_option()
def command(as_json: bool) -> None:
    """Print versions of packprep and its libraries, the machine, and settings that change a build.

    Nothing printed is a path or a secret.

    \b
    Example:
      packprep env --json
    """
    from packprep.cli.environment import environment

    facts = environment()
    if as_json:
        print_json(facts)
        return
    print_table(
        "packprep " + facts.pop("packprep"),
        [row for key, value in facts.items() for row in _rows(key, value)],
    )


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
