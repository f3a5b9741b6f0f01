"""The build: read, tokenize, plan, write, sign off.

Everything happens in OUT.incomplete, which becomes OUT by one rename after the manifest is written: OUT is absent or
complete, whatever interrupts the build.
"""

import importlib.metadata
import json
import os
import resource
import shutil
import sys
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
from packprep.errors import ConfigError, InputError, PackprepError
from packprep.packs import MEMORY_PER_DOCUMENT, Packs
from packprep.parity import EngineChoice, choose_engine
from packprep.planning import Planner, WindowPlan, account_by_source, plan_window, remainders, resized, window_seed
from packprep.progress import Progress, Silent
from packprep.reading import read_rows
from packprep.report import Account, ledger, make_report
from packprep.schemas import (
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    canonical_json,
    digest_of,
    file_digest,
    read_manifest,
    shard_name,
    sync_directory,
    write_dataset_dict,
    write_dataset_files,
    write_file,
    write_manifest,
)
from packprep.segments import TooLongError
from packprep.shards import Layout, ShardFile, cut_shards, write_shard
from packprep.sources import Source, resolve
from packprep.tokenizer import Tokenizer, load_tokenizer
from packprep.tokens import BASE_MEMORY, TokenFile, stored, tokenize, tokens_key
from packprep.units import read_units
from packprep.windows import Documents, form_windows, held_out, read_documents

STAGING_SUFFIX = ".incomplete"


def build(config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None) -> Manifest:
    """Build packed shards at `config.output` and return their manifest. The same config again does nothing.

    planner: a packer of your own, f(lengths int32 [segments], max_length) -> PackPlan, in place of `config.strategy`.
    Raises ConfigError, InputError (a sentence naming file and row) or FormatError; the output is then absent.
    """
    progress = progress or Silent()
    clock = _Clock()
    output = _output(config)
    staging = output.with_name(output.name + STAGING_SUFFIX)
    tokenizer = load_tokenizer(config.tokenizer, revision=config.tokenizer_revision, bos=config.bos, eos=config.eos)
    if config.continuation_bos and tokenizer.bos is None:
        raise ConfigError("continuation_bos needs a BOS, and this tokenizer has none; choose one with --bos TOKEN")
    for note in tokenizer.notes:
        progress.say(note)
    with _staged(staging, progress):
        with clock("hash"):
            sources = resolve(config, staging / "scratch")
            inputs = _inputs(config, sources, tokenizer, planner)
        if (finished := _already_built(output, inputs, config)) is not None:
            progress.say(f"{output} is this build already: nothing to do")
            return finished
        work = _Work(config, staging, tokenizer, sources, progress, clock)
        files = work.tokenize()
        shards, account = work.pack(files, planner)
        manifest = work.sign_off(files, shards, account, inputs)
        _publish(staging, output)
    return manifest


def _output(config: BuildConfig) -> Path:
    if not config.output:
        raise ConfigError("no output is given; add -o with the directory to write")
    output = Path(config.output)
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise ConfigError(f"{output} is not a directory; choose another -o")
    return output


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


def _already_built(output: Path, inputs: dict[str, Any], config: BuildConfig) -> Manifest | None:
    """The manifest of an output of the same inputs; None where there is none to keep; an error for any other."""
    if not output.exists() or not any(output.iterdir()):
        return None
    if not (output / MANIFEST).exists():
        raise ConfigError(f"{output} exists and is not an output of packprep; choose another -o")
    manifest = read_manifest(output)
    if manifest.identity == digest_of(inputs):
        return manifest
    if config.overwrite:
        return None
    changed = _difference(manifest.data["inputs"], inputs)
    raise ConfigError(f"{output} was built with other settings ({changed}); choose another -o, or --overwrite")


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    options = {key for part in (old, new) for key in part["options"]}
    changed = [
        f"{key} {was!r} there, {now!r} here"
        for key in sorted(options)
        if (was := old["options"].get(key)) != (now := new["options"].get(key))
    ]
    changed += [
        f"another {part[:-1] if part == 'sources' else part}"
        for part in ("sources", "tokenizer")
        if old[part] != new[part]
    ]
    return "; ".join(changed)


@contextmanager
def _staged(staging: Path, progress: Progress) -> Iterator[None]:
    """The staging directory, new. It goes away again but where an interruption or the system stopped the build."""
    if staging.exists():
        progress.say(f"{staging} is left from a build that did not finish: replaced")
        shutil.rmtree(staging)
    try:
        (staging / "scratch").mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{staging} cannot be made: {error.strerror}; choose another -o") from None
    try:
        yield
    except PackprepError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    shutil.rmtree(staging, ignore_errors=True)


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
    progress: Progress
    clock: _Clock
    tokens: Path = field(init=False)
    gate: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        key = tokens_key(self.sources, self.tokenizer, self.config)
        self.tokens = Path(self.config.keep_tokens) / key if self.config.keep_tokens else self.staging / "tokens"

    def tokenize(self) -> list[TokenFile]:
        """Token files of the whole input, from the token store where it has them."""
        with self.clock("tokenize"):
            if self.config.keep_tokens and (files := stored(self.tokens)) is not None:
                self.progress.say(f"tokens reused from {self.tokens}: no text was read")
                return files
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
                    read_units(self.sources, self.config, self.staging / "scratch"),
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

    def pack(self, files: Sequence[TokenFile], planner: Planner | None) -> tuple[list[ShardFile], Account]:
        """Plan and write every window of every split."""
        windows = form_windows(files, self.config)
        if self.config.strategy == "balanced" and len(windows) > 1:
            raise ConfigError(f"balanced packs one window and the input makes {len(windows)}; choose a larger --window")
        most = max(sum(file.documents for file in window) for window in windows)
        if (needed := BASE_MEMORY + most * MEMORY_PER_DOCUMENT) > self.config.max_memory:
            raise ConfigError(
                f"a window has {most:,} documents, and planning them takes {needed / 1e6:,.0f} MB of memory; "
                f"choose a smaller --window or more than --max-memory {self.config.max_memory / 1e6:,.0f}MB"
            )
        account = Account([Counter() for _ in range(len(self.sources) + 1)])
        layout = Layout.of(self.config, self.tokenizer)
        splits = ("train", "validation") if self.config.holdout else ("train",)
        shards: list[ShardFile] = []
        for split in splits:
            changes = self._changes(windows, split, planner)
            for number, window in enumerate(windows):
                with self.clock("plan"):
                    documents = self._documents(window, split)
                    plan = self._plan(documents, number, split, planner)
                    written = resized(plan.packs, changes[number])
                    by_source = account_by_source(plan, self.tokenizer, len(self.sources), written)
                    account.add(number, split, plan, written, by_source)
                with self.clock("write"):
                    shards += self._write(written, split, number, layout)
                self.progress.advance("pack", number + 1, len(windows), "windows")
            if not any(shard.packs for shard in shards if shard.split == split):
                raise InputError(
                    f"no document is left for the split {split}; see min_len, max_len, overflow and holdout"
                )
        return shards, account

    def _changes(self, windows: Sequence[Sequence[TokenFile]], split: str, planner: Planner | None) -> list[int]:
        """Packs to add or leave out per window. Counting them is a plan of every window, so only where it is asked."""
        if self.config.packs_multiple_of == 1:
            return [0] * len(windows)
        with self.clock("plan"):
            counts = [
                len(self._plan(self._documents(window, split), number, split, planner).packs)
                for number, window in enumerate(windows)
            ]
        return remainders(counts, self.config)

    def _documents(self, window: Sequence[TokenFile], split: str) -> Documents:
        documents = read_documents(self.tokens, window)
        if not self.config.holdout:
            return documents
        held = held_out(documents.id, self.config)
        return documents.take(held if split == "validation" else ~held)

    def _plan(self, documents: Documents, number: int, split: str, planner: Planner | None) -> WindowPlan:
        seed = window_seed(self.config, number, int(split == "validation"))
        try:
            return plan_window(documents, self.tokenizer, self.config, seed, planner)
        except TooLongError as error:
            source = int(documents.source[error.document])
            row = int(documents.id[error.document]) - self._first_documents()[source]
            raise InputError(
                f"{self.sources[source].name} row {row} has {error.tokens:,} tokens but a pack holds "
                f"{self.config.max_length:,}; choose --overflow split, truncate or drop"
            ) from None

    def _first_documents(self) -> list[int]:
        """Number of the first document of each source."""
        loaded = stored(self.tokens) or []
        rows = _rows(loaded, len(self.sources))
        return [sum(rows[:number]) for number in range(len(rows))]

    def _write(self, packs: Packs, split: str, window: int, layout: Layout) -> list[ShardFile]:
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
            shard = write_shard(directory, name, split, packs, first, last, layout)
            write_file(receipts / f"{name}.json", canonical_json(asdict(shard)))
            return shard

        ranges = cut_shards(packs, layout, self.config.shard_size)
        with ThreadPoolExecutor(min(2, self.config.num_proc)) as pool:
            return list(pool.map(write, enumerate(ranges)))

    def sign_off(
        self, files: Sequence[TokenFile], shards: Sequence[ShardFile], account: Account, inputs: dict[str, Any]
    ) -> Manifest:
        """Name the shards, write the files that `datasets` reads, the report, and last the manifest."""
        with self.clock("sign off"):
            layout = Layout.of(self.config, self.tokenizer)
            splits = list(dict.fromkeys(shard.split for shard in shards))
            entries = [entry for split in splits for entry in self._name(split, splits, shards, inputs)]
            if len(splits) > 1:
                write_dataset_dict(self.staging, splits)
                entries.append(self._entry(self.staging / "dataset_dict.json"))
        report = make_report(account, files, self.sources, self.config)
        seconds = self.clock.total()
        report |= {
            "bytes": sum(shard.bytes for shard in shards),
            "shards": len(shards),
            "seconds": seconds,
            "tokens_per_second": round(report["tokens"]["tokens_in"] / max(seconds["total"], 1e-9), 1),
            "peak_memory_bytes": _peak_memory(),
            "sha256": digest_of([entry["sha256"] for entry in entries]),
        }
        write_file(self.staging / "report.json", canonical_json(report))
        totals: Counter[str] = Counter()
        for source in account.sources:
            totals.update(source)
        data = {
            "format_version": FORMAT_VERSION,
            "inputs": inputs,
            "identity": digest_of(inputs),
            "columns": [{"name": c.name, "kind": c.kind, "dtype": c.dtype} for c in layout.columns],
            "max_length": layout.max_length,
            "vocab_size": layout.vocab_size,
            "sources": self._source_table(files),
            "splits": report["splits"],
            "files": entries,
            "ledger": ledger(totals),
        }
        run = {
            "num_proc": self.config.num_proc,
            "executor": "local",
            "engine": self.gate,
            "verified_documents": sum(file.verified for file in files),
            "versions": _versions(),
            "seconds": seconds,
            "peak_memory_bytes": report["peak_memory_bytes"],
            "source_paths": [source.name for source in self.sources],
            "files": [self._entry(self.staging / "report.json")],
        }
        for leftover in ("scratch", "tokens", "shards", "receipts"):
            shutil.rmtree(self.staging / leftover, ignore_errors=True)
        return write_manifest(self.staging, data, run)

    def _name(
        self, split: str, splits: Sequence[str], shards: Sequence[ShardFile], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Give the shards of a split their final names; entries of the manifest for all its files."""
        folder = self.staging / split if len(splits) > 1 else self.staging
        folder.mkdir(exist_ok=True)
        mine = [shard for shard in shards if shard.split == split]
        names = [shard_name(number, len(mine)) for number in range(len(mine))]
        entries: list[dict[str, Any]] = []
        for shard, name in zip(mine, names, strict=True):
            (self.staging / "shards" / shard.name).rename(folder / name)
            entry = {"bytes": shard.bytes, "sha256": shard.sha256, "packs": shard.packs, "tokens": shard.tokens}
            entries.append(entry | {"path": (folder / name).relative_to(self.staging).as_posix(), "split": split})
        fingerprint = digest_of([split, *(entry["sha256"] for entry in entries)])[:16]
        write_dataset_files(folder, names, fingerprint=fingerprint, split=split)
        return entries + [self._entry(folder / name) for name in ("state.json", "dataset_info.json")]

    def _entry(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.staging).as_posix()
        return {"path": name, "bytes": path.stat().st_size, "sha256": file_digest(path)}

    def _source_table(self, files: Sequence[TokenFile]) -> list[dict[str, Any]]:
        rows = _rows(files, len(self.sources))
        return [
            {
                "sha256": source.sha256,
                "bytes": source.bytes,
                "first_document": sum(rows[:number]),
                "documents": rows[number],
            }
            for number, source in enumerate(self.sources)
        ]


def _rows(files: Sequence[TokenFile], sources: int) -> list[int]:
    """Rows read from each source."""
    rows = [0] * sources
    for file in files:
        for part in file.parts:
            rows[part.source] += part.rows
    return rows


def _publish(staging: Path, output: Path) -> None:
    """One rename makes the output appear; an old one steps aside only now."""
    sync_directory(staging)
    replaced = output.with_name(output.name + ".replaced")
    if output.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        output.rename(replaced)
    staging.rename(output)
    sync_directory(output.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _versions() -> dict[str, str]:
    names = ("packprep", "datasets", "numba", "numpy", "pyarrow", "tokenizers")
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {
        name: importlib.metadata.version(name) for name in names
    }


def _peak_memory() -> int:
    """Bytes this process has held at most, mapped files included; macOS counts bytes, Linux kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_report(output: Path) -> dict[str, Any]:
    """report.json of a finished output."""
    loaded: dict[str, Any] = json.loads((Path(os.fspath(output)) / "report.json").read_bytes())
    return loaded
