"""`packprep build`."""

from typing import Any

from ..run.build import build
from ..support.progress import Console
from .options import all_but, config_of, progress_of
from .options import command as make
from .printing import print_output


def run(config_file: str | None, quiet: bool, **given: Any) -> None:
    """Build, and print the closing table."""
    config = config_of(given, config_file)
    progress = progress_of(quiet)
    try:
        output = build(config, progress=progress)
    finally:
        if isinstance(progress, Console):
            progress.close()
    if not quiet:
        print_output(output)


command = make(
    "build",
    run,
    all_but("part"),
    """Tokenize and pack SOURCE... into shards that load_from_disk opens.

    SOURCE: .jsonl .json .csv .tsv .txt .parquet .arrow (also .gz, .zst), a glob, a folder, - for
    standard input, hub:ORG/SET[@REV][#SPLIT], token files (.bin .npy .ds). A stopped build resumes:
    run the same command again.

    Example: packprep build docs/*.jsonl.gz -o packed --tokenizer gpt2
    """,
)
