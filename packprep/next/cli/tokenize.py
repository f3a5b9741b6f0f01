"""`packprep tokenize`."""

from dataclasses import replace
from typing import Any

from ..run.build import tokenize
from ..support.progress import Console
from .options import command as make
from .options import config_of, progress_of

_OPTIONS = (
    *("output", "text", "messages", "pairs", "ids", "pieces", "carry", "group", "limit"),
    *("on_error", "tokenizer", "bos", "eos", "chat_template", "train_on", "turns"),
    *("executor", "num_proc", "part"),
)


def run(config_file: str | None, quiet: bool, **given: Any) -> None:
    """Tokenize, and print the folder of the tokens."""
    config = config_of(given, config_file)
    config = replace(config, store=config.output or config.store, output="")
    progress = progress_of(quiet)
    try:
        entry = tokenize(config, progress=progress)
    finally:
        if isinstance(progress, Console):
            progress.close()
    if not quiet:
        tokens = sum(file.tokens for file in entry.files)
        documents = sum(file.documents for file in entry.files)
        print(f"{entry.path}: {documents:,} documents, {tokens:,} tokens")


command = make(
    "tokenize",
    run,
    _OPTIONS,
    """Tokenize SOURCE... into a store, from which `packprep pack` makes outputs.

    Example: packprep tokenize docs/*.jsonl.gz -o tokens --tokenizer gpt2
    """,
)
