"""Lengths for `packprep plan`, from an array, token stores, a finished output, or text.

Text is tokenized as in a build: all of it, or a share of the documents that the seed draws. The
tokens go to a temporary folder, or with --keep-tokens to a token store. A build with that store
then reads no text.
"""

import math
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.rules import flag
from packprep.config.stages import Writing
from packprep.config.verbs import OF_TEXT
from packprep.execute.job import Job
from packprep.execute.stages import Stages
from packprep.execute.stored import Tokens
from packprep.execute.window_files import Windows
from packprep.execute.work import Origin, SourceRows, Work
from packprep.output.build_output import UNNAMED
from packprep.output.shard_writer import ShardLayout, write_shard
from packprep.output.staging import Staging
from packprep.preview.stored_lengths import (
    Lengths,
    lengths_of_array,
    lengths_of_output,
    lengths_of_tokens,
    of_files,
    sampled,
    scale_of,
)
from packprep.schemas.files import MANIFEST
from packprep.schemas.index.runs import Pointers
from packprep.schemas.storage.places import Directory, files_at, finished_output
from packprep.sources.source import Source
from packprep.sources.units import Part, Slice, read_slices, row_bytes
from packprep.support.arrays import Bools
from packprep.support.clock import StageClock
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream
from packprep.support.progress import Progress
from packprep.tokens.encode import load_encoder
from packprep.tokens.store import TokenFile, stored
from packprep.tokens.token_files import slices_ahead, tokenize_slice, tokenize_slices
from packprep.windows.documents import Documents
from packprep.windows.planner import plan_window

_WRITTEN = 4_000_000  # tokens of the shard that measures the write rate


@contextmanager
def read_lengths(
    config: BuildConfig, share: float, progress: Progress, tokens: Tokens | None = None
) -> Iterator[Lengths]:
    """Lengths of `config.sources`: one .npy file or output, or any sources of text.

    share: share of the documents to draw, more than 0 and at most 1. tokens: those to plan if the
    sources are stores, see `store_tokens`; the config is of `options_to_plan` then. Raises
    ConfigError, InputError or FormatError. Documents may point into a temporary folder that is
    deleted at the end.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"sample is {share:g}, expected a share of more than 0 and at most 1")
    names = [path for entry in config.entries() for path in entry.paths]
    if config.is_mix:
        raise ConfigError(
            "plan takes sources without weights or phases; packprep build --dry-run predicts those"
        )
    files = files_at(names[0]) if len(names) == 1 and tokens is None else None
    path = files.directory if files is not None else None
    is_output = files is not None and files.find(MANIFEST) is not None
    if is_output:  # may have the options that it was built with
        _refuse(config, ("group_column", "skip_rows"), names[0])
    elif path is not None and path.suffix == ".npy":
        _refuse(config, {*OF_TEXT, "skip_rows"} - {"sources", "input_ids_column"}, names[0])
    with tempfile.TemporaryDirectory(prefix="packprep-plan-") as folder:
        staging = Staging(Path(folder))
        staging.scratch.mkdir()
        if tokens is not None:
            lengths = lengths_of_tokens(tokens, _job(config, tokens, staging, progress))
        elif path is not None and path.suffix == ".npy":
            lengths = lengths_of_array(path, config.holdout, config.seed)
        elif is_output:
            lengths = lengths_of_output(finished_output(names[0]))
        else:
            lengths = _of_text(config, share, staging, progress)
        if lengths.share == 1:
            lengths = sampled(lengths, share, config.seed, trees=config.share_prefixes > 0)
        yield lengths


def _refuse(config: BuildConfig, options: Collection[str], name: str) -> None:
    """Raise ConfigError for the first of these options, which need rows and not their lengths."""
    default = BuildConfig()
    for option in sorted(options):
        if getattr(config, option) != getattr(default, option):
            raise ConfigError(
                f"{flag(option)} needs the rows of sources, but {name} holds lengths only; leave "
                "it out, or plan the sources, or their token store, instead"
            )


def _of_text(config: BuildConfig, share: float, staging: Staging, progress: Progress) -> Lengths:
    """Lengths of text, tokenized now as a build does, or read from the token store.

    Of all of it, or, if nothing is stored, of a share of the documents.
    """
    origin = SourceRows(config)
    job = _job(config, origin, staging, progress)
    is_stored = bool(config.keep_tokens) and stored(job.tokens, digests=False) is not None
    if config.keep_tokens and share < 1 and not is_stored:
        raise ConfigError(
            "a token store holds the tokens of all documents; omit --sample or --keep-tokens"
        )
    name = ", ".join(entry.label for entry in config.entries())
    if share < 1 and not is_stored:
        return _sample(name, job, share, progress)
    clock = StageClock()
    with origin.used(job):
        files = Stages(job, progress, clock).tokenize()
    rules = Windows(job, files).rules
    if is_stored:
        return of_files(f"tokens at {job.tokens}", job, job.tokens, files, rules)
    seconds = clock.seconds["tokenize"]
    return replace(of_files(name, job, job.tokens, files, rules), tokenize_seconds=seconds)


def _job(config: BuildConfig, origin: Origin, staging: Staging, progress: Progress) -> Job:
    """The job of a build that ends with token files."""
    work = Work(config=config, origin=origin, output=UNNAMED, packs=False)
    return work.job(work.tokenizer(progress), staging, progress)


def _sample(name: str, job: Job, share: float, progress: Progress) -> Lengths:
    """Lengths of a share of the documents, tokenized now; all of the text is read."""
    config, sources = job.config, job.sources
    stages = config.parsing, config.tokenizing
    encoder = load_encoder(job.tokenizer, *stages, config.seed, config.num_proc)
    for note in encoder.engine.notes if encoder.engine is not None else ():
        progress.say(note)
    plain = all(source.is_plain for source in sources)
    total = sum(source.bytes for source in sources) / 1e6 if plain else None
    slices = read_slices(sources, job.plans[0], config.reading, job.scratch)
    reader = _Reader(slices, sources, config.seed, share)

    def make(piece: Slice, stop: threading.Event) -> TokenFile:
        return tokenize_slice(piece, job.tokens, encoder, stop=stop)

    started = time.monotonic()
    files = tokenize_slices(
        reader.slices(),
        job.tokens,
        make,
        slices_ahead(config.running, config.unit_size, isolated=config.isolated),
        None if config.max_tokens is None else math.ceil(config.max_tokens * share),
        lambda _: progress.advance("tokenize", reader.text_bytes / 1e6, total, "MB"),
    )
    seconds = time.monotonic() - started
    if not reader.text_bytes and not files:
        raise InputError("the sources hold no rows; expected at least one document")
    scale = scale_of(reader.text_bytes, sum(file.text_bytes for file in files), share)
    tokenize_seconds = reader.seconds + max(0.0, seconds - reader.seconds) / share
    rules = config.pack_rules()  # no listed row was read
    lengths = of_files(name, job, job.tokens, files, rules)
    return replace(lengths, share=share, scale=scale, tokenize_seconds=tokenize_seconds)


class _Reader:
    """Slices of a build with a share of their documents, of those that no list leaves out.

    text_bytes: text of these documents, drawn or not. seconds: time to read it.
    """

    def __init__(
        self, slices: Iterator[Slice], sources: Sequence[Source], seed: int, share: float
    ) -> None:
        self._all, self._sources = slices, sources
        self._firsts: dict[int, int] = {}  # first document of each source
        self._key = stream(seed, Purpose.PLAN_TEXT)
        self._share = share
        self.text_bytes = 0
        self.seconds = 0.0

    def slices(self) -> Iterator[Slice]:
        while (piece := self._next()) is not None:
            ids, listed = np.arange(piece.first_document, piece.end), self._listed(piece)
            self.text_bytes -= int(row_bytes(piece.table.filter(pa.array(listed))).sum())
            piece = _thinned(piece, drawn(self._key, ids, self._share) & ~listed)
            if len(piece.table):
                yield piece

    def _next(self) -> Slice | None:
        started = time.monotonic()
        piece = next(self._all, None)
        self.seconds += time.monotonic() - started
        self.text_bytes += piece.text_bytes if piece is not None else 0
        return piece

    def _listed(self, piece: Slice) -> Bools:
        """Mask of the documents of a slice that skip_rows lists."""
        masks, document = [], piece.first_document
        for part in piece.parts:
            first = self._firsts.setdefault(part.source, document)
            rows = np.arange(document, document + part.rows) - first
            masks.append(np.isin(rows, self._sources[part.source].skip_rows))
            document += part.rows
        return np.concatenate(masks)


def _thinned(piece: Slice, kept: Bools) -> Slice:
    """These documents of a slice. kept: mask, [documents]."""
    table = piece.table.filter(pa.array(kept))
    parts, first = [], 0
    for part in piece.parts:
        parts.append(Part(part.source, int(kept[first : first + part.rows].sum()), {}))
        first += part.rows
    return replace(
        piece,
        documents=len(table),
        text_bytes=int(row_bytes(table).sum()),
        table=table,
        parts=tuple(parts),
    )


def write_rate(lengths: Lengths, max_length: int, writing: Writing) -> float:
    """Bytes per second of writing a shard, measured on packs of the first documents.

    They are gathered, checked, hashed and synced, into the folder for temporary files. Their tokens
    are zeros.
    """
    length = max((window.documents.length for window in lengths.windows), key=len)
    length = length[: int(np.searchsorted(np.cumsum(length, dtype=np.int64), _WRITTEN)) + 1]
    # Of the type of a token file, so that no other kernel is compiled than in a build.
    zeros = np.zeros(max(1, int(length.max(initial=0))), lengths.tokenizer.id_type)
    documents = Documents(
        id=np.arange(len(length)),
        tokens=Pointers.into(zeros, np.zeros(len(length), np.int64)),
        length=length,
        source=np.zeros(len(length), np.int32),
        group=None,
    )
    tokenizer = replace(lengths.tokenizer, bos=None, eos=None, pad_id=0)
    plain = BuildConfig(
        max_length=max_length, columns=writing.columns, token_type=writing.token_type
    )
    layout = ShardLayout.of(plain.pack_rules(), plain.writing, tokenizer)
    packs = plan_window(documents, tokenizer, plain.pack_rules(), 0).packs
    with tempfile.TemporaryDirectory(prefix="packprep-plan-") as folder:
        shards = Directory(Path(folder))
        write_shard(
            shards, "warm.arrow", "train", packs, 0, min(1, len(packs)), layout
        )  # compiles, the first time
        started = time.perf_counter()
        shard = write_shard(shards, "shard.arrow", "train", packs, 0, len(packs), layout)
        return shard.bytes / max(time.perf_counter() - started, 1e-6)
