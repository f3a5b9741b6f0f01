"""Comparison with the tokenizer that a trainer loads: AutoTokenizer of the installed transformers.

Its ids may differ from those of the tokenizer.json next to it: some classes of transformers build
the tokenizer again from its vocabulary, with their own pre-tokenizer, and keys of
tokenizer_config.json add tokens or make them special.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.config.grammar.source_names import hub_tokenizer
from packprep.engines.backends import HfEngine, added_tokens
from packprep.engines.compare import Library, first_difference
from packprep.engines.probes import probes
from packprep.support.errors import ConfigError, InputError

LIBRARY = "transformers"


def compare_with_trainer(
    against: str,
    source: Any,
    tokenizer_json: bytes,
    documents: Sequence[str],
    *,
    parse_special_tokens: bool,
) -> tuple[str, str | None]:
    """Compare ids on the probes and on documents.

    against: "transformers" for the tokenizer at `source`, or "transformers:NAME" for the one at
    NAME. Returns the name of the trainer's tokenizer with the texts compared, and the first
    difference, None if there is none. Raises ConfigError if transformers is not installed,
    InputError if it cannot load the tokenizer.
    """
    library, _, name = against.partition(":")
    if library != LIBRARY:
        raise ConfigError(
            f"a build is compared with {LIBRARY} or {LIBRARY}:NAME, not with {against}: other "
            "servers and trainers load its tokenizers"
        )
    trainer = _loaded(name or source, parse_special_tokens)
    engine = HfEngine(tokenizer_json, parse_special_tokens=parse_special_tokens)
    texts = [*probes(added_tokens(tokenizer_json)), *documents]
    compared = f"{trainer.name} of {LIBRARY} {trainer.version}, {len(texts):,} texts"
    if (difference := first_difference(trainer, engine, texts)) is None:
        return compared, None
    return compared, (
        f"{trainer.name} of {LIBRARY} {trainer.version} gives other ids than this tokenizer.json "
        f"with tokenizers {engine.version}: {difference}"
    )


def _loaded(source: Any, parse_special_tokens: bool) -> Library:
    """The tokenizer of transformers, named after its class."""
    if isinstance(source, (str, Path)):
        tokenizer = _from_files(str(source))
    elif hasattr(source, "backend_tokenizer"):
        tokenizer = source
    else:
        raise ConfigError(
            f"{type(source).__name__} is not what {LIBRARY} loads; give a path or a hub name as "
            "the tokenizer"
        )
    options: dict[str, bool] = {"add_special_tokens": False}
    if hasattr(tokenizer, "split_special_tokens"):
        options["split_special_tokens"] = not parse_special_tokens

    def ids(texts: list[str]) -> list[list[int]]:
        with _quiet():
            encoded: list[list[int]] = tokenizer(texts, **options)["input_ids"]
        return encoded

    return Library(type(tokenizer).__name__, importlib.metadata.version(LIBRARY), ids)


def _from_files(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(
            f"{LIBRARY} is not installed, so no tokenizer of it can be compared; pip install "
            "'packprep[transformers]'"
        ) from None
    source, revision = hub_tokenizer(name)
    folder = str(Path(source).parent) if Path(source).is_file() else source
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, revision=revision)
    except Exception as error:  # of any kind
        version = importlib.metadata.version(LIBRARY)
        raise InputError(
            f"AutoTokenizer of {LIBRARY} {version} cannot load {folder}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from printing that a text is longer than a model takes."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
