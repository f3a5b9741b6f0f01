"""`packprep build`."""

from typing import Any

import click

from ..config.options import GROUPS
from ..run.build import build
from .options import command as make
from .options import config_of, progress_of
from .printing import print_output


def run(config_file: str | None, quiet: bool, dry_run: bool, **given: Any) -> None:
    """Build, and print the closing table."""
    config = config_of(given, config_file)
    with progress_of(quiet) as progress:
        if dry_run:
            from . import dry_run as sample

            with sample.dry_run(config, progress) as (output, share):
                print_output(output, share)
            return
        output = build(config, progress=progress)
    if not quiet:
        print_output(output)


command = make(
    "build",
    run,
    [name for names in GROUPS.values() for name in names if name != "part"],
    """\b
    Tokenize and pack SOURCE... into shards that load_from_disk opens. SOURCE:
    .jsonl .json .csv .tsv .txt .parquet .arrow (.gz .zst), folder, URL, -, hub:ID
    Example: packprep build docs/*.jsonl.gz -o packed --tokenizer gpt2
    """,
)
command.params.append(
    click.Option(["--dry-run"], is_flag=True, help="Plan the first 16 MB of each source.")
)
