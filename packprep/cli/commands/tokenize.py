"""`packprep tokenize`: rows to tokens in a store, for `packprep pack`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from packprep.cli.commands.build import (
    EXIT_CODES,
    Grouped,
    perform,
    resolve_options,
    run_options,
    verb_options,
)
from packprep.cli.commands.store import print_store
from packprep.config.verbs import TOKENIZE
from packprep.engines.third_party import share_machine, tell_libraries

if TYPE_CHECKING:
    from packprep.execute.work import Work


class _Tokenize(Grouped):
    words: ClassVar[Mapping[str, str]] = {
        "output": "Token store, a folder; what it does not have is added."
    }


@verb_options(TOKENIZE)
@click.command(
    "tokenize",
    cls=_Tokenize,
    short_help="Tokenize text into a store, to pack it in many ways.",
    epilog=EXIT_CODES,
)
@run_options("SOURCE", "the entries of the store")
def command(sources: tuple[str, ...], config: Path | None, **typed: Any) -> None:
    """Tokenize SOURCE... into a store of tokens, which packprep pack packs.

    -o is the store, a folder. Sources that it has already are not tokenized again: the others
    become a new entry of it. All entries of a store have one tokenizer. packprep store lists and
    checks them.

    \b
    Example:
      packprep tokenize docs/*.jsonl -o tokens --tokenizer gpt2
      packprep pack tokens -o packed --max-length 8192
    """
    settings, run = resolve_options(sources, config, typed)
    tell_libraries()
    share_machine(settings.num_proc, settings.tokenizing)

    def work() -> "Work[Any]":
        from packprep.execute.stored import of_tokenize

        return of_tokenize(settings)

    if perform(work, run):
        print_store(settings.output, as_json=run["json"], quiet=run["quiet"])
