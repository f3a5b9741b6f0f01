"""Sizes of the tree in one table: code lines a room, lines of tests and scripts, options, modules.

\b
$ python scripts/checks/sizes.py

Modules entered: those of which a build of 80 documents, and an epoch of its packs, run a function.
"""

import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from packprep.cli.sample_data import sample_files  # noqa: E402
from packprep.config.options import GROUPS, BuildConfig  # noqa: E402
from tests.helpers.entered import code_lines, entered  # noqa: E402
from tests.test_budget import BUDGET, lines_below  # noqa: E402

EPOCH = "import sys, packprep.loaders\nfor _ in packprep.loaders.PackedLoader(sys.argv[1], 1): pass"


def modules() -> tuple[int, int]:
    """Modules that a build enters, and an epoch."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, content in sample_files().items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        source = folder / "few.jsonl"
        source.write_bytes(b"".join((folder / "code.jsonl").read_bytes().splitlines(True)[:80]))
        options = ["--tokenizer", str(folder / "tokenizer"), "-o", str(folder / "out"), "-q"]
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        built = entered("packprep", ["build", str(source), *options], folder / "traced")
        (folder / "traced" / "epoch.py").write_text(EPOCH)
        read = entered("epoch", [str(folder / "out")], folder / "traced")
    return len(built), len([name for name, lines in read.items() if lines])


@click.command(help=__doc__)
def main() -> None:
    homes = {"schemas": ROOT / "schemas", "loaders": ROOT / "loaders", "": ROOT / "packprep"}
    total = 0
    for room in ("", *BUDGET):
        home = homes.get(room, ROOT / "packprep" / room)
        paths = home.rglob("*.py") if room else home.glob("*.py")
        lines = sum(len(code_lines(path)) for path in paths)
        total += lines
        if room:
            click.echo(f"{room:12} {lines:7,} of {BUDGET[room]:,} code lines")
    shown = {name for group in GROUPS.values() for name in group}
    options = [spec.name for spec in fields(BuildConfig)]
    flags = sum(name in shown for name in options)
    built, read = modules()
    click.echo(f"in all       {total:7,} code lines")
    for folder in ("tests", "scripts"):
        click.echo(f"{folder:12} {lines_below(folder):7,} lines")
    click.echo(f"options      {flags:7,} of the command line, {len(options) - flags} more in YAML")
    click.echo(f"entered      {built:7,} modules by a build, {read} by an epoch")


if __name__ == "__main__":
    main()
