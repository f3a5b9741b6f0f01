"""Token files to shard files, a window at a time.

Each finished window has a receipt, so it is not written again.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packprep.config.pack_rules import PackRules
from packprep.execute.job import Job
from packprep.output.report import Account
from packprep.output.shard_writer import (
    ShardFile,
    ShardLayout,
    cut_shards,
    read_shard_receipt,
    write_shard,
)
from packprep.output.sign_off import first_documents
from packprep.schemas.canonical import canonical_json, digest_of, parse_json
from packprep.schemas.columns import WHOLE_ROW
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.from_json import from_json
from packprep.tokens.store import TokenFile, rows_of_sources
from packprep.tokens.token_files import BASE_MEMORY
from packprep.windows.documents import (
    Documents,
    carried_columns,
    file_schema,
    form_epochs,
    held_out,
    read_documents,
)
from packprep.windows.mix import Mix
from packprep.windows.placement import MEMORY_PER_DOCUMENT, Packs
from packprep.windows.planner import (
    WindowPlan,
    account_by_source,
    packed_tokens,
    plan_window,
    resized,
    window_seed,
)
from packprep.windows.segments import TooLongError
from packprep.windows.trees import groups_apart

_BUFFERS = 40_000_000  # bytes of the record batches that two threads write at a time


@dataclass(frozen=True, kw_only=True)
class WindowFile:
    """Receipt of a written window of one split.

    made_from: digest of split, number, packs added or left out, and token files.
    """

    made_from: str
    account: Account
    shards: tuple[ShardFile, ...]


def window_name(split: str, window: int) -> str:
    """Name of the receipt of a window."""
    return f"{split}-{window:05d}.json"


def check_windows(windows: int, most: int, strategy: str, max_memory: int) -> None:
    """Raise if windows cannot be planned.

    windows: of an epoch. most: documents of the largest window.
    """
    if strategy == "balanced" and windows > 1:
        raise ConfigError(
            f"--strategy balanced packs one window and the input makes {windows}; choose a "
            "larger --window"
        )
    if (needed := BASE_MEMORY + most * MEMORY_PER_DOCUMENT) > max_memory:
        raise StoppedError(
            f"a window has {most:,} documents, and planning them takes {needed / 1e6:,.0f} MB of "
            f"memory; give more than --max-memory {max_memory / 1e6:,.0f}MB to resume, or "
            "start over with a smaller --window"
        )


@dataclass(frozen=True)
class Windows:
    """Windows of a build.

    files: token files of the whole input; with `formed`, only those of the windows in it.
    clock: measures the time of a stage.
    formed: token files of windows that are known before the others.
    rows: number of rows of each source, if `files` are not all.
    """

    job: Job
    files: Sequence[TokenFile]
    clock: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    formed: Mapping[int, list[TokenFile]] | None = None
    rows: Sequence[int] | None = None

    @cached_property
    def mixes(self) -> list[Mix]:
        """Documents drawn from each source, for each epoch; empty if all documents are taken."""
        if not self.job.config.is_mix:
            return []
        with self.clock("draw"):
            entries, config = [source.entry for source in self.job.sources], self.job.config
            return [
                Mix(
                    self.files,
                    self.job.tokens,
                    entries,
                    config.mix_rules(),
                    self._packed_tokens,
                    epoch,
                    config.max_memory,
                )
                for epoch in range(config.epochs)
            ]

    def run(self, number: int) -> tuple[int, int]:
        """Epoch and phase of a window."""
        epoch, in_epoch = self.place(number)
        return epoch, self.mixes[epoch].phase_of[in_epoch] if self.mixes else 0

    def rules(self, number: int) -> PackRules:
        """What decides the packs of a window."""
        if not self.mixes:
            return self.job.config.pack_rules()
        epoch, in_epoch = self.place(number)
        return self.mixes[epoch].rules_of(in_epoch)

    @cached_property
    def epochs(self) -> Sequence[Sequence[Sequence[TokenFile]]]:
        """Token files of each window of each epoch."""
        config = self.job.config
        return [mix.windows for mix in self.mixes] or form_epochs(
            self.files, config.window, config.ordering, config.epochs
        )

    @cached_property
    def windows(self) -> Mapping[int, Sequence[TokenFile]]:
        """Token files of each window. The windows of all epochs are numbered together."""
        if self.formed is not None:
            return self.formed
        return dict(enumerate(itertools.chain.from_iterable(self.epochs)))

    def place(self, number: int) -> tuple[int, int]:
        """Epoch of a window, and its number there."""
        epoch = 0
        while number >= len(self.epochs[epoch]):
            number -= len(self.epochs[epoch])
            epoch += 1
        return epoch, number

    def groups_apart(self, splits: Sequence[str]) -> tuple[int, int]:
        """Groups of `group_prefix` in several windows or splits, and their rows, of all epochs."""
        numbers = iter(range(len(self)))
        of_epochs = [
            groups_apart(
                self._documents(split, number)
                for number in itertools.islice(numbers, len(windows))
                for split in splits
            )
            for windows in self.epochs
        ]
        groups, rows = zip(*of_epochs, strict=True)
        return sum(groups), sum(rows)

    @cached_property
    def layout(self) -> ShardLayout:
        """Columns of the shards, some of which only the token files name."""
        config = self.job.config
        return ShardLayout.of(
            config.pack_rules(),
            config.writing,
            self.job.tokenizer,
            carried_columns(file_schema(self.job.tokens, self.files)),
        )

    def __len__(self) -> int:
        return len(self.windows)

    def check(self) -> None:
        """Raise if the windows cannot be planned.

        ConfigError if they can never be planned; StoppedError if only memory is short.
        """
        config = self.job.config
        check_windows(max(map(len, self.epochs)), self._most, config.strategy, config.max_memory)

    @property
    def at_once(self) -> int:
        """Number of windows planned and written at a time, within cores and memory."""
        if self.job.planner is not None:  # a packer of the user's own may not be thread-safe
            return 1
        config = self.job.config
        room = (config.max_memory - BASE_MEMORY) // (self._most * MEMORY_PER_DOCUMENT + _BUFFERS)
        return max(1, min(config.num_proc, room))

    @property
    def _most(self) -> int:
        """Documents of the largest window."""
        if self.mixes:
            return max(mix.most_documents for mix in self.mixes)
        return max(sum(file.documents_made for file in window) for window in self.windows.values())

    def finished(self, split: str, number: int, change: int = 0) -> WindowFile | None:
        """Receipt of a window that was made from the same inputs and whose shards are intact."""
        try:
            loaded = parse_json(self._receipt(split, number).read_bytes())
            shards = tuple(from_json(ShardFile, shard) for shard in loaded["shards"])
            receipt = WindowFile(
                made_from=loaded["made_from"],
                account=Account.from_dict(loaded["account"]),
                shards=shards,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        same = receipt.made_from == self._made_from(split, number, change)
        return receipt if same and all(shard.intact(self.job.shards) for shard in shards) else None

    def write(self, split: str, number: int, change: int = 0) -> WindowFile:
        """Plan a window and write its shards; intact shards of the same inputs are kept.

        change: packs to add or to leave out, see `planner.remainders`.
        """
        self.job.receipts.mkdir(exist_ok=True)
        with self.clock("plan"):
            plan = self._plan(split, number)
            written = resized(plan.packs, change, self.job.config.order)
            account = Account.empty(len(self.job.sources))
            by_source = account_by_source(plan, self.job.tokenizer, len(self.job.sources), written)
            account.add(number, split, plan, written, by_source)
            if self.job.config.phases:
                account.windows[-1] |= {
                    "phase": self.run(number)[1],
                    "max_length": self.rules(number).cutting.max_length,
                }
        made_from = self._made_from(split, number, change)
        with self.clock("write"):
            shards = self._write_shards(written, split, number, made_from)
        content = {
            "made_from": made_from,
            "account": account.as_dict(),
            "shards": [asdict(shard) for shard in shards],
        }
        write_file(self._receipt(split, number), canonical_json(content))
        return WindowFile(made_from=made_from, account=account, shards=shards)

    def count(self, split: str, number: int) -> int:
        """Number of packs of a window before any is added or left out.

        It is kept as a receipt, because counting takes a whole plan.
        """
        path = self.job.receipts / f"{split}-{number:05d}.packs.json"
        made_from = self._made_from(split, number, 0)
        try:
            loaded = parse_json(path.read_bytes())
            if loaded["made_from"] == made_from:
                return int(loaded["packs"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        with self.clock("plan"):
            packs = len(self._plan(split, number).packs)
        self.job.receipts.mkdir(exist_ok=True)
        write_file(path, canonical_json({"made_from": made_from, "packs": packs}))
        return packs

    def _receipt(self, split: str, number: int) -> Path:
        return self.job.receipts / window_name(split, number)

    def _made_from(self, split: str, number: int, change: int) -> str:
        return digest_of([split, number, change, [file.xxh3 for file in self.windows[number]]])

    def _plan(self, split: str, number: int) -> WindowPlan:
        documents = self._documents(split, number)
        documents.mapped.relieve(len(documents) * MEMORY_PER_DOCUMENT)
        seed = window_seed(self.job.config.seed, number, int(split == "validation"))
        with self._too_long(documents, self.rules(number)):
            phased = self.job.config.phases and self.mixes
            mixed = self.mixes[0].cells.entry_of_source if phased else None
            return plan_window(
                documents, self.job.tokenizer, self.rules(number), seed, self.job.planner, mixed
            )

    def _packed_tokens(self, documents: Documents, rules: PackRules) -> NDArray[np.int64]:
        with self._too_long(documents, rules):
            return packed_tokens(documents, self.job.tokenizer, rules)

    @contextmanager
    def _too_long(self, documents: Documents, rules: PackRules) -> Iterator[None]:
        """Name file and row in the error about a document over max_length."""
        try:
            yield
        except TooLongError as error:
            raise InputError(
                f"{self._row(documents, error.document)} has {error.tokens:,} tokens but a pack "
                f"holds {rules.cutting.max_length:,}; choose --overflow split, truncate or drop"
            ) from None

    def _documents(self, split: str, number: int) -> Documents:
        if self.mixes:
            epoch, window = self.place(number)
            return self.mixes[epoch].documents(window, split)
        documents = read_documents(
            self.job.tokens, self.windows[number], self.job.config.max_memory
        )
        if not self.job.config.holdout:
            return documents
        validation = held_out(documents, self.job.config.holdout, self.job.config.seed)
        return documents.take(validation if split == "validation" else ~validation)

    def _row(self, documents: Documents, document: int) -> str:
        """File and row of a document, and its message if it is one turn."""
        source = int(documents.source[document])
        firsts = first_documents(self.rows or rows_of_sources(self.files, len(self.job.sources)))
        row = int(documents.id[document]) - firsts[source]
        turns = documents.values.get("turn_ids")
        turn = WHOLE_ROW if turns is None else int(turns[document])
        kind = "message" if self.job.config.boundaries is None else "document"
        part = f" {kind} {turn}" if turn != WHOLE_ROW else ""
        return f"{self.job.sources[source].name} row {row}{part}"

    def _write_shards(
        self, packs: Packs, split: str, window: int, made_from: str
    ) -> tuple[ShardFile, ...]:
        """Write the shards of one window.

        Their working names have window and number, because the number of all shards is not known.
        """

        def write(part: tuple[int, tuple[int, int]]) -> ShardFile:
            number, (first, last) = part
            name = f"{split}-{window:05d}-{number:05d}.arrow"
            receipt = self.job.receipts / f"{name}.json"
            if (done := read_shard_receipt(receipt, made_from)) is not None and done.intact(
                self.job.shards
            ):
                return done
            shard = write_shard(
                self.job.shards, name, split, packs, first, last, self.layout, window
            )
            if self.job.config.phases:
                shard = replace(shard, phase=self.run(window)[1])
            write_file(receipt, canonical_json(asdict(shard) | {"made_from": made_from}))
            return shard

        if not len(packs):
            return ()
        ranges = cut_shards(packs, self.layout, self.job.config.shard_size)
        with ThreadPoolExecutor(min(2, self.job.config.num_proc)) as pool:
            return tuple(pool.map(write, enumerate(ranges)))
