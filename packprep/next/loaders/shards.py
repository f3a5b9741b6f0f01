"""Outputs as a sequence of packs, each a few numpy views of the mapped files.

Opening reads manifests and the sizes of shards, no tokens. A record batch is checked once, in a few
numpy passes, when its first pack is read; after that a pack costs a few microseconds and the page
faults of its tokens. Views stay valid as long as they are referenced.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Bools, Int64
from ..schemas.columns import Column, schema_of
from ..schemas.files import MANIFEST, FormatError, digest_of
from ..schemas.manifest import FileEntry, Manifest, Output, check_file, open_output
from ..schemas.views import ListView, list_view

_CACHE_SIZE = 1 << 32
_HEADER = 1 << 16  # bytes that hold the schema of a shard
_READAHEAD = 8 << 20


class Rows:
    """The packs of one record batch: `rows.get("tokens", 3)` is a view of the tokens of pack 3."""

    def __init__(self, views: Mapping[str, ListView]) -> None:
        # Reading a Python int from a memoryview takes a third of the time of a numpy scalar.
        self._columns = {name: (view.offsets.data, view.values) for name, view in views.items()}
        self._ends, self._longest = views["cu_seqlens"], list[int]()

    def get(self, name: str, row: int) -> NDArray[Any]:
        """The values of a column of a pack."""
        offsets, values = self._columns[name]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, row: int) -> int:
        """Number of tokens of a pack."""
        offsets = self._columns["tokens"][0]
        return int(offsets[row + 1] - offsets[row])

    def longest(self, row: int) -> int:
        """Tokens of the longest segment of a pack; the first call computes it for all packs."""
        if not self._longest:
            # The last boundary of a pack is followed by the 0 of the next: a negative length.
            lengths, offsets = np.diff(self._ends.flat, append=0), self._ends.offsets
            self._longest = np.maximum.reduceat(lengths, offsets[:-1] - offsets[0]).tolist()
        return self._longest[row]

    def counts(self) -> Int64:
        """Number of tokens of all packs, int64 [packs]."""
        return np.diff(np.asarray(self._columns["tokens"][0])).astype(np.int64)


class PackedShards:
    """The packs of a split of one or more outputs, in stored order.

    `len(shards)`, `shards[i]`, iteration. A pack is a dict of arrays by standard names: `tokens`,
    `position_ids`, `cu_seqlens` and whatever else the output has, as read-only views of the file.

    path: an output, the folder of a split in it, or a list of these, which follow one another and
    have the same columns. split: its name; required if an output has several. mmap: False reads
    shards into memory, for network file systems, where a mapped file that changes may end the
    process; at most about cache_size bytes of record batches are kept.

    Raises FormatError for a damaged output, ValueError for an unknown split. Pickles as its path.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        split: str | None = None,
        mmap: bool = True,
        cache_size: int = _CACHE_SIZE,
    ) -> None:
        self._pickled = partial(PackedShards, path, split=split, mmap=mmap, cache_size=cache_size)
        paths = [path] if isinstance(path, str | Path) else [*path]
        self.path, self.mmap = ", ".join(map(str, paths)), mmap
        if not paths:
            raise ValueError("the list of outputs is empty; pass one or more")
        self.outputs = [_open(Path(each), split) for each in paths]
        self.columns = _columns(self.outputs[0][0].manifest)
        self._shards = list[_Shard]()
        for output, name in self.outputs:
            columns = _columns(output.manifest)
            if {*columns} != {*self.columns}:
                raise ValueError(
                    f"{output.files} has the columns {', '.join(columns)}, and {paths[0]} "
                    f"{', '.join(self.columns)}; expected the same in all outputs of a list"
                )
            entries = output.manifest.shards(name)
            self._shards += [_Shard(output, entry, mmap) for entry in entries]
        self.packs_per_shard = tuple(shard.entry.packs for shard in self._shards)
        self.shards_per_output = tuple(len(o.manifest.shards(name)) for o, name in self.outputs)
        self._firsts = [*accumulate(self.packs_per_shard, initial=0)]
        batches = sum(len(shard.firsts) for shard in self._shards)
        size = sum(shard.entry.bytes for shard in self._shards) // max(batches, 1)
        self._rows = lru_cache(None if mmap else max(cache_size // max(size, 1), 1))(self._read)

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Pack `index`, counted from the end if negative; IndexError outside the packs."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range; {self.path} has {len(self)} packs")
        rows, row = self.find(index % len(self))
        pack = {name: rows.get(name, row) for name in self.columns}
        if "position_ids" not in pack:
            ends = pack["cu_seqlens"]
            starts = np.repeat(ends[:-1], np.diff(ends))
            pack["position_ids"] = np.arange(len(starts), dtype=np.int32) - starts
        return pack

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return f"PackedShards({self.path!r}: {len(self):,} packs)"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled, ()

    def names(self, *kinds: str) -> list[str]:
        """Names of the columns of these kinds."""
        return [name for name, column in self.columns.items() if column.kind in kinds]

    def find(self, index: int) -> tuple[Rows, int]:
        """The checked record batch of a pack, 0 or more, and the pack's row in it."""
        shard = bisect_right(self._firsts, index) - 1
        firsts, pack = self._shards[shard].firsts, index - self._firsts[shard]
        number = bisect_right(firsts, pack) - 1
        return self._rows(shard, number), pack - firsts[number]

    def pack_tokens(self) -> Int64:
        """Tokens of each pack, int64 [packs]; reads the list offsets of all shards."""
        counts = [
            self._rows(number, batch).counts()
            for number, shard in enumerate(self._shards)
            for batch in range(len(shard.firsts))
        ]
        return np.concatenate([np.empty(0, np.int64), *counts])

    def read_ahead(self, shards: Sequence[int]) -> None:
        """Ask the system to read shards; no effect where posix_fadvise is missing."""
        with suppress(OSError):  # reading the shard reports it
            for number in shards if hasattr(os, "posix_fadvise") else ():
                self._shards[number].will_need()

    @property
    def max_length(self) -> int:
        """Most tokens of a pack."""
        return max(output.manifest.max_length for output, _ in self.outputs)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary: every id is less."""
        return max(output.manifest.layout.vocab_size for output, _ in self.outputs)

    @property
    def segment_multiple(self) -> int:
        """Every segment's length is a multiple of this (--pad-to-multiple)."""
        options = [output.manifest.data["inputs"].get("options", {}) for output, _ in self.outputs]
        return math.gcd(*(int(each.get("pad_to_multiple", 1)) for each in options))

    @property
    def fingerprint(self) -> int:
        """Number below 2^60, equal for the same packs in the same order, at any path."""
        return int(digest_of([shard.entry.sha256 for shard in self._shards])[:15], 16)

    def _read(self, shard: int, number: int) -> Rows:
        return self._shards[shard].read(number)


def _open(path: Path, split: str | None) -> tuple[Output, str]:
    """An output, and the name of the split."""
    if not (path / MANIFEST).exists() and (path.parent / MANIFEST).exists():
        path, split = path.parent, path.name
    output = open_output(path)
    if output.manifest.data["plan"] is not None:
        raise ValueError(f"{path} is a plan of packs, whose tokens are in a store; build shards")
    names = [*output.manifest.splits]
    if split is None and len(names) == 1:
        return output, names[0]
    if split not in names:
        choice = "no split was chosen" if split is None else f"split={split!r} was passed"
        raise ValueError(
            f"{path} has the splits {', '.join(names)}, and {choice}; pass split={names[0]!r}"
        )
    return output, split


def _columns(manifest: Manifest) -> dict[str, Column]:
    """Columns of the packs by standard name: boundaries, where the files have lengths."""
    columns = {each.standard: each for each in manifest.columns}
    if lengths := columns.pop("seq_lengths", None):
        columns["cu_seqlens"] = replace(lengths, kind="boundary", makes="cu_seqlens")
    return columns


class _Shard:
    """One shard. firsts: number of the first pack of each record batch."""

    def __init__(self, output: Output, entry: FileEntry, mmap: bool) -> None:
        manifest = output.manifest
        self.entry, self._columns, self._mmap = entry, _columns(manifest), mmap
        self.path = output.files.local(entry.path)
        self._schema, self._max_length = schema_of(manifest.columns), manifest.max_length
        self._places = [place for place, _ in entry.batches]
        self.firsts = [first for _, first in entry.batches]
        self._mapped: Any = None
        check_file(output, entry, digest=False)

    def read(self, number: int) -> Rows:
        """Read and check a record batch."""
        first, last = [*self.firsts, self.entry.packs][number : number + 2]
        begin, end = [*self._places, self.entry.bytes][number : number + 2]
        where = f"{self.path} packs {first} to {last - 1}"
        try:
            source: Any = pa.BufferReader(self._bytes(begin, end))
            if begin == 0 and (schema := pa.ipc.read_schema(source)) != self._schema:
                raise FormatError(
                    f"{self.path} has the columns {schema}; the manifest lists {self._schema}"
                )
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise FormatError(f"{where} are damaged: {error}; restore the file") from None
        if len(batch) != last - first:
            raise FormatError(f"{where}: there are {len(batch)}; the manifest lists others")
        views = {name: _view(batch, each, where) for name, each in self._columns.items()}
        _check(views, self._columns, self._max_length, where, first)
        return Rows(views)

    def _bytes(self, begin: int, end: int) -> Any:
        """Bytes of the file, mapped or read."""
        if not self._mmap:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        if self._mapped is None:
            with pa.memory_map(str(self.path)) as file:
                self._mapped = file.read_buffer()
        return self._mapped[begin:end]

    def will_need(self) -> None:
        """Ask the system to read the file into its cache."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            for offset in range(0, self.entry.bytes, _READAHEAD):
                os.posix_fadvise(handle, offset, _READAHEAD, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(handle)


def _view(batch: pa.RecordBatch, column: Column, where: str) -> ListView:
    """A column of the packs: lengths of segments become boundaries."""
    view = list_view(batch, column.name, where)
    if column.name != "seq_lengths":
        return view
    counts, lengths = np.diff(view.offsets), view.flat
    ends = np.cumsum(lengths, dtype=np.int64)
    before = np.append(0, ends)[view.offsets[:-1] - view.offsets[0]]
    values = np.zeros(len(lengths) + len(counts), np.int32)
    pack = np.repeat(np.arange(len(counts)), counts)
    values[np.arange(len(lengths)) + pack + 1] = ends - np.repeat(before, counts)
    offsets = view.offsets - view.offsets[0] + np.arange(len(view.offsets))
    return ListView(offsets.astype(np.int32), values)


def _check(
    views: Mapping[str, ListView],
    columns: Mapping[str, Column],
    max_length: int,
    where: str,
    first: int,
) -> None:
    """Raise FormatError unless all lists of each pack fit one another."""
    tokens, entries = np.diff(views["tokens"].offsets), np.diff(views["cu_seqlens"].offsets)
    bad: Bools = (tokens < 1) | (tokens > max_length) | (entries < 2)
    lengths = {"token": tokens, "segment": entries - 1, "boundary": entries}
    for name, view in views.items():
        bad |= np.diff(view.offsets) != lengths[columns[name].kind]
    if not bad.any():
        ends = views["cu_seqlens"].flat
        starts = np.cumsum(entries) - entries
        bad = (ends[starts] != 0) | (ends[starts + entries - 1] != tokens)
        rises = np.append(np.diff(ends), 1)
        rises[starts[1:] - 1] = 1  # from the end of a pack to the 0 of the next
        bad |= np.minimum.reduceat(rises, starts) < 1
    if bad.any():
        number = first + int(np.argmax(bad))
        raise FormatError(
            f"{where}: pack {number} has lists that do not fit one another, boundaries that do not "
            f"rise from 0 to its tokens, or more than {max_length}; restore the file"
        )
