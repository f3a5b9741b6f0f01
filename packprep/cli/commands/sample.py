"""`packprep sample`: small real data to try every other command on."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from packprep.cli.completion import of_paths

_DESCRIPTIONS = {
    "code.jsonl": "documents: sources of the standard library",
    "prose.jsonl": "documents: chapters of the language reference",
    "chats.jsonl": "conversations about functions of the standard library",
    "pairs.jsonl": "preference pairs: a function's own documentation, and another's",
}


@click.command("sample", short_help="Write small real data to try packprep on.")
@click.argument(
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    shell_complete=of_paths(),
)
@click.option("--overwrite", is_flag=True, help="Replace files of DIR that differ.")
def command(folder: Path, overwrite: bool) -> None:
    """Write text, conversations, preference pairs and a tokenizer to DIR.

    They are made from the standard library of this Python, without a network: code.jsonl,
    prose.jsonl, chats.jsonl, pairs.jsonl and tokenizer/ with 8,192 tokens and a chat template. The
    same Python version writes the same bytes. Files that are there already and hold these bytes are
    left as they are.

    \b
    Example:
      packprep sample data
    """
    from packprep.cli.sample_data import VOCABULARY, sample_files
    from packprep.schemas.storage.writing import write_file

    files = sample_files()
    if not overwrite:
        _check_differences(folder, files)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            write_file(path, content)
    for name, description in _DESCRIPTIONS.items():
        rows, size = files[name].count(b"\n"), len(files[name]) / 1e6
        click.echo(f"{folder / name}: {rows:,} {description}, {size:.1f} MB")
    tokenizer = folder / "tokenizer"
    click.echo(f"{tokenizer}: {VOCABULARY:,} tokens and a chat template")
    words = ["packprep", "build", str(folder / "code.jsonl"), "-o", "packed"]
    words += ["--tokenizer", str(tokenizer), "--max-length", "2048"]
    click.echo(f"try next: {shlex.join(words)}")


def _check_differences(folder: Path, files: Mapping[str, bytes]) -> None:
    """Raise ConfigError if a file of other content would be replaced."""
    from packprep.support.errors import ConfigError

    for name, content in files.items():
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise ConfigError(
                f"{path} exists and differs from the sample; choose another folder, or replace it "
                "with --overwrite"
            )
