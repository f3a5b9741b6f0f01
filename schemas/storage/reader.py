"""The one reader of finished outputs: packs of shards and of indexes, checked as far as is needed.

    columns   sizes of files, columns, number of packs
    packs     also every invariant of every pack, and the number of tokens
    digests   also each byte that is read, once: for whoever writes a new digest over it

At each level, the boundaries of the packs of a record batch are checked when its `view` is used.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..batch_view import BatchView, batch_view
from ..boundaries import bad_packs
from ..columns import check_schema
from ..errors import FormatError
from ..findings import StopAtFirst
from ..index.gathered import IndexPacks
from ..index.runs import Copy, copy_runs
from ..index.token_store import TokenStore
from ..index_table import TOKENS
from ..listed import Level, check_file
from ..manifest import FileEntry, Manifest, Output, read_manifest
from ..names import column_view
from ..validate import sound_parts
from .batches import map_file, stream_batches

Check = Literal["columns", "packs", "digests"]

_AT_ONCE = 8  # files that are compared at a time
_AGAIN = "restore the file or build again"


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchOfPacks:
    """Packs of a record batch.

    entry: of their shard.
    where: name of the shard in messages.
    first: number of the first pack in the shard.
    rows: in the columns of the shard; of an index, in those of its packs.
    columns: packprep's names of those that `view` has; None for all.
    checked: True if `view` checks every invariant of every column.
    """

    manifest: Manifest
    entry: FileEntry
    where: str
    first: int
    rows: pa.RecordBatch
    columns: Collection[str] | None
    checked: bool

    @cached_property
    def view(self) -> BatchView:
        """The packs as flat arrays. FormatError if they, or only their boundaries, are wrong."""
        manifest, longest = self.manifest, self.manifest.longest(self.entry)
        if self.checked:
            [view] = sound_parts(
                self.rows,
                manifest.columns,
                max_length=longest,
                vocab_size=manifest.vocab_size,
                where=self.where,
                first_pack=self.first,
                findings=StopAtFirst(),
            )
            return view
        columns = [
            column
            for column in manifest.columns
            if self.columns is None or column.name in {*self.columns, "tokens", "cu_seqlens"}
        ]
        views = {column.name: column_view(self.rows, column.name, self.where) for column in columns}
        bad_packs(views, columns, longest, self.where, self.first, StopAtFirst())
        return batch_view(views, self.where, self.first)


class Reader:
    """Files and packs of an output. Raises FormatError for all that differs from the manifest.

    manifest: of the shards to read; by default the output's.
    copy: how tokens of an index are copied.
    opened: opens a shard to read it; by default it is mapped.

    index: packs of an index, by default from its token store; None for shards with tokens.

    With "digests", all small files are compared at once.
    """

    def __init__(
        self,
        output: Output,
        manifest: Manifest | None = None,
        check: Check = "columns",
        *,
        copy: Copy = copy_runs,
        index: IndexPacks | None = None,
        opened: Callable[[FileEntry], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.output, self._check = output, check
        self.manifest = manifest if manifest is not None else read_manifest(output)
        self._opened = opened or partial(map_file, output)
        self.index = index
        if self.manifest.is_index and index is None:
            store = TokenStore(output, self.manifest, digests=check == "digests")
            self.index = IndexPacks(store, self.manifest, copy)
        self._compared: dict[str, Future[Path]] = {}
        if check == "digests":
            for entry in self.manifest.all_files:
                if not entry.is_shard and not entry.path.startswith(f"{TOKENS}/"):
                    self.file(entry)

    def __str__(self) -> str:
        return str(self.output)

    def file(self, entry: FileEntry) -> Path:
        """Path of a file that is as the manifest says, to its digest if those are compared."""
        if (compared := self._compared.get(entry.path)) is None:
            compared = self._compared[entry.path] = Future()
            self._compare(entry, compared)
        return compared.result()

    def _compare(self, entry: FileEntry, compared: Future[Path]) -> None:
        level: Level = "sha256" if self._check == "digests" else "size"
        try:
            compared.set_result(check_file(self.output, entry, level))
        except FormatError as error:
            compared.set_exception(FormatError(f"{error}; {_AGAIN}"))
        except BaseException as error:
            compared.set_exception(error)

    def find(self, name: str) -> Path | None:
        """Path of a file by its name; None if the manifest does not list it."""
        entries = (entry for entry in self.manifest.all_files if entry.path == name)
        return next(map(self.file, entries), None)

    def ahead(self, entries: Sequence[FileEntry]) -> Iterator[FileEntry]:
        """Files in order; digests of the next ones are compared meanwhile."""
        if self._check != "digests":
            yield from entries
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, entry in enumerate(entries):
                for late in entries[number : number + _AT_ONCE]:
                    if late.path not in self._compared:
                        self._compared[late.path] = compared = Future[Path]()
                        pool.submit(self._compare, late, compared)
                yield entry

    def packs(
        self, split: str, columns: Collection[str] | None = None, *, epoch: int | None = None
    ) -> Iterator[BatchOfPacks]:
        """The packs of a split, in their order. epoch: only those of this one; see `read`."""
        for entry in self.ahead(self.manifest.shards(split, epoch)):
            yield from self.read(entry, columns)

    def read(
        self, entry: FileEntry, columns: Collection[str] | None = None, check: Check | None = None
    ) -> Iterator[BatchOfPacks]:
        """The packs of a shard.

        columns: those that are needed, at level "columns"; of an index, no others with a value per
        token are gathered.
        check: a lower level than that of the reader, for the packs. If the reader compares digests,
        the end raises FormatError if the shard has changed: so sign nothing before it. An error
        that the change has caused is replaced.
        """
        check = check or self._check
        columns = columns if check == "columns" else None
        try:
            yield from self._read(entry, columns, check)
        except Exception:
            if self._check == "digests":
                self.file(entry)
            raise
        if self._check == "digests":
            self.file(entry)

    def _read(
        self, entry: FileEntry, columns: Collection[str] | None, check: Check
    ) -> Iterator[BatchOfPacks]:
        packs = tokens = 0
        for first, stored in self._stored(entry):
            batch = self._batch(entry, stored, first, columns, checked=check != "columns")
            if batch.checked:
                tokens += int(batch.view.pack_tokens[-1])
            yield batch
            packs = first + len(stored)
        self._compare_count(entry, "packs", packs, entry.packs)
        if check != "columns":
            self._compare_count(entry, "tokens", tokens, entry.tokens)

    def _compare_count(self, entry: FileEntry, name: str, count: int, expected: int | None) -> None:
        if count != expected:
            raise FormatError(
                f"{self.output}/{entry.path} has {count:,} {name}; the manifest says "
                f"{expected:,}; {_AGAIN}"
            )

    def _stored(self, entry: FileEntry) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The record batches of a file without empty ones, and the first pack of each."""
        where, first = f"{self.output}/{entry.path}", 0
        schema = partial(check_schema, columns=self.manifest.file_columns, where=where)
        with self._opened(entry) as file:
            for batch in stream_batches(file, where, schema):
                if len(batch):
                    yield first, batch
                first += len(batch)

    def _batch(
        self,
        entry: FileEntry,
        stored: pa.RecordBatch,
        first: int,
        columns: Collection[str] | None = None,
        *,
        checked: bool = False,
    ) -> BatchOfPacks:
        where = f"{self.output}/{entry.path}"
        return BatchOfPacks(
            manifest=self.manifest,
            entry=entry,
            where=where,
            first=first,
            rows=self.gathered(entry, stored, first, where, columns),
            columns=columns,
            checked=checked,
        )

    def pack(self, entry: FileEntry, number: int) -> BatchView:
        """One pack of a shard, of which the boundaries are checked."""
        return next(
            self._batch(entry, stored.slice(number - first, 1), number).view
            for first, stored in self._stored(entry)
            if number < first + len(stored)
        )

    def gathered(
        self,
        entry: FileEntry,
        stored: pa.RecordBatch,
        first: int,
        where: str = "",
        columns: Collection[str] | None = None,
    ) -> pa.RecordBatch:
        """Packs of a record batch of a shard: of an index, gathered; otherwise the batch itself.

        first: number of its first pack. where, columns: see `BatchOfPacks`.
        """
        if self.index is None:
            return stored
        batch = self.index.batch(entry.path, stored, first, where)
        return batch.record_batch(self.manifest.names, columns)

    def compare_tokens(self) -> None:
        """Compare the token files of an index that are in a store outside it."""
        for _, finding in self.index.store.changed() if self.index is not None else ():
            raise FormatError(finding)
