"""`packprep tokenize`."""

from dataclasses import replace
from typing import Any

import click

from ..config.options import GROUPS
from ..run.build import tokenize
from ..support.errors import ConfigError
from ..write.output import check_outside
from .options import command as make
from .options import config_of, progress_of


def run(config_file: str | None, quiet: bool, **given: Any) -> None:
    """Tokenize, and print the folder of the tokens."""
    config = config_of(given, config_file)
    config = replace(config, store=config.output or config.store, output="")
    if not config.store:
        raise ConfigError("-o is missing; name a folder for the tokens, such as -o tokens")
    check_outside(config.store)
    with progress_of(quiet) as progress:
        entry = tokenize(config, progress=progress)
    if not quiet:
        tokens = sum(file.tokens for file in entry.files)
        documents = sum(file.documents for file in entry.files)
        left = "" if entry.complete else "; splits of other parts are open"
        print(f"{entry.place}: {documents:,} documents, {tokens:,} tokens{left}")


command = make(
    "tokenize",
    run,
    (
        *("output", "tokenizer", *GROUPS["Text"], *GROUPS["Chats"], *GROUPS["Pairs, ids, pieces"]),
        *("group", "carry", "limit", "on_error", "executor", "num_proc", "part"),
    ),
    """\b
    Tokenize SOURCE... into a store, from which `packprep pack` makes outputs.
    Example: packprep tokenize docs/*.jsonl.gz -o tokens --tokenizer gpt2
    """,
)
for param in command.params:
    if isinstance(param, click.Option) and param.name == "output":
        param.help = "Folder or URL of the store, which may have other tokens too."
