"""`packprep pack`."""

from typing import Any

from ..config.checks import names_token_files
from ..config.grammar import flag
from ..config.options import GROUPS
from ..run.build import pack
from ..run.parts import pack_part
from ..support.errors import ConfigError
from .options import command as make
from .options import config_of, progress_of
from .printing import print_output


def run(config_file: str | None, quiet: bool, **given: Any) -> None:
    """Pack, and print the closing table."""
    config = config_of(given, config_file)
    for name in ("tokenizer", "bos", "eos", "ids"):
        if given[name] is not None and not names_token_files(config.sources):
            what = f"{flag(name)} can do nothing here: the tokens are there already"
            raise ConfigError(f"{what}; leave it out")
    with progress_of(quiet) as progress:
        output = (pack_part if config.part else pack)(config, progress=progress)
    if not quiet and output is not None:
        print_output(output)
    elif not quiet:
        print(f"{config.output}: windows of other parts are open")


command = make(
    "pack",
    run,
    (
        *("output", "tokenizer", "max_length", "strategy", "overflow", "seed", "bos", "eos", "ids"),
        *[name for name in GROUPS["Packs"] if name != "group"],
        *GROUPS["Mixes and amounts"],
        *("columns", "multiple", "holdout", "overwrite", "executor", "num_proc", "part"),
    ),
    """\b
    Pack the tokens of stores: the bytes that `packprep build` would write.
    SOURCE: a folder of `packprep tokenize` or --store, or files .bin .npy .ds
    Example: packprep pack tokens -o packed --max-length 8192
    """,
)
