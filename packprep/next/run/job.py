"""From the options to a job: which files are read, how, and what decides the bytes."""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.checks import kind_of_rows
from ..config.options import BuildConfig
from ..plan.cut import TooLongError
from ..plan.types import Cutting
from ..plan.window import Packing
from ..read.sources import resolve
from ..read.splits import splits
from ..read.types import Ids
from ..schemas.canonical import digest_of
from ..schemas.cost import Cost
from ..support.errors import ConfigError, InputError
from ..support.progress import Progress
from ..tokens.store import entries_of, is_intact, key_of, read_entry, write_facts
from ..tokens.tokenizer import Tokenizer, load_tokenizer, split_token
from ..write.output import staging_of
from .types import Job


def tokenizer_of(config: BuildConfig) -> Tokenizer:
    """The tokenizer of a build. Rows of ids and pieces have ends of their own, unless asked for."""
    ends = {"bos": config.bos, "eos": config.eos}
    if kind_of_rows(config) not in ("text", "messages"):
        ends = {end: "none" if asked == "auto" else asked for end, asked in ends.items()}
    return load_tokenizer(config.tokenizer, **ends)


def make_job(config: BuildConfig, progress: Progress, *, packs: bool = True) -> Job:
    """The job of `build`, or of `tokenize` if nothing is packed.

    Digests of all sources are computed, and the folder of token files is made with its facts.
    """
    _check_places(config, packs=packs)
    tokenizer = tokenizer_of(config)
    for note in tokenizer.notes:
        progress.say(note)
    staging = staging_of(Path(config.output)) if packs else None
    scratch = (staging or Path(str(config.store))) / "scratch"
    split_at = split_token(config.tokenizer, config.split_at)
    sources = tuple(resolve(config, tokenizer.vocab_size, split_at, scratch, progress))
    parts = tuple(splits(sources))
    deciding: dict[str, Any] = {
        "sources": [
            {"digest": s.digest, "format": s.format, "entry": s.entry, "limit": s.limit}
            | {"rows": {"kind": type(s.rows).__name__, **asdict(s.rows)}}
            for s in sources
        ],
        "tokenizer": tokenizer.facts(),
        "options": {
            name: value
            for name in ("carry", "group", "limit", "template_variables")
            if (value := getattr(config, name)) not in (None, ())
        },
        "skips": config.on_error == "skip",
    }
    key = key_of(deciding)
    folder = Path(config.store) / key if config.store else Path(str(staging)) / "tokens"
    inputs = {"tokens": deciding, "options": config.deciding()}
    return Job(
        config=config,
        sources=sources,
        splits=parts,
        tokenizer=tokenizer,
        entries=(folder,),
        staging=staging,
        inputs=inputs,
        identity=digest_of(inputs),
    )


def write_entry(job: Job) -> None:
    """Write the facts of the token files that the job makes."""
    deciding = job.inputs["tokens"]
    facts = {
        "deciding": deciding,
        "splits": len(job.splits),
        "limit": job.config.limit,
        "names": [source.name for source in job.sources],
        "bytes": [source.bytes for source in job.sources],
        "pairs": job.config.pairs is not None,
    }
    write_facts(job.entries[0], facts)


def stored_job(config: BuildConfig, progress: Progress) -> Job:
    """The job of `pack STORE...`.

    Raises ConfigError for a store without tokens, or with several sets of them.
    """
    _check_places(config, packs=True)
    folders = []
    for store in config.sources:
        found = entries_of(Path(str(store)))
        if len(found) > 1:
            listed = ", ".join(str(folder) for folder in found[:5])
            raise ConfigError(f"{store} has tokens of several inputs; name one of {listed}")
        folders += found
    entries = [read_entry(folder) for folder in folders]
    for entry in entries:
        if not entry.complete:
            raise ConfigError(
                f"{entry.path} has open splits; run packprep tokenize again to finish it"
            )
        damaged = next((f for f in entry.files if not is_intact(entry.path / f.name, f)), None)
        if damaged is not None:
            raise InputError(
                f"{entry.path / damaged.name} has changed since it was written; delete "
                f"{entry.path}, and tokenize its sources again"
            )
    deciding = [entry.facts["deciding"] for entry in entries]
    tokenizers = [each["tokenizer"] for each in deciding]
    if tokenizers.count(tokenizers[0]) != len(tokenizers):
        raise ConfigError(
            "the stores were made with different tokenizers; pack each of them by itself"
        )
    tokens: Any = deciding[0]
    if len(deciding) > 1:
        tokens = {"stores": deciding}
    inputs = {"tokens": tokens, "options": config.deciding()}
    return Job(
        config=config,
        sources=(),
        splits=(),
        tokenizer=Tokenizer.from_facts(tokenizers[0]),
        entries=tuple(folders),
        staging=staging_of(Path(config.output)),
        inputs=inputs,
        identity=digest_of(inputs),
    )


def _check_places(config: BuildConfig, *, packs: bool) -> None:
    if not config.sources:
        raise InputError("no source is given; name files, a folder, - or a hub dataset")
    if packs and not config.output:
        raise ConfigError("no output is given; add -o OUT")
    if not packs and not config.store:
        raise ConfigError("no token store is given; add --store DIR")


def packing_of(config: BuildConfig, tokenizer: Tokenizer, *, pairs: bool) -> Packing:
    """What planning a window needs of the options."""
    overflow, order = config.too_long, config.pack_order
    cutting = Cutting(
        max_length=int(config.max_length),
        overflow=overflow.name,
        how=overflow.how,
        stride=int(config.stride),
        continuation_bos=config.continuation_bos,
        min_document_tokens=int(config.min_document_tokens),
        max_document_tokens=_int(config.max_document_tokens),
        multiple=int(config.pad_to_multiple),
        ends=sum(end >= 0 for end in tokenizer.end_ids),
        has_bos=tokenizer.bos is not None,
        pairs=pairs,
        wrapped=config.packer.name == "wrapped",
    )
    return Packing(
        cutting=cutting,
        strategy=config.packer.name,
        num_packs=config.packer.packs,
        order=order.name,
        ranks=order.ranks,
        cost=Cost(*order.cost),
        min_pack_tokens=int(config.min_pack_tokens),
        max_segments=_int(config.max_segments),
        shuffle_documents=config.shuffle_documents,
        repack=int(config.epoch) > 0,
    )


def _int(value: int | str | None) -> int | None:
    return None if value is None else int(value)


def versions() -> dict[str, str]:
    """Versions that a bug report needs."""
    names = ("packprep", "datasets", "pyarrow", "tokenizers", "numpy", "numba", "fastokens")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def too_long(error: TooLongError, source: str, row: int, max_length: int) -> InputError:
    """The error about a document that is longer than a pack, with its file and row."""
    return InputError(
        f"{source} row {row} has {error.tokens:,} tokens but a pack holds {max_length:,}; choose "
        "--overflow split, truncate or drop"
    )


def names_of(job: Job, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of all sources of a job, in order."""
    return [s.name for s in job.sources] or [n for each in facts for n in each["names"]]


def is_ids(job: Job) -> bool:
    """True if the rows are token ids, which need no engine."""
    return all(isinstance(source.rows, Ids) for source in job.sources)
