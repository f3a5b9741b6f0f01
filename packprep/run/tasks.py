"""Tasks: each reads files and writes a file, and its receipt last.

`todo` lists those whose inputs are there and whose receipt is not; `do` does one, in any process,
twice, in any order. An executor is a loop over the two.
"""

import ctypes
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..config.checks import mix_of
from ..config.options import BuildConfig
from ..plan.account import account
from ..plan.cut import TooLongError
from ..plan.documents import HeldOut, KeptTokens, StoredFile, read_documents, stored_files
from ..plan.draw import Draw, SourceRows, draw
from ..plan.types import Packs, Window
from ..plan.window import Packing, of_multiple, plan_window, window_seed
from ..read.types import Ids, sides_of
from ..schemas.files import digest_of
from ..schemas.gather import Layout
from ..support.errors import InputError, StoppedError
from ..tokens.engine import Engine, choose_engine
from ..tokens.stage import tokenize_split
from ..tokens.store import Entry, read_entry
from ..write.layout import layout_of
from ..write.shards import WindowFile, read_window, write_shards, write_window
from .job import Job, Task, packing_of


class Work:
    """A job in one process: what its tasks share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.render = job.renderer and job.renderer.documents
        self.cluster: Any = None  # a `Cluster` that does the tasks, unless they are done here
        self.left: dict[int | None, int] = {}  # rows that may still be read, where `limits` has any
        self.written: dict[str, WindowFile] = {}  # windows that are known to be intact

    @cached_property
    def engine(self) -> tuple[Engine | None, list[str]]:
        """The engine, None if rows are token ids, and notes; load it before threads need it."""
        sides = {type(side) for each in self.job.sources for side in sides_of(each.rows)}
        if sides <= {Ids}:
            return None, []
        size = sum(source.bytes for source in self.job.sources)
        parses = self.job.renderer is not None
        return choose_engine(
            self.job.tokenizer, self.job.config.engine, size, parse_special_tokens=parses
        )

    def drop_engine(self) -> None:
        """Give the memory of the engine back, half of what a build has of its own when it packs."""
        self.__dict__.pop("engine", None)
        pa.default_memory_pool().release_unused()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
            trim(0)

    @cached_property
    def entries(self) -> list[Entry]:
        """The token files, all of them; read them after the last task tokenize.

        Raises StoppedError if one is missing, or cannot be read.
        """
        entries = [read_entry(place) for place in self.job.entries]
        if missing := [entry.place for entry in entries if entry.open]:
            raise StoppedError(
                f"token files of {missing[0]} are missing or cannot be read; run the command "
                "again to make them"
            )
        return entries

    @cached_property
    def files(self) -> list[StoredFile]:
        """The token files of all entries, in the order of the input."""
        entries = [(e.place, e.files, len(e.facts["names"])) for e in self.entries]
        return stored_files(entries, places=self.job.config.is_plan)

    @cached_property
    def made_from(self) -> str:
        """Digest of all that decides the shards."""
        return digest_of([self.job.identity, [file.receipt.digest for file in self.files]])

    @cached_property
    def packing(self) -> Packing:
        """What planning a window needs of the options."""
        pairs = bool(self.entries[0].facts["pairs"])
        return packing_of(self.job.config, self.job.tokenizer, pairs=pairs)

    @cached_property
    def sources(self) -> list[SourceRows]:
        """All sources, by the names that this command has for them, or else those in the stores."""
        rows, made, first = Counter[int](), list[SourceRows](), 0
        for file in self.files:
            for number, count in file.receipt.rows.items():
                rows[number + file.sources] += count
        for store, facts in enumerate(entry.facts for entry in self.entries):
            names = [source.name for source in self.job.sources] or facts["names"]
            of_store = zip(facts["deciding"]["sources"], names, facts["bytes"], strict=True)
            for of, name, size in of_store:
                entry, count = (store, of["entry"]), rows[len(made)]
                made.append(SourceRows(entry, name, count, size, of["digest"], first))
                first += count
        return made

    @cached_property
    def drawn(self) -> Draw:
        """The rows of each window."""
        _ = self.schema  # raises where sources differ, before anything is planned
        config = self.job.config
        kept = KeptTokens(files=self.files, cutting=self.packing.cutting, held_out=self.held_out)
        mix, sample = mix_of(config), self.job.sample
        before = self.job.inputs.get("after", {})
        in_order = config.pack_order.name == "input"
        return draw(
            self.sources,
            kept,
            seed=None if in_order else before.get("seed", config.seed),
            weights=[weight for weight, _ in mix],
            max_tokens=None if sample else config.max_tokens,
            passes=[most for _, most in mix],
            windows=Fraction(sum(file.receipt.text_bytes for file in self.files), config.window),
            after=before.get("places", ()),
        )

    @cached_property
    def held_out(self) -> HeldOut:
        """The rows of the validation split, by the numbers that they had in the first output."""
        firsts = [source.first_row for source in self.sources]
        before = self.job.inputs.get("after", {}).get("rows", firsts)
        pairs = zip(before, firsts, strict=True)
        shift = [0 if known is None else known - first for known, first in pairs]
        return HeldOut(*self.job.config.held_out, np.array(shift, np.int64))

    @cached_property
    def windows(self) -> list[Window]:
        """The windows of the output, split by split."""
        config, drawn = self.job.config, self.drawn.windows
        return [
            Window(
                number=number,
                split=split,
                seed=window_seed(config.seed, number + config.epoch * len(drawn), split),
                ranges=tuple(ranges),
            )
            for split in config.splits
            for number, ranges in enumerate(drawn)
        ]

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the token files. One without documents has not all of them.

        Raises InputError if files of two sources differ: values of one would be read as others.
        """
        full = [file for file in self.files if file.receipt.documents]
        firsts = {min(file.receipt.rows) + file.sources: file for file in reversed(full)}
        schemas = {number: _schema_of(firsts[number]) for number in sorted(firsts)}
        first = min(schemas, default=0)
        for number, schema in schemas.items():
            if differ := sorted({*schema} ^ {*schemas[first]}, key=str):
                one, other = (self.sources[each].name for each in (first, number))
                raise InputError(
                    f"{one} and {other} differ in their column {differ[0].name!r}, expected the "
                    "same columns and types; name labels and --carry NAME:TYPE for both"
                )
        return schemas.get(first, pa.schema([]))

    @cached_property
    def layout(self) -> Layout:
        """Layout of the shards."""
        facts = {n: any(each.facts[n] for each in self.entries) for n in ("turns", "pairs")}
        return layout_of(self.job.config, self.job.tokenizer, self.schema, facts)


def _schema_of(file: StoredFile) -> pa.Schema:
    with pa.OSFile(str(file.path), mode="r") as opened, pa.ipc.open_stream(opened) as stream:
        return stream.schema


def todo(work: Work, kind: str) -> list[Task]:
    """Tasks of a kind without an intact receipt, in order. Shards are read once at most."""
    if kind == "pack":
        for name in {window.name for window in work.windows} - work.written.keys():
            if (made := read_window(work.job.work, name, work.made_from)) is not None:
                work.written[name] = made
        names = [window.name for window in work.windows]
        return [Task("pack", n) for n, name in enumerate(names) if name not in work.written]
    entry = read_entry(work.job.entries[0], digests=True)
    if work.job.limits:
        work.left = _left(work.job, entry)
    return [Task("tokenize", split) for split in entry.open]


def _left(job: Job, entry: Entry) -> dict[int | None, int]:
    """The limits of a job without the rows of splits that are done."""
    left = job.limits
    for file in entry.files:
        for number, rows in () if file.split in entry.open else file.rows.items():
            for key in left.keys() & {None, job.sources[number].entry}:
                left[key] -= rows
    return left


def do(work: Work, task: Task) -> Any:
    """Do one task, and return what it has made. With limits of rows, tasks are done in order."""
    job = work.job
    if task.kind == "pack":
        return _pack(work, work.windows[task.number])
    if work.left.get(None) == 0:
        return []
    return tokenize_split(
        task.number,
        job.splits[task.number],
        job.sources,
        job.tokenizer,
        work.engine[0],
        job.entries[0],
        skips=job.config.on_error == "skip",
        left=work.left,
        render=work.render,
        most=1 if job.sample else None,
        synced=bool(job.config.store) or job.config.executor != "local",
    )


def planned(work: Work, window: Window) -> Packs:
    """The packs of a window, before a multiple is made."""
    documents = read_documents(work.files, window.ranges)
    if len(work.job.config.splits) > 1:
        documents = work.held_out.split(documents, window.split)
    try:
        return plan_window(documents, work.packing, window.seed, work.job.planner)
    except TooLongError as error:
        source = work.sources[documents.source[error.document]]
        row = documents.id[error.document] - source.first_row
        raise InputError(f"{source.name} row {row} has {error}") from None


def counted(
    every: Packs, window: Window, config: BuildConfig, ends: tuple[int, int]
) -> tuple[Packs, WindowFile]:
    """The packs of a window as they are written, and its receipt without shards.

    every: the packs before a multiple is made. ends: see `account`.
    """
    multiple, packs = config.multiples, every
    if multiple.packs > 1:
        packs = of_multiple(every, multiple.packs, multiple.fill, config.pack_order.name)
    sums = account(packs, every, window.split, ends)
    sizes, counts = np.unique(np.diff(packs.offsets), return_counts=True)
    figures = {
        "window": window.number,
        "split": window.split,
        "packs": len(packs),
        "segments": len(packs.order),
        "tokens": int(packs.lengths.sum()),
        "bound": packs.bound,
        "gap": packs.planned - packs.bound,
        **packs.measured,
    }
    return packs, WindowFile(
        sums={number: each.as_dict() for number, each in sums.items()},
        figures=figures,
        sizes=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
    )


def _pack(work: Work, window: Window) -> WindowFile:
    job, name = work.job, window.name
    packs, made = counted(planned(work, window), window, job.config, job.tokenizer.end_ids)
    folder, size = job.work.drafts / "shards", job.config.shard_size
    shards = write_shards(packs, work.layout, folder, name, window.split, size)
    made = replace(made, made_from=work.made_from, shards=tuple(shards))
    write_window(job.work, name, made)
    work.written[name] = made
    return made
