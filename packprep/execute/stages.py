"""Stages of a build: tokenize, plan, write, sign off. Each skips the work that is already done."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from packprep.chat.build_tokenizer import ends_of
from packprep.chat.special_tokens import spelled_in_most
from packprep.config.pack_rules import PackRules
from packprep.config.yaml_file import to_yaml
from packprep.engines.backends import added_tokens
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.execute import disk_space
from packprep.execute.array_tasks import work_off
from packprep.execute.early_windows import EarlyWindows
from packprep.execute.job import Job
from packprep.execute.tasks import Tasks
from packprep.execute.window_files import (
    WindowFile,
    Windows,
    check_windows,
    windows_at_once,
)
from packprep.output.build_facts import BuildInputs
from packprep.output.report import Account, Packed, make_report
from packprep.output.shard_writer import ShardFile
from packprep.output.sign_off import (
    TOKENIZER,
    name_shards,
    named_inputs,
    sign,
    write_report,
    write_settings,
)
from packprep.output.staging import (
    remove_leftovers,
)
from packprep.packing.account import Sums
from packprep.packing.kernels.compiled import compiling
from packprep.packing.nothing_left import labelled_by, nothing_left
from packprep.packing.warm import load_build
from packprep.schemas.columns import columns_of_type
from packprep.schemas.storage.writing import write_file
from packprep.sources.formats.row_plan import RowPlan
from packprep.sources.reading import read_rows
from packprep.sources.source import Source, check_unchanged
from packprep.sources.units import text_bytes
from packprep.support.clock import START, StageClock
from packprep.support.errors import (
    InputError,
)
from packprep.support.file_lock import locked
from packprep.support.progress import Progress
from packprep.tokens.store import TokenFile, committed, start_after, stored
from packprep.tokens.token_files import (
    Make,
    slices_ahead,
    sync_tokens,
)
from packprep.windows.index_rows import index_table
from packprep.windows.mix import Mix
from packprep.windows.planner import remainders_of_runs
from packprep.windows.specs import WindowSpec, list_windows

# Sources whose first documents are sampled: for engines, and for what their texts spell.
_SAMPLED, _MOST_SAMPLED = 8, 64


class DamagedTokens(InputError):  # noqa: N818 - named for what they are
    """Token files of a store are not those of their receipts."""


@dataclass
class Stages:
    """Stages of one build, in the order they run.

    gate: how the engine was chosen; None if no text was tokenized.
    tokens: of the build, predicted until they are known.
    one_split_does: see `BuildOutput`.
    """

    job: Job
    progress: Progress
    clock: StageClock
    gate: dict[str, object] | None = None
    tokens: int = 0
    one_split_does: bool = False

    def __post_init__(self) -> None:
        self.early = EarlyWindows(self.job, self.clock, self._window)

    def run(self, inputs: BuildInputs, ahead: Callable[[Job, Progress], None] | None) -> None:
        """Do all stages, up to the manifest, or up to the token files of a store.

        ahead: see `pipeline.AHEAD`.
        """
        job = self.job
        if ahead is not None:
            self.run_ahead(ahead)
        with compiling(self.progress.say), closing(self.early):
            files = self.tokenize()
            if not job.packs:
                return
            with self.clock(START):
                self._load_kernels()
            self.tokens = sum(file.tokens for file in files)
            windows = Windows(job, files, self.clock)
            mix = windows.draw()
            drawn = mix.windows if mix else ()
            specs = list_windows(files, windows.rules, job.config.writing, drawn)
            shards, account = self.pack(windows, specs, mix)
        with self.clock("sign off"):
            named = name_shards(job.staging, shards, job.shards, phased=bool(job.config.phases))
        packed, config = Packed(sources=job.sources, files=files, account=account), job.config
        stages = config.reading, config.parsing
        made = make_report(packed, *stages, config.max_length, config.pack_order.ranks)
        report = write_report(named, made, self.clock.total())
        write_settings(job.staging, to_yaml(config), inputs, config.tokenizer)
        if job.tokenizer.is_converted:
            write_file(job.staging / TOKENIZER, job.tokenizer.json)
        run = {
            "num_proc": config.num_proc,
            "executor": config.runner,
            "engine": self.gate,
            "given": named_inputs(config.reading, config.tokenizing),
            "ends": ends_of(job.tokenizer),
        }
        index = None
        if config.materialize == "index":
            sync_tokens(job.tokens, files)
            layout, numbers = windows.layout, [shard.window for shard in shards]
            ids = layout.bos_id, layout.pad_id
            of_windows = [spec.slices for spec in specs if spec.split == "train"]
            index = index_table(layout.index, files, of_windows, numbers, job.tokens, ids)
        check_unchanged(job.sources)
        sign(named, inputs, windows.layout, packed, report, run, index, job.tokens)

    def _plans(self) -> list[RowPlan]:
        """Row plans of the sources; none if all are token files."""
        if not self.job.has_text:
            return []
        plans, note = self.job.plans
        if note is not None:
            self.progress.say(note)
        return plans

    def run_ahead(self, ahead: Callable[[Job, Progress], None]) -> None:
        """Let other processes do what they can: see `pipeline.AHEAD`."""
        with self.clock(self.job.config.runner):
            choice = self._engine(self._sample(self._plans()))
            self.job.save(choice.as_dict() if choice else {})
            if choice is not None:
                self.gate = choice.gate
            ahead(self.job, self.progress)

    def share(self, part: int, parts: int) -> tuple[dict[str, int], bool]:
        """Do one of `parts` parts; see `work_off`."""
        with compiling(self.progress.say), self._tasks(parts, part) as tasks:
            return work_off(tasks, self.progress)

    @contextmanager
    def _tasks(self, parts: int = 1, part: int | None = None) -> Iterator[Tasks]:
        """The tasks of the build, for this process, which loads the engine meanwhile."""
        with ThreadPoolExecutor(2) as pool:
            engine = self._loading(pool, self._plans())
            with self._workers(engine) as elsewhere:
                yield Tasks(self.job, engine.result, elsewhere, self.progress, parts, part)

    def tokenize(self) -> list[TokenFile]:
        """Token files of the whole input; only missing ones are read and tokenized."""
        with self.clock("tokenize"):
            if not self.job.config.keep_tokens:
                files = self._tokenize()
            else:
                with locked(self.job.tokens, f"tokens are being written to {self.job.tokens}"):
                    remove_leftovers(self.job.tokens)
                    files = self._tokenize()
        pa.default_memory_pool().release_unused()
        if not files:
            raise InputError("the sources hold no rows; expected at least one document")
        return files

    def _tokenize(self) -> list[TokenFile]:
        config, directory, sources = self.job.config, self.job.tokens, self.job.sources
        kept = config.keep_tokens
        if (files := stored(directory)) is not None:
            is_news = kept or not config.many_processes
            if is_news and self.job.has_text:
                self.progress.say(
                    f"tokens reused{f' from {directory}' if kept else ''}: no text was read"
                )
            return files
        if not self.job.has_text:
            raise DamagedTokens(f"a token file of {directory} is missing or damaged")
        finished = committed(directory)
        done = sum(file.text_bytes for file in finished) / 1e6
        if finished:
            documents = finished[-1].end
            for file in finished:
                self.early.add(file)
            self.progress.say(
                f"resuming after {documents:,} documents, {done:,.0f} MB of text, that were "
                "tokenized before"
            )
        elif kept and self.job.packs:
            state = "damaged tokens" if any(directory.glob("unit-*")) else "no tokens"
            self.progress.say(
                f"{kept} has {state} of these sources, tokenizer and text options: tokenizing"
            )
        # The amount of text in a compressed file is unknown.
        plain = all(source.is_plain for source in sources)
        total = sum(source.bytes for source in sources) / 1e6 if plain else None

        def report(file: TokenFile) -> None:
            nonlocal done
            done += file.text_bytes / 1e6
            self.early.add(file)
            self.progress.advance("tokenize", done, total, "MB")

        start = start_after(finished, len(sources), config.unit_size)
        most = config.reading.tokens_to_read
        with self._tasks() as tasks:
            files = tasks.make(start, report=report, before=finished, most_tokens=most)
        tasks.seal(files)
        if (choice := tasks.engine()) is not None:
            self.gate = choice.gate
            for note in choice.engine.notes:
                self.progress.say(note)
        return files

    def _room(self, engine: EngineChoice, sample: Sequence[str]) -> str | None:
        """Message about the disk space; StoppedError if there is too little."""
        texts = pa.array([text[:2000] for text in sample], pa.large_string())
        ids, _ = engine.engine.encode(texts)
        size = int(text_bytes(pa.chunked_array([texts])).sum())
        self.tokens = disk_space.predicted_tokens(
            self.job, (len(ids) + 2 * len(sample)) / size if size else None
        )
        return disk_space.check_room(self.job, self.tokens)

    @contextmanager
    def _workers(self, engine: Future[EngineChoice | None]) -> Iterator[Make | None]:
        """Function that tokenizes a slice in a worker process; None if threads tokenize."""
        if not self.job.config.isolated or (choice := engine.result()) is None:
            yield None
            return
        from packprep.execute.worker_pool import Workers

        self.job.tokens.mkdir(parents=True, exist_ok=True)
        self.job.save(choice.as_dict())
        ahead = slices_ahead(self.job.config.running, self.job.config.unit_size, isolated=True)
        with Workers(self.job, max(1, ahead), self.progress.say) as workers:
            yield workers.tokenize

    def _sample(self, plans: Sequence[RowPlan]) -> list[str]:
        """First documents of some sources, on which engines are compared.

        Says if most texts of a source spell special tokens and keep them as text.
        """
        sample: list[str] = []
        if self.job.config.input_ids_column is not None:
            return sample
        looks = not self.job.config.parses_special_tokens
        numbers = {*range(_SAMPLED)}
        if looks:  # into one source of each folder too
            last_first = [*enumerate(self.job.sources)][::-1]
            numbers |= {*{Path(source.name).parent: n for n, source in last_first}.values()}
        spelled: list[tuple[str, str]] = []
        for number in sorted(numbers)[:_MOST_SAMPLED]:
            if number >= min(len(plans), len(self.job.sources)):
                break
            source = self.job.sources[number]
            texts = self._first_texts(source, plans[number])
            sample += texts if number < _SAMPLED else []
            if looks and (token := spelled_in_most(self._special_tokens, texts)) is not None:
                spelled.append((source.name, token))
        if spelled:
            (name, token), others = spelled[0], len(spelled) - 1
            too = f", as in {others:,} other source{'s' * (others > 1)}" if others else ""
            self.progress.say(
                f"{name}: most texts spell special tokens, such as {token}, which stay text{too}; "
                "build chats that are rendered already with --parse-special-tokens"
            )
        return sample

    def _first_texts(self, source: Source, plan: RowPlan) -> list[str]:
        """First documents of a source; none if it would be unpacked, or downloaded, twice."""
        is_copied = source.compression or source.is_remote
        if is_copied and not source.format.is_streamed:
            return []
        table = next(read_rows(source, plan, self.job.scratch), None)
        texts = table["text"].slice(0, 16).to_pylist() if table is not None else []
        return [text for text in texts if text is not None]

    @cached_property
    def _special_tokens(self) -> list[str]:
        tokens = added_tokens(self.job.tokenizer.json)
        return [token["content"] for token in tokens if token.get("special")]

    def _loading(
        self, pool: ThreadPoolExecutor, plans: Sequence[RowPlan]
    ) -> Future[EngineChoice | None]:
        """Engine, loaded in a thread while the first text is read; the kernels are loaded too."""
        kernels = ThreadPoolExecutor(1)
        kernels.submit(self._load_kernels)
        kernels.shutdown(wait=False)
        begun = time.monotonic()

        def count(_: object) -> None:
            self.clock.add(START, waited := time.monotonic() - begun)
            self.clock.add("tokenize", -waited)

        sample = self._sample(plans)  # first: opening sources is not safe in two threads
        engine = pool.submit(self._engine, sample)
        engine.add_done_callback(count)
        return engine

    def _load_kernels(self) -> None:
        """Compile the kernels of this build, or wait until another thread has."""
        config, tokenizer = self.job.config, self.job.tokenizer
        columns = columns_of_type(tokenizer.shard_type(config.token_type), config.max_length)
        load_build(
            tokenizer.id_type,
            (columns["tokens"].dtype, columns["position_ids"].dtype),
            config.packer.name if self.job.planner is None else None,
            config.pack_order.name,
            config.max_segments_per_pack,
        )

    def _engine(self, sample: Sequence[str]) -> EngineChoice | None:
        """Tokenizing engine; None if rows are token ids, or tokenized already."""
        if self.job.config.input_ids_column is not None or not self.job.has_text:
            return None
        if self.job.config.check_against is not None:
            self._check_against(self.job.config.check_against, sample)
        self.progress.wait("checking the tokenizer engine")
        choice = choose_engine(
            self.job.config.engine,
            self.job.tokenizer.json,
            parse_special_tokens=self.job.config.parses_special_tokens,
            sample=sample,
        )
        for note in choice.notes:
            self.progress.say(note)
        if (room := self._room(choice, sample)) is not None:
            self.progress.say(room)
        self.progress.wait("reading text")
        return choice

    def _check_against(self, against: str, sample: Sequence[str]) -> None:
        """Raise InputError if a trainer's tokenizer gives other ids."""
        from packprep.engines.trainer import compare_with_trainer

        config = self.job.config
        self.progress.wait("comparing with the tokenizer of the trainer")
        compared, difference = compare_with_trainer(
            against,
            config.tokenizer,
            self.job.tokenizer.json,
            sample,
            parse_special_tokens=config.parses_special_tokens,
        )
        if difference is not None:
            raise InputError(f"{difference}; nothing was built")
        self.progress.say(f"ids equal those of {compared}")

    def pack(
        self, windows: Windows, specs: Sequence[WindowSpec[TokenFile]], mix: Mix | None
    ) -> tuple[list[ShardFile], Account]:
        """Plan and write every window of every split; windows that are written are reused."""
        config = self.job.config
        check_windows(specs, config.packer.name, config.max_memory)
        # A packer of the user's own may not be thread-safe.
        at_once = 1 if self.job.planner is not None else windows_at_once(specs, config.running)
        runs = len(config.phases) or (config.epochs if config.epochs > 1 else 0)
        account = Account.empty(len(self.job.sources), runs)
        if mix is not None:
            account.add_mix(mix, mix.left_out(self.job.tokenizer))
            for note in mix.notes():
                self.progress.say(note)
        shards: list[ShardFile] = []
        reused = 0

        def make(spec: WindowSpec[TokenFile], change: int) -> tuple[WindowFile, bool]:
            return self.early.result(spec) or self._window(windows, spec, change)

        for split in config.splits:
            of_split = [spec for spec in specs if spec.split == split]
            changes = self._changes(windows, of_split)
            with ThreadPoolExecutor(at_once) as pool:
                made = zip(of_split, pool.map(make, of_split, changes), strict=True)
                for spec, (done, was_written) in made:
                    reused += was_written
                    account.merge(done.account, spec.run)
                    run = spec.run if runs else None
                    shards += [replace(shard, run=run) for shard in done.shards]
                    self.progress.advance("pack", spec.number + 1, len(of_split), "windows")
            packed = {shard.run for shard in shards if shard.packs and shard.split == split}
            may_be_empty = self.one_split_does and (shards or split != config.splits[-1])
            if len(packed) < self.job.config.epochs and (packed or not may_be_empty):
                if dropped := -sum(changes):
                    larger = "" if split == "train" else "a larger holdout, "
                    raise InputError(
                        f"packs_multiple_of {(n := config.multiple.packs):,} drops all packs of "
                        f"the split {split} ({dropped:,}); choose {larger}--packs-multiple-of "
                        f"{n}:fill or a smaller packs_multiple_of"
                    )
                what = f"no document is left for the split {split}"
                sums, rules = account.total(config.max_length), config.pack_rules()
                parts = [part for file in windows.files for part in file.parts]
                skipped = sum((Counter(part.skipped) for part in parts), Counter[str]())
                rows = sum(part.rows for part in parts) - skipped.total()
                raise InputError(self._nothing_left(what, sums, rules, rows, skipped))
        if self.job.config.group_prefix is not None:
            account.groups_apart = windows.groups_apart(specs)
        for number, phase in enumerate(account.runs if config.phases else (), 1):
            if not any(window["packs"] for window in phase.windows):
                rules = config.mix_rules().packs[number - 1]
                sums = phase.total(rules.cutting.max_length)
                raise InputError(self._nothing_left(f"phase {number} has no packs", sums, rules))
        if reused and not config.many_processes:
            self.progress.say(f"{reused:,} of {len(specs):,} windows were written before")
        return shards, account

    def _nothing_left(
        self,
        what: str,
        sums: Sums,
        rules: PackRules,
        empty: int = 0,
        skipped: Mapping[str, int] | None = None,
    ) -> str:
        """The sentence of `nothing_left` for this build."""
        config = self.job.config
        labels = labelled_by(config.parsing, config.tokenizing)
        multiple = config.multiple.packs
        return nothing_left(what, sums, empty, skipped or {}, rules, multiple, labels)

    def _window(
        self, windows: Windows, spec: WindowSpec[TokenFile], change: int = 0
    ) -> tuple[WindowFile, bool]:
        """A window, and True if it was written before."""
        if (done := windows.finished(spec, change)) is not None:
            return done, True
        return windows.write(spec, change), False

    def _changes(self, windows: Windows, specs: Sequence[WindowSpec[TokenFile]]) -> list[int]:
        """Packs to add to or leave out of each window, so that each run has a multiple.

        Counting packs takes a plan of every window, so it is done only with packs_multiple_of.
        """
        multiple = self.job.config.multiple
        if multiple.packs == 1:
            return [0] * len(specs)
        runs, counts = [spec.run for spec in specs], [windows.count(spec) for spec in specs]
        return remainders_of_runs(runs, counts, multiple.packs, multiple.remainder)
