"""`packprep pack`: tokens of a store to shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from packprep.cli.commands.build import (
    EXIT_CODES,
    Grouped,
    forecast,
    merged_options,
    perform,
    run_options,
    verb_options,
)
from packprep.cli.output_type import output_at
from packprep.cli.printing import print_report
from packprep.config.verbs import PACK, TOKEN_FILES
from packprep.engines.third_party import tell_libraries

if TYPE_CHECKING:
    from packprep.execute.work import Work
    from packprep.schemas.manifest import Manifest


class _Pack(Grouped):
    words: ClassVar[Mapping[str, str]] = {
        "sources": "Folders of packprep tokenize or --keep-tokens, or token files.",
        "max_tokens": "Draw N tokens from a mix.",
    }


@verb_options(PACK | TOKEN_FILES)
@click.command(
    "pack",
    cls=_Pack,
    short_help="Pack the tokens of a store into shards.",
    epilog=EXIT_CODES,
)
@run_options("STORE", "the report", estimate="the figures of the output")
def command(sources: tuple[str, ...], config: Path | None, **typed: Any) -> None:
    """Pack the tokens of STORE... into shards that datasets.load_from_disk opens.

    STORE is a folder that packprep tokenize or --keep-tokens wrote, or an entry of one. No text is
    read: the options of text are those that the tokens were made with. The output is the one that
    packprep build makes of the same sources; weights are of the SOURCEs that were tokenized.

    STORE may also be token files of another tool (.bin with .idx, .npy, .ds); give their
    --tokenizer or --vocab-size. Nothing is written into their folder.

    \b
    Example:
      packprep tokenize docs/*.jsonl -o tokens --tokenizer gpt2
      packprep pack tokens -o packed --max-length 8192
    """
    options, run = merged_options(sources, config, typed)
    stores = [str(store) for store in options.pop("sources", ())]
    tell_libraries()

    def work() -> "Work[Manifest]":
        from packprep.execute.stored import of_pack

        return of_pack(stores, options)

    if run["dry_run"]:
        forecast(work, run)
    elif perform(work, run):
        print_report(output_at(str(options["output"])), as_json=run["json"], quiet=run["quiet"])
