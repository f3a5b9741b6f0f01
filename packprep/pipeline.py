"""The build: read, tokenize, plan, write, sign off.

Everything happens in OUT.incomplete, which becomes OUT by one rename after the manifest is written: OUT is absent or
complete, whatever interrupts the build.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.config import BuildConfig
from packprep.errors import ConfigError, InputError
from packprep.output import already_built, output_of, publish, staged
from packprep.packs import MEMORY_PER_DOCUMENT, Packs
from packprep.parity import EngineChoice, choose_engine
from packprep.planning import Planner, WindowPlan, account_by_source, plan_window, remainders, resized, window_seed
from packprep.progress import Progress, Silent
from packprep.reading import read_rows
from packprep.report import Account
from packprep.schemas import Manifest, canonical_json, write_file
from packprep.segments import TooLongError
from packprep.shards import Layout, ShardFile, cut_shards, write_shard
from packprep.signoff import first_documents, name_shards, sign, write_report
from packprep.sources import Source, resolve
from packprep.tokenizer import Tokenizer, load_tokenizer
from packprep.tokens import BASE_MEMORY, TokenFile, rows_of_sources, stored, tokenize, tokens_key
from packprep.units import read_slices
from packprep.windows import Documents, carried_columns, form_windows, held_out, read_documents


def build(config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None) -> Manifest:
    """Build packed shards at `config.output` and return their manifest. The same config again does nothing.

    planner: a packer of your own, f(lengths int32 [segments], max_length) -> PackPlan, in place of `config.strategy`.
    Raises ConfigError, InputError (a sentence naming file and row) or FormatError; the output is then absent.
    """
    progress = progress or Silent()
    clock = _Clock()
    output = output_of(config)
    tokenizer = load_tokenizer(config.tokenizer, revision=config.tokenizer_revision, bos=config.bos, eos=config.eos)
    if config.continuation_bos and tokenizer.bos is None:
        raise ConfigError("continuation_bos needs a BOS, and this tokenizer has none; choose one with --bos TOKEN")
    for note in tokenizer.notes:
        progress.say(note)
    with staged(output, progress) as staging:
        with clock("hash"):
            sources = resolve(config, staging / "scratch")
            inputs = _inputs(config, sources, tokenizer, planner)
        if (finished := already_built(output, inputs, config)) is not None:
            progress.say(f"{output} is this build already: nothing to do")
            return finished
        work = _Work(config, staging, tokenizer, sources, planner, progress, clock)
        files = work.tokenize()
        shards, account = work.pack(files)
        with clock("sign off"):
            entries = name_shards(staging, shards)
        report = write_report(staging, account, files, sources, config, entries, clock.total())
        run = {"num_proc": config.num_proc, "engine": work.gate}
        manifest = sign(staging, inputs, work.layout, account, files, sources, entries, report, run)
        publish(staging, output)
    return manifest


def _inputs(
    config: BuildConfig, sources: Sequence[Source], tokenizer: Tokenizer, planner: Planner | None
) -> dict[str, Any]:
    """Everything that decides the bytes of the output. A planner of the user's own enters by its name."""
    options = config.identity()
    if planner is not None:
        options["planner"] = f"{planner.__module__}.{getattr(planner, '__qualname__', type(planner).__qualname__)}"
    return {
        "options": options,
        "sources": [{"sha256": source.sha256, "bytes": source.bytes, "kind": source.kind} for source in sources],
        "tokenizer": tokenizer.facts(),
    }


@dataclass
class _Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - start

    def total(self) -> dict[str, float]:
        return {name: round(spent, 3) for name, spent in self.seconds.items()} | {
            "total": round(time.monotonic() - self.started, 3)
        }


@dataclass
class _Work:
    """The stages of one build, in the order they run."""

    config: BuildConfig
    staging: Path
    tokenizer: Tokenizer
    sources: Sequence[Source]
    planner: Planner | None
    progress: Progress
    clock: _Clock
    layout: Layout = field(init=False)
    tokens: Path = field(init=False)
    firsts: Sequence[int] = ()  # number of the first document of each source, once that is known
    gate: dict[str, Any] | None = None  # how the engine was chosen; None where tokens were reused

    def __post_init__(self) -> None:
        key = tokens_key(self.sources, self.tokenizer, self.config)
        self.tokens = Path(self.config.keep_tokens) / key if self.config.keep_tokens else self.staging / "tokens"

    def tokenize(self) -> list[TokenFile]:
        """Token files of the whole input, from the token store where it has them."""
        with self.clock("tokenize"):
            if self.config.keep_tokens:
                if (files := stored(self.tokens)) is not None:
                    self.progress.say(f"tokens reused from {self.tokens}: no text was read")
                    return files
                what = "damaged tokens" if self.tokens.exists() else "no tokens"
                self.progress.say(
                    f"{self.config.keep_tokens} has {what} of these sources, tokenizer and text options: tokenizing"
                )
            # Of compressed files nobody knows how much text they hold.
            plain = all(not source.compression and source.kind != "parquet" for source in self.sources)
            total = sum(source.bytes for source in self.sources) / 1e6 if plain else None
            done = 0.0

            def report(file: TokenFile) -> None:
                nonlocal done
                done += file.text_bytes / 1e6
                self.progress.advance("tokenize", done, total, "MB")

            with ThreadPoolExecutor(1) as pool:
                # Loads beside reading. The sample is read first: opening sources is not safe in two threads.
                engine = pool.submit(self._engine, self._sample())
                files = tokenize(
                    read_slices(self.sources, self.config, self.staging / "scratch"),
                    self.tokens, engine.result, self.tokenizer, self.config, report,
                )  # fmt: skip
            self.gate = engine.result().gate
            for note in engine.result().engine.notes:
                self.progress.say(note)
        pa.default_memory_pool().release_unused()
        if not files:
            raise InputError("the sources hold no rows; expected at least one document")
        return files

    def _sample(self) -> list[str]:
        """The first documents of some sources, to compare engines on."""
        sample: list[str] = []
        for source in self.sources[:8]:
            if source.compression and source.kind not in ("json", "csv"):
                continue  # it would be unpacked twice
            table = next(read_rows(source, self.config, self.staging / "scratch"), None)
            sample += table["text"].slice(0, 16).drop_null().to_pylist() if table is not None else []
        return sample

    def _engine(self, sample: Sequence[str]) -> EngineChoice:
        choice = choose_engine(
            self.config.engine,
            self.tokenizer.json,
            parse_special_tokens=self.config.parse_special_tokens,
            sample=sample,
        )
        for note in choice.notes:
            self.progress.say(note)
        return choice

    def pack(self, files: Sequence[TokenFile]) -> tuple[list[ShardFile], Account]:
        """Plan and write every window of every split."""
        self.layout = Layout.of(self.config, self.tokenizer, carried_columns(self.tokens, files))
        windows = form_windows(files, self.config)
        if self.config.strategy == "balanced" and len(windows) > 1:
            raise ConfigError(f"balanced packs one window and the input makes {len(windows)}; choose a larger --window")
        most = max(sum(file.documents for file in window) for window in windows)
        if (needed := BASE_MEMORY + most * MEMORY_PER_DOCUMENT) > self.config.max_memory:
            raise ConfigError(
                f"a window has {most:,} documents, and planning them takes {needed / 1e6:,.0f} MB of memory; "
                f"choose a smaller --window or more than --max-memory {self.config.max_memory / 1e6:,.0f}MB"
            )
        self.firsts = first_documents(rows_of_sources(files, len(self.sources)))
        account = Account([Counter() for _ in range(len(self.sources) + 1)])
        splits = ("train", "validation") if self.config.holdout else ("train",)
        shards: list[ShardFile] = []
        for split in splits:
            changes = self._changes(windows, split)
            for number, window in enumerate(windows):
                with self.clock("plan"):
                    plan = self._plan(window, number, split)
                    written = resized(plan.packs, changes[number], self.config)
                    by_source = account_by_source(plan, self.tokenizer, len(self.sources), written)
                    account.add(number, split, plan, written, by_source)
                with self.clock("write"):
                    shards += self._write(written, split, number)
                self.progress.advance("pack", number + 1, len(windows), "windows")
            if not any(shard.packs for shard in shards if shard.split == split):
                raise InputError(
                    f"no document is left for the split {split}; see min_len, max_len, overflow and holdout"
                )
        return shards, account

    def _changes(self, windows: Sequence[Sequence[TokenFile]], split: str) -> list[int]:
        """Packs to add or leave out per window. Counting them is a plan of every window, so only where it is asked."""
        if self.config.packs_multiple_of == 1:
            return [0] * len(windows)
        with self.clock("plan"):
            counts = [len(self._plan(window, number, split).packs) for number, window in enumerate(windows)]
        return remainders(counts, self.config)

    def _documents(self, window: Sequence[TokenFile], split: str) -> Documents:
        documents = read_documents(self.tokens, window)
        if not self.config.holdout:
            return documents
        held = held_out(documents.id, self.config)
        return documents.take(held if split == "validation" else ~held)

    def _plan(self, window: Sequence[TokenFile], number: int, split: str) -> WindowPlan:
        documents = self._documents(window, split)
        seed = window_seed(self.config, number, int(split == "validation"))
        try:
            return plan_window(documents, self.tokenizer, self.config, seed, self.planner)
        except TooLongError as error:
            raise InputError(
                f"{self._row(documents, error.document)} has {error.tokens:,} tokens but a pack holds "
                f"{self.config.max_length:,}; choose --overflow split, truncate or drop"
            ) from None

    def _row(self, documents: Documents, document: int) -> str:
        """File and row of a document."""
        source = int(documents.source[document])
        row = int(documents.id[document]) - self.firsts[source]
        return f"{self.sources[source].name} row {row}"

    def _write(self, packs: Packs, split: str, window: int) -> list[ShardFile]:
        """Shards of one window; names say window and place until the number of shards is known."""
        if not len(packs):
            return []
        directory = self.staging / "shards"
        receipts = self.staging / "receipts"
        for folder in (directory, receipts):
            folder.mkdir(exist_ok=True)

        def write(part: tuple[int, tuple[int, int]]) -> ShardFile:
            number, (first, last) = part
            name = f"{split}-{window:05d}-{number:05d}.arrow"
            shard = write_shard(directory, name, split, packs, first, last, self.layout)
            write_file(receipts / f"{name}.json", canonical_json(asdict(shard)))
            return shard

        ranges = cut_shards(packs, self.layout, self.config.shard_size)
        with ThreadPoolExecutor(min(2, self.config.num_proc)) as pool:
            return list(pool.map(write, enumerate(ranges)))
