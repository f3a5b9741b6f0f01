"""Lengths for `packprep plan`.

From an array, a token store, a finished output, or text.

All but text hold the lengths already, and no token of them is read. Text is tokenized as a build
does it, all of it or a share of the documents that the seed draws, into a temporary folder that
goes away, or with --keep-tokens into a store: a build with the same store then reads no text.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.config.build_config import COLUMN_CHOICE, BuildConfig
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.engines.tokenizer import Special, Tokenizer
from packprep.inspect.histograms import read_windows
from packprep.output.shard_folder import LocalShards
from packprep.output.shard_writer import ShardLayout, write_shard
from packprep.packing.account import Sums
from packprep.packing.kernels.gather import Pointers
from packprep.preview.sweep import WindowDocuments, of_lengths
from packprep.schemas.columns import Column
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Output, read_manifest
from packprep.schemas.storage.remote import RemoteOutput
from packprep.schemas.storage.stores import Store, is_url
from packprep.sources.reading import row_shape
from packprep.sources.resolve import check_local, resolve
from packprep.sources.units import Part, Slice, read_slices, row_bytes
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream
from packprep.support.progress import Progress
from packprep.support.redact import redacted
from packprep.tokens.store import STORED, TokenFile, stored, tokens_key
from packprep.tokens.token_files import seal, tokenize
from packprep.windows.documents import (
    Documents,
    carried_columns,
    file_schema,
    form_windows,
    held_out,
    read_documents,
)
from packprep.windows.planner import plan_window

_OWN = (
    "tokens",
    "cu_seqlens",
    "segment_lengths",
    *COLUMN_CHOICE,
)  # columns that a layout adds by itself
_WRITTEN = 4_000_000  # tokens of the shard that is written to learn how fast shards are written


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths to plan.

    origin: where it is from, in words. tokenizer: its BOS and EOS are those of the documents.

    carried: columns that the documents have beside their tokens. share: of the documents that were
    drawn, 1 for all. scale: how many times larger the whole is. tokenize_seconds: what tokenizing
    all of the text takes, from doing it or a share of it; None where that is done.
    """

    origin: str
    windows: Sequence[WindowDocuments]
    tokenizer: Tokenizer
    carried: Sequence[Column] = ()
    share: float = 1.0
    scale: float = 1.0
    tokenize_seconds: float | None = None

    @property
    def documents(self) -> int:
        return sum(len(window.documents) for window in self.windows)

    @property
    def longest(self) -> int:
        lengths = [window.documents.length for window in self.windows]
        return max((int(length.max()) for length in lengths if len(length)), default=0)


@contextmanager
def read_lengths(config: BuildConfig, share: float, progress: Progress) -> Iterator[Lengths]:
    """Lengths of `config.sources`: one .npy file, token store or output, or any sources of text.

    share: of the documents to draw, more than 0 and at most 1. Raises ConfigError, InputError or
    FormatError. Documents may point into a temporary folder, which goes away at the end.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"sample is {share:g}, expected a share of more than 0 and at most 1")
    names = [source for source in config.sources if isinstance(source, str)]
    if len(names) < len(config.sources) or config.weights:
        raise ConfigError(
            "plan takes sources without weights; packprep build --dry-run predicts a mix"
        )
    path = Path(names[0]) if len(names) == 1 and not is_url(names[0]) else None
    if len(names) == 1 and is_url(names[0]) and Store(names[0]).find(MANIFEST) is not None:
        yield _sampled(_output(RemoteOutput(names[0]), config), config, share)
    elif path is not None and path.suffix == ".npy":
        yield _sampled(_array(path, config), config, share)
    elif path is not None and (path / MANIFEST).exists():
        yield _sampled(_output(path, config), config, share)
    elif path is not None and (store := _store(path)) is not None:
        yield _sampled(_tokens(store, config), config, share)
    else:
        with tempfile.TemporaryDirectory(prefix="packprep-plan-") as folder:
            yield _text(config, share, Path(folder), progress)


def _array(path: Path, config: BuildConfig) -> Lengths:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read as an array: {error}; expected what numpy.save writes"
        ) from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        found = (
            f"{values.dtype} of shape {values.shape}"
            if isinstance(values, np.ndarray)
            else "several arrays"
        )
        raise InputError(
            f"{path} holds {found}; expected whole numbers, [documents]: the tokens of each"
        )
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < 2**31:
        wrong = int(np.flatnonzero((values < 0) | (values >= 2**31))[0])
        raise InputError(
            f"{path} has {values[wrong]} tokens in row {wrong}; expected 0 to 2^31 - 1"
        )
    _refuse_groups(path, config)
    whole = of_lengths("train", 0, values.astype(np.int32))
    return Lengths(
        origin=redacted(str(path)), windows=_splits([whole], config), tokenizer=_policy({})
    )


def _refuse_groups(path: Output, config: BuildConfig) -> None:
    if config.group_column is not None:
        raise ConfigError(
            f"group_column needs a column, and {path} holds lengths only; plan the sources instead"
        )


def _output(path: Output, config: BuildConfig) -> Lengths:
    _refuse_groups(path, config)
    manifest = read_manifest(path)
    windows = [
        of_lengths(packs.split, packs.window, packs.document_lengths().astype(np.int32))
        for packs in read_windows(path, manifest)
    ]
    lost = Sums.of_ledger(manifest.ledger).tokens_lost
    without = f", without the {lost:,} tokens it lost" if lost else ""
    return Lengths(
        origin=redacted(f"{path}{without}"),
        windows=windows,
        tokenizer=_policy(manifest.data["inputs"].get("tokenizer", {})),
        carried=[column for column in manifest.columns if column.name not in _OWN],
    )


def _store(path: Path) -> Path | None:
    """The token store at a path: one, or the only one in a directory of --keep-tokens.

    None where there is none.
    """
    if (path / STORED).exists():
        return path
    found = sorted(child.parent for child in path.glob(f"*/{STORED}")) if path.is_dir() else []
    if len(found) > 1:
        raise InputError(
            f"{path} has the tokens of {len(found)} inputs; name one of "
            f"{', '.join(map(str, found))}"
        )
    return found[0] if found else None


def _tokens(store: Path, config: BuildConfig) -> Lengths:
    files = stored(store, digests=False)
    if files is None:
        raise InputError(f"{store} is no whole token store; build with --keep-tokens again")
    tokenizer = _policy({}) if config.tokenizer is None else load_build_tokenizer(config)
    return of_files(f"tokens at {store}", store, files, tokenizer, config)


def of_files(
    origin: str,
    directory: Path,
    files: Sequence[TokenFile],
    tokenizer: Tokenizer,
    config: BuildConfig,
) -> Lengths:
    """The windows that a build makes of these token files."""
    formed = form_windows(files, config)
    windows = [
        WindowDocuments("train", number, read_documents(directory, members))
        for number, members in enumerate(formed)
    ]
    if config.group_column is not None and any(
        window.documents.group is None for window in windows
    ):
        raise InputError(f"{directory} was made without --group-column; build it with that option")
    carried = carried_columns(file_schema(directory, files))
    return Lengths(
        origin=redacted(origin),
        windows=_splits(windows, config),
        tokenizer=tokenizer,
        carried=carried,
    )


def _splits(windows: Sequence[WindowDocuments], config: BuildConfig) -> list[WindowDocuments]:
    """The windows of each split, in the order of a build."""
    if not config.holdout:
        return list(windows)
    held = [held_out(window.documents.id, config) for window in windows]
    train = [window.take(~out) for window, out in zip(windows, held, strict=True)]
    return train + [
        replace(window.take(out), split="validation")
        for window, out in zip(windows, held, strict=True)
    ]


def _sampled(lengths: Lengths, config: BuildConfig, share: float) -> Lengths:
    """A share of the documents; the whole is known, so what a sample says is scaled by tokens."""
    if share == 1:
        return lengths
    windows = [
        window.take(
            drawn(
                stream(config.seed, Purpose.PLAN_LENGTHS, number),
                np.arange(len(window.documents)),
                share,
            )
        )
        for number, window in enumerate(lengths.windows)
    ]
    whole, part = (sum(window.tokens for window in some) for some in (lengths.windows, windows))
    return replace(lengths, windows=windows, share=share, scale=_scale(whole, part, share))


def _scale(whole: int, part: int, share: float) -> float:
    if not part:
        raise InputError(
            f"a sample of {share:.3%} has no document with tokens; choose a larger --sample"
        )
    return whole / part


def _text(config: BuildConfig, share: float, scratch: Path, progress: Progress) -> Lengths:
    """Documents of text, tokenized now or found in the token store."""
    check_local(config)
    tokenizer = load_build_tokenizer(config)
    for note in tokenizer.notes:
        progress.say(note)
    sources = resolve(config, scratch, progress)
    store = (
        Path(config.keep_tokens) / tokens_key(sources, tokenizer, config)
        if config.keep_tokens
        else None
    )
    if store is not None and stored(store) is not None:
        progress.say(f"tokens reused from {store}: no text was read")
        return _sampled(_tokens(store, config), config, share)
    if store is not None and share < 1:
        raise ConfigError(
            "a token store holds the tokens of all documents; leave out --sample or --keep-tokens"
        )
    engine = sample_engine(tokenizer, config)
    for note in engine.notes if engine is not None else ():
        progress.say(note)
    plain = all(source.is_plain for source in sources)
    total = sum(source.bytes for source in sources) / 1e6 if plain else None
    shape = row_shape(sources, config, scratch, tokenizer)
    reader = _Reader(read_slices(sources, config, scratch, shape=shape), config, share)
    limited = config
    if config.max_tokens is not None:
        limited = replace(config, max_tokens=math.ceil(config.max_tokens * share))
    started = time.monotonic()
    files = tokenize(
        reader.slices(),
        store or scratch / "tokens",
        lambda: engine,
        tokenizer,
        limited,
        lambda _: progress.advance("tokenize", reader.text_bytes / 1e6, total, "MB"),
    )
    seconds = time.monotonic() - started
    if store is not None:
        seal(store, files)
    if not reader.text_bytes and not files:
        raise InputError("the sources hold no rows; expected at least one document")
    if not files:
        _scale(reader.text_bytes, 0, share)
    found = of_files(
        ", ".join(map(str, config.sources)), store or scratch / "tokens", files, tokenizer, config
    )
    return replace(
        found,
        share=share,
        scale=1.0
        if share == 1
        else _scale(reader.text_bytes, sum(file.text_bytes for file in files), share),
        tokenize_seconds=reader.seconds + max(0.0, seconds - reader.seconds) / share,
    )


def sample_engine(tokenizer: Tokenizer, config: BuildConfig) -> EngineChoice | None:
    """The engine that tokenizes a sample; None where rows are token ids."""
    if config.input_ids_column is not None:
        return None
    return choose_engine(
        config.engine, tokenizer.json, parse_special_tokens=config.parses_special_tokens, sample=[]
    )


class _Reader:
    """Slices of a build, thinned out to a share of their documents.

    Counts the text of all, and seconds of reading.
    """

    def __init__(self, slices: Iterator[Slice], config: BuildConfig, share: float) -> None:
        self._all = slices
        self._key = stream(config.seed, Purpose.PLAN_TEXT)
        self._share = share
        self.text_bytes = 0
        self.seconds = 0.0

    def slices(self) -> Iterator[Slice]:
        while (given := self._next()) is not None:
            if self._share < 1:
                given = _thinned(given, self._key, self._share)
            if len(given.table):
                yield given

    def _next(self) -> Slice | None:
        started = time.monotonic()
        given = next(self._all, None)
        self.seconds += time.monotonic() - started
        self.text_bytes += given.text_bytes if given is not None else 0
        return given


def _thinned(whole: Slice, key: np.uint64, share: float) -> Slice:
    """The slice with the documents that the key draws."""
    kept = drawn(key, whole.first_document + np.arange(len(whole.table)), share)
    table = whole.table.filter(pa.array(kept))
    parts, first = [], 0
    for part in whole.parts:
        parts.append(Part(part.source, int(kept[first : first + part.rows].sum()), {}))
        first += part.rows
    return replace(
        whole,
        documents=len(table),
        text_bytes=int(row_bytes(table).sum()),
        table=table,
        parts=tuple(parts),
    )


def _policy(facts: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer of which only BOS and EOS are known, as a manifest has them.

    Neither where nothing is known.
    """
    bos, eos = (
        Special(str(facts[end]["token"]), int(facts[end]["id"])) if facts.get(end) else None
        for end in ("bos", "eos")
    )
    return Tokenizer(json=b"{}", sha256="", vocab_size=1, bos=bos, eos=eos, pad_id=0)


def write_rate(lengths: Lengths, config: BuildConfig) -> float:
    """Bytes of a shard written per second here.

    Packs of the first documents, gathered, checked, hashed and synced.

    The tokens are zeros; the folder is the one for temporary files.
    """
    length = max((window.documents.length for window in lengths.windows), key=len)
    length = length[: int(np.searchsorted(np.cumsum(length, dtype=np.int64), _WRITTEN)) + 1]
    zeros = np.zeros(max(1, int(length.max(initial=0))), np.int32)
    documents = Documents(
        id=np.arange(len(length)),
        tokens=Pointers.into(zeros, np.zeros(len(length), np.int64)),
        length=length,
        source=np.zeros(len(length), np.int32),
        group=None,
    )
    tokenizer = replace(lengths.tokenizer, bos=None, eos=None, pad_id=0)
    plain = BuildConfig(max_length=config.max_length, columns=config.columns)
    layout = ShardLayout.from_config(plain, tokenizer)
    packs = plan_window(documents, tokenizer, plain, 0).packs
    with tempfile.TemporaryDirectory(prefix="packprep-plan-") as folder:
        shards = LocalShards(Path(folder))
        write_shard(
            shards, "warm.arrow", "train", packs, 0, min(1, len(packs)), layout
        )  # compiles, the first time
        started = time.perf_counter()
        shard = write_shard(shards, "shard.arrow", "train", packs, 0, len(packs), layout)
        return shard.bytes / max(time.perf_counter() - started, 1e-6)
