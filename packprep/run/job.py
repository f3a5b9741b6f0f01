"""From the options to a job: which files are read, how, and what decides the bytes."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config.checks import kind_of_sides, mix_of
from ..config.grammar import Holdout
from ..config.options import BuildConfig
from ..plan.types import Cutting
from ..plan.window import Packing, Planner
from ..read.reading import SPLIT_BYTES, splits
from ..read.sources import content_digests, resolve
from ..read.types import Ids, Piece, Source, Split
from ..schemas.files import Files, digest_of, files_at, is_url
from ..schemas.manifest import open_output
from ..support.errors import ConfigError, InputError
from ..support.progress import Progress
from ..tokens.store import complete_entry, key_of, write_facts
from ..tokens.tokenizer import Tokenizer, load_tokenizer, split_token
from ..write.output import staging_of, unfinished

_OF_TOKENS = ("carry", "group", "limit")  # options of rows that are in no other place
_LONGEST_NAME = 200  # bytes; a file system has 255, and names beside it have more


class Task(NamedTuple):
    """tokenize: a split, by its number. pack: a window, by its place in the list of windows."""

    kind: Literal["tokenize", "pack"]
    number: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command as a value: a pure function of the options and of the files that they name.

    sources, splits: empty for `pack STORE`. entries: places of token files; for build and tokenize
    the one that its tasks write. renderer: `chat.documents.Renderer` of chats and pieces. inputs:
    all that decides the bytes of the output. sample: one token file of each split is enough.
    """

    config: BuildConfig
    sources: tuple[Source, ...] = ()
    splits: tuple[Split, ...] = ()
    tokenizer: Tokenizer
    renderer: Any = None
    entries: tuple[Files, ...]
    inputs: Mapping[str, Any]
    planner: Planner | None = None
    sample: bool = False

    @cached_property
    def work(self) -> Files:
        """Files of the output that is made."""
        return unfinished(self.config.output, self.identity)

    @property
    def limits(self) -> dict[int | None, int]:
        """Rows that are read at most, of all sources (None) and by entry of the sources."""
        every: dict[int | None, int | None] = {each.entry: each.limit for each in self.sources}
        every[None] = self.config.limit
        return {key: limit for key, limit in every.items() if limit is not None}

    @cached_property
    def identity(self) -> str:
        """Digest of all that decides the bytes of the output."""
        return digest_of(self.inputs)

    @property
    def facts(self) -> dict[str, Any]:
        """The content of job.json. entries: for `report` of a build that is not finished."""
        entries = [str(e if is_url(str(e)) else e.root.absolute()) for e in self.entries]
        return {"identity": self.identity, "inputs": self.inputs, "entries": entries}


def text_bytes(source: Source) -> int:
    """Bytes of a source as plain text: compressed text is mostly four times as long."""
    return source.bytes * (4 if source.compression else 1)


def share_of_text(sample: Job, job: Job) -> float:
    """Share of the text of a job that a sample reads: of a split, at most its first 16 MB."""
    if job.limits:
        return 1.0
    sizes = [sum(_text_of(piece, job) for piece in split) for split in sample.splits]
    read = sum(min(size, SPLIT_BYTES) for size in sizes)
    return read / sum(map(text_bytes, job.sources))


def _text_of(piece: Piece, job: Job) -> int:
    """Bytes of text of a piece: 16 MB, if the source has more pieces after it."""
    whole = text_bytes(job.sources[piece.source])
    if piece.end >= 0:
        return SPLIT_BYTES
    return whole % SPLIT_BYTES if piece.begin else whole


def make_job(
    config: BuildConfig,
    progress: Progress,
    planner: Planner | None = None,
    *,
    packs: bool = True,
    sample: bool = False,
    digests: Path | None = None,
) -> Job:
    """The job of `build`, or of `tokenize` if nothing is packed.

    Digests of all sources are computed, unless they are read for a sample alone. digests: folder
    that keeps them.
    """
    config = _prepared(config, packs=packs)
    tokenizer, renderer = tokenizer_of(config, progress)
    _check_bos(config, tokenizer)
    staging = staging_of(config.output) if packs else beside_store(str(config.store))
    split_at = split_token(config.tokenizer, config.split_at) if config.split_at else None
    digest: Any = None if sample else content_digests
    if config.part is not None or digests is not None:
        from .parts import kept_digests

        digest = partial(kept_digests, digests or staging / "digests")
    ids = Ids(split_at=split_at, vocab_size=tokenizer.vocab_size)
    # A folder of this process: others run beside it, or were killed and sources have changed since.
    sources = resolve(config, ids, staging / "scratch" / os.urandom(4).hex(), progress, digest)
    tokens = {
        "sources": [
            {"digest": s.digest, "format": s.format, "entry": s.entry, "limit": s.limit}
            | {"rows": {"kind": type(s.rows).__name__, **asdict(s.rows)}}
            for s in sources
        ],
        "tokenizer": tokenizer.facts(),
        "renderer": renderer and renderer.facts(),
        "options": {n: value for n, value in config.deciding().items() if n in _OF_TOKENS},
        "skips": config.on_error == "skip",
    }
    store = f"{config.store.rstrip('/')}/{key_of(tokens)}" if config.store else staging / "tokens"
    return Job(
        config=config,
        sources=tuple(sources),
        splits=tuple(splits(sources)),
        tokenizer=tokenizer,
        renderer=renderer,
        entries=(files_at(store, drafts=staging / "tokens"),),
        inputs=_inputs(tokens, config, planner, [source.name for source in sources]),
        planner=planner,
        sample=sample,
    )


def tokenizer_of(config: BuildConfig, progress: Progress) -> tuple[Tokenizer, Any]:
    """The tokenizer, and the renderer of chats and pieces.

    Rows of ids and pieces have ends of their own unless they are asked for, and a template writes
    those of chats.
    """
    kind, ends = kind_of_sides(config), {"bos": config.bos, "eos": config.eos}
    asked = {end: "none" if each == "auto" else each for end, each in ends.items()}
    tokenizer = load_tokenizer(config.tokenizer, **(ends if kind == "text" else asked))
    renderer: Any = None
    notes: list[str] = []
    if kind not in ("text", "ids"):
        from ..chat.documents import renderer_of

        renderer, notes = renderer_of(config, tokenizer)
    if kind == "messages" and renderer.template is None:
        tokenizer = load_tokenizer(config.tokenizer, **ends)
    elif kind == "messages" and (named := [end for end in ends if config.is_set(end)]):
        raise ConfigError(f"the chat template writes BOS and EOS itself; leave out --{named[0]}")
    for note in (*tokenizer.notes, *notes):
        progress.say(note)
    return tokenizer, renderer


def _check_bos(config: BuildConfig, tokenizer: Tokenizer) -> None:
    if config.continuation_bos and tokenizer.bos is None:
        raise ConfigError(
            "continuation_bos repeats the BOS of a document, and none is added here; leave it out"
        )


def write_entry(job: Job) -> None:
    """Write the facts of the token files that the job makes."""
    is_chat = kind_of_sides(job.config) == "messages"
    facts = {
        "deciding": job.inputs["tokens"],
        "splits": len(job.splits),
        "limit": job.config.limit,
        "names": [source.name for source in job.sources],
        "tokenizer": name if isinstance(name := job.config.tokenizer, str | int) else None,
        "bytes": [source.bytes for source in job.sources],
        "pairs": job.config.pairs is not None,
        "turns": is_chat or job.config.split_at is not None,
    }
    write_facts(job.entries[0], facts)


def stored_job(config: BuildConfig, planner: Planner | None = None, *, digests: bool = True) -> Job:
    """The job of `pack STORE...`.

    Raises ConfigError for a store without tokens, or with several sets of them.
    """
    config = _prepared(config, stored=True)
    entries = [complete_entry(str(store), digests=digests) for store in config.sources]
    tokens: list[Any] = [entry.facts["deciding"] for entry in entries]
    names = [name for entry in entries for name in entry.facts["names"]]
    if any(each["tokenizer"] != tokens[0]["tokenizer"] for each in tokens):
        raise ConfigError(
            "the stores were made with different tokenizers; pack each of them by itself"
        )
    if len({entry.facts["pairs"] for entry in entries}) > 1:
        raise ConfigError("only some of the stores have pairs; pack those by themselves")
    tokenizer = Tokenizer.from_facts(tokens[0]["tokenizer"])
    _check_bos(config, tokenizer)
    every = tokens[0] if len(tokens) == 1 else {"stores": tokens}
    return Job(
        config=of_pairs(config) if entries[-1].facts["pairs"] else config,
        tokenizer=tokenizer,
        entries=tuple(entry.place for entry in entries),
        inputs=_inputs(every, config, planner, names),
        planner=planner,
    )


def of_pairs(config: BuildConfig) -> BuildConfig:
    """The options of `pack` for a store of pairs, which are truncated unless the user says more."""
    if config.too_long.name != "split":
        return config
    if config.overflow is not None:
        raise ConfigError("--overflow split would split pairs; choose truncate, drop or error")
    return replace(config, overflow="truncate")


def beside_store(store: str) -> Path:
    """Folder of this machine for `tokenize`: the store, unless that is at a URL."""
    return staging_of(store) if is_url(store) else Path(store)


def _inputs(
    tokens: Mapping[str, Any], config: BuildConfig, planner: Planner | None, names: Sequence[str]
) -> dict[str, Any]:
    """All that decides the bytes of an output. names: of the sources."""
    inputs: dict[str, Any] = {"tokens": tokens, "options": config.deciding()}
    if mix := mix_of(config):
        inputs["mix"] = [[str(part) for part in each] for each in mix]
    if config.after is not None:
        from ..plan.after import follow

        before = open_output(config.after).manifest.data
        inputs["after"] = follow(before, tokens, names, config.pack_order.name == "input")
    if planner is not None:
        if config.part is not None or config.executor != "local":
            raise ConfigError(
                "a planner of your own is for one process; leave out part and executor"
            )
        name = getattr(planner, "__qualname__", type(planner).__name__)
        inputs["planner"] = f"{planner.__module__}.{name}"
    return inputs


def _following(config: BuildConfig) -> BuildConfig:
    """The options with the holdout of the output that `after` names."""
    holdout = open_output(str(config.after)).manifest.data["inputs"]["options"].get("holdout")
    if config.holdout is not None and config.held_out != Holdout.parse(holdout):
        raise ConfigError(
            f"--holdout is {config.holdout} and that of {config.after} is {holdout or 'none'}; "
            "leave it out, so that no row that was held out is trained"
        )
    return replace(config, holdout=holdout)


def _prepared(config: BuildConfig, *, packs: bool = True, stored: bool = False) -> BuildConfig:
    """The options, whose places are checked, with what `after` decides."""
    if not config.sources:
        raise InputError("no source is given; name files, a folder, - or a hub dataset")
    output, name = config.output, os.fsencode(Path(config.output).name)
    if packs and (name in (b"", b"..") or len(name) > _LONGEST_NAME):
        raise ConfigError(f"-o is {output!r}, expected a new folder, such as packed")
    if config.is_plan and packs and not config.store and not stored:
        raise ConfigError("--columns plan leaves the tokens in a store; keep one with --store DIR")
    if config.is_plan and packs and any(map(is_url, (output, config.store, *config.sources))):
        raise ConfigError("--columns plan is for folders, not for URLs; build shards")
    if not packs and not config.store:
        raise ConfigError("no token store is given; add --store DIR")
    return config if config.after is None else _following(config)


def packing_of(config: BuildConfig, tokenizer: Tokenizer, *, pairs: bool) -> Packing:
    """What planning a window needs of the options."""
    overflow = config.too_long
    cutting = Cutting(
        max_length=config.max_length,
        overflow=overflow.name,
        how=overflow.how,
        stride=config.stride,
        continuation_bos=config.continuation_bos,
        min_document_tokens=config.min_document_tokens,
        max_document_tokens=config.max_document_tokens,
        multiple=config.pad_to_multiple,
        ends=sum(end >= 0 for end in tokenizer.end_ids),
        has_bos=tokenizer.bos is not None,
        pairs=pairs,
        wrapped=config.packer.name == "wrapped",
    )
    return Packing(cutting=cutting, options=config)


def versions() -> dict[str, str]:
    """Versions that a bug report needs."""
    names = ("packprep", "datasets", "pyarrow", "tokenizers", "numpy", "numba", "fastokens")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
