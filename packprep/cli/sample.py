"""`packprep sample`: small real data to try every other command on."""

from pathlib import Path

import click

from ..support.errors import ConfigError
from ..support.records import write_file
from .sample_data import VOCABULARY, sample_files

_WORDS = {
    "code.jsonl": "documents: sources of the standard library",
    "prose.jsonl": "documents: chapters of the language reference",
    "chats.jsonl": "conversations about functions of the standard library",
    "pairs.jsonl": "preference pairs: a function's own documentation, and another's",
}
_HELP = """Write text, conversations, preference pairs and a tokenizer to DIR.

They are made from the standard library of this Python, without a network. The same version of
Python writes the same bytes.

\b
Example: packprep sample data
"""


@click.command(help=_HELP, context_settings={"max_content_width": 80})
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def command(folder: Path) -> None:
    """Write the files, and print what they are."""
    files = sample_files()
    for name, content in files.items():
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise ConfigError(
                f"{path} is there and differs from the sample; choose another folder, or delete it"
            )
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, content)
    for name, words in _WORDS.items():
        rows, size = files[name].count(b"\n"), len(files[name]) / 1e6
        click.echo(f"{folder / name}: {rows:,} {words}, {size:.1f} MB")
    click.echo(f"{folder / 'tokenizer'}: {VOCABULARY:,} tokens and a chat template")
    options = f"-o packed --tokenizer {folder}/tokenizer --max-length 2048"
    click.echo(f"try next: packprep build {folder}/code.jsonl {options}")
