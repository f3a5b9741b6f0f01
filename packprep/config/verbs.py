"""Options of `packprep tokenize` and of `packprep pack`; `build` has all."""

from collections.abc import Iterable

from packprep.config.grammar.rules import flag
from packprep.config.stages import (
    Command,
    Cutting,
    Ordering,
    Packing,
    Parsing,
    Reading,
    Running,
    Tokenizing,
    Writing,
    options_in,
)
from packprep.support.errors import ConfigError

MIX = frozenset({"weights", "max_epochs", "phases"})
"""Options of reading that draw documents, which are tokenized already."""
_RUN = options_in(Running, Command) - {"keep_tokens"}
OF_TEXT = options_in(Reading, Parsing, Tokenizing) - MIX
"""Options that decide tokens; those of a store are those of every pack of it."""
TOKENIZE = OF_TEXT | _RUN - {"overwrite", "append", "work_dir", "unproven_store"}
PACK = options_in(Cutting, Packing, Ordering, Writing) | MIX | _RUN | {"max_tokens"}
TOKEN_FILES = frozenset({"tokenizer", "vocab_size", "bos", "eos", "boundaries"})
"""Options of `pack` for token files of other tools, which say nothing of their tokenizer."""


OPTIONS = {"tokenize": TOKENIZE, "pack": PACK}
"""Options of each verb."""


def other_verb(option: str, verb: str) -> str | None:
    """The verb that has an option which this one does not have; None if there is none."""
    return next(
        (
            other
            for other, options in OPTIONS.items()
            if verb in OPTIONS and other != verb and option in options
        ),
        None,
    )


def check_verb(names: Iterable[str], known: frozenset[str], verb: str, other: str) -> None:
    """Raise ConfigError for an option of the other verb. names: of options that are given."""
    for name in names:
        if name not in known and name != "sources":
            raise ConfigError(
                f"{flag(name)} is an option of packprep {other}, not of {verb}; give it there, or "
                "run packprep build, which has both"
            )
