"""Generate the table of options in README.md from BuildConfig.

\b
python scripts/checks/readme_options.py
"""

import dataclasses
from pathlib import Path

import click

from packprep.cli.commands.build import default_of
from packprep.config.build_config import BuildConfig

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- options -->\n", "<!-- end of options -->"


def table() -> str:
    """The table, with one row per option in the order of --help."""
    rows = ["| option | default | what it does |", "|---|---|---|"]
    for field in dataclasses.fields(BuildConfig):
        if field.name != "sources":
            text = field.metadata["help"].replace("|", "\\|")
            rows.append(f"| `--{field.name.replace('_', '-')}` | {default_of(field)} | {text} |")
    return "\n".join(rows) + "\n"


@click.command(help=__doc__)
def main() -> None:
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
