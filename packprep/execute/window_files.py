"""Token files to shard files, a window at a time.

Each finished window has a receipt, so it is not written again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Running
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
from packprep.sources.position import Extent
from packprep.sources.skip_rows import skipped_documents
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.from_json import from_json
from packprep.tokens.store import TokenFile, rows_of_sources
from packprep.tokens.token_files import BASE_MEMORY
from packprep.windows.documents import (
    Documents,
    carried_columns,
    file_schema,
)
from packprep.windows.mix import Mix
from packprep.windows.placement import MEMORY_PER_DOCUMENT, Packs
from packprep.windows.planner import (
    WindowPlan,
    account_by_source,
    packed_tokens,
    plan_window,
    resized,
)
from packprep.windows.segments import TooLongError
from packprep.windows.specs import WindowSpec, read_window
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


def check_windows(specs: Sequence[WindowSpec[Extent]], strategy: str, max_memory: int) -> None:
    """Raise if windows cannot be planned.

    ConfigError if they can never be planned; StoppedError if only memory is short.
    """
    windows = max(Counter((spec.split, spec.run) for spec in specs).values())
    if strategy == "balanced" and windows > 1:
        raise ConfigError(
            f"--strategy balanced packs one window and the input makes {windows}; choose a "
            "larger --window"
        )
    largest = max(specs, key=lambda spec: spec.memory)
    if (needed := BASE_MEMORY + largest.memory) > max_memory:
        raise StoppedError(
            f"a window has {largest.documents:,} documents, and planning them takes "
            f"{needed / 1e6:,.0f} MB of memory; give more than --max-memory "
            f"{max_memory / 1e6:,.0f}MB to resume, or start over with a smaller --window"
        )


def windows_at_once(specs: Sequence[WindowSpec[Extent]], running: Running) -> int:
    """Number of windows planned and written at a time, within cores and memory."""
    most = max(spec.memory for spec in specs)
    room = (running.max_memory - BASE_MEMORY) // (most + _BUFFERS)
    return max(1, min(running.num_proc, room))


@dataclass(frozen=True)
class Windows:
    """Plans and writes windows of a build.

    files: token files of the input, as far as they are made.
    clock: measures the time of a stage.
    rows: number of rows of each source, if `files` are not all before the last one.
    """

    job: Job
    files: Sequence[TokenFile]
    clock: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    rows: Sequence[int] | None = None

    def draw(self) -> Mix | None:
        """The documents drawn from each source; None if all documents are taken."""
        if not self.job.config.is_mix:
            return None
        with self.clock("draw"):
            return Mix(
                self.files,
                self.job.tokens,
                [source.entry for source in self.job.sources],
                self.job.config.mix_rules(self._skipped),
                self._packed_tokens,
                self.job.config.max_memory,
            )

    def groups_apart(self, specs: Sequence[WindowSpec[TokenFile]]) -> tuple[int, int]:
        """Groups of `group_prefix` in several windows or splits, and their rows, of all epochs."""
        epochs: dict[int, list[WindowSpec[TokenFile]]] = {}
        for spec in specs:
            epochs.setdefault(spec.run * spec.rules.repack, []).append(spec)

        def kept(spec: WindowSpec[TokenFile]) -> Documents:
            documents = self._documents(spec)
            skipped = self._skipped
            return documents if skipped is None else documents.take(~documents.listed(skipped))

        apart = [groups_apart(map(kept, epoch)) for epoch in epochs.values()]
        return sum(groups for groups, _ in apart), sum(rows for _, rows in apart)

    @cached_property
    def rules(self) -> PackRules:
        """Rules of the packs of a window, without phases."""
        return self.job.config.pack_rules(self._skipped)

    @cached_property
    def _skipped(self) -> Int64 | None:
        """Ids of the documents that `skip_rows` leaves out."""
        config, sources = self.job.config, self.job.sources
        return skipped_documents(sources, self._rows, config.reading, config.skip_rows)

    @property
    def _rows(self) -> Sequence[int]:
        return self.rows or rows_of_sources(self.files, len(self.job.sources))

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

    def finished(self, spec: WindowSpec[TokenFile], change: int = 0) -> WindowFile | None:
        """Receipt of a window that was made from the same inputs and whose shards are intact."""
        try:
            loaded = parse_json(self._receipt(spec).read_bytes())
            shards = tuple(from_json(ShardFile, shard) for shard in loaded["shards"])
            receipt = WindowFile(
                made_from=loaded["made_from"],
                account=Account.from_dict(loaded["account"]),
                shards=shards,
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        same = receipt.made_from == _made_from(spec, change)
        return receipt if same and all(shard.intact(self.job.shards) for shard in shards) else None

    def write(self, spec: WindowSpec[TokenFile], change: int = 0) -> WindowFile:
        """Plan a window and write its shards; intact shards of the same inputs are kept.

        change: packs to add or to leave out, see `planner.remainders`.
        """
        self.job.receipts.mkdir(exist_ok=True)
        with self.clock("plan"):
            plan = self._plan(spec)
            written = resized(plan.packs, change, self.job.config.pack_order.name)
            account = Account.empty(len(self.job.sources))
            by_source = account_by_source(plan, self.job.tokenizer, len(self.job.sources), written)
            account.add(spec.number, spec.split, plan, written, by_source)
        made_from = _made_from(spec, change)
        with self.clock("write"):
            shards = self._write_shards(written, spec, made_from)
        content = {
            "made_from": made_from,
            "account": account.as_dict(),
            "shards": [asdict(shard) for shard in shards],
        }
        write_file(self._receipt(spec), canonical_json(content))
        return WindowFile(made_from=made_from, account=account, shards=shards)

    def count(self, spec: WindowSpec[TokenFile]) -> int:
        """Number of packs of a window before any is added or left out.

        It is kept as a receipt, because counting takes a whole plan.
        """
        path = self.job.receipts / f"{spec.name}.packs.json"
        made_from = _made_from(spec)
        try:
            loaded = parse_json(path.read_bytes())
            if loaded["made_from"] == made_from:
                return int(loaded["packs"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        with self.clock("plan"):
            packs = len(self._plan(spec).packs)
        self.job.receipts.mkdir(exist_ok=True)
        write_file(path, canonical_json({"made_from": made_from, "packs": packs}))
        return packs

    def _receipt(self, spec: WindowSpec[TokenFile]) -> Path:
        return self.job.receipts / spec.receipt

    def _plan(self, spec: WindowSpec[TokenFile]) -> WindowPlan:
        documents = self._documents(spec)
        documents.mapped.relieve(len(documents) * MEMORY_PER_DOCUMENT)
        with self._too_long(documents, spec.rules):
            return plan_window(
                documents, self.job.tokenizer, spec.rules, spec.seed, self.job.planner, spec.mixed
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

    def _documents(self, spec: WindowSpec[TokenFile]) -> Documents:
        return read_window(spec, self.job.tokens, self.job.config.max_memory)

    def _row(self, documents: Documents, document: int) -> str:
        """File and row of a document, and its message if it is one turn."""
        source = int(documents.source[document])
        firsts = first_documents(self._rows)
        row = int(documents.id[document]) - firsts[source]
        turns = documents.values.get("turn_ids")
        turn = WHOLE_ROW if turns is None else int(turns[document])
        kind = "message" if self.job.config.boundaries is None else "document"
        part = f" {kind} {turn}" if turn != WHOLE_ROW else ""
        return f"{self.job.sources[source].name} row {row}{part}"

    def _write_shards(
        self, packs: Packs, spec: WindowSpec[TokenFile], made_from: str
    ) -> tuple[ShardFile, ...]:
        """Write the shards of one window.

        Their working names have window and number, because the number of all shards is not known.
        """

        def write(part: tuple[int, tuple[int, int]]) -> ShardFile:
            number, (first, last) = part
            name = f"{spec.name}-{number:05d}.arrow"
            receipt = self.job.receipts / f"{name}.json"
            if (done := read_shard_receipt(receipt, made_from)) is not None and done.intact(
                self.job.shards
            ):
                return done
            shard = write_shard(
                self.job.shards, name, spec.split, packs, first, last, self.layout, spec.number
            )
            write_file(receipt, canonical_json(asdict(shard) | {"made_from": made_from}))
            return shard

        if not len(packs):
            return ()
        ranges = cut_shards(packs, self.layout, self.job.config.shard_size)
        with ThreadPoolExecutor(min(2, self.job.config.num_proc)) as pool:
            return tuple(pool.map(write, enumerate(ranges)))


def _made_from(spec: WindowSpec[TokenFile], change: int = 0) -> str:
    return digest_of([spec.split, spec.number, change, [file.xxh3 for file in spec.slices]])
