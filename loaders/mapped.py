"""One shard file, mapped or read: its record batches as views, each pack checked once.

Construction reads the schema only. The boundaries of a record batch are checked in numpy passes
when its first pack is read (under a microsecond per pack). A bad pack raises when it is read, not
before.
"""

import os
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.boundaries import check_boundaries
from packprep.schemas.columns import STANDARD_COLUMNS, Column, check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import HF_NAMES, to_boundaries
from packprep.schemas.storage.read_cache import ReadCache
from packprep.schemas.storage.steady import SteadyFile, StreamIndex, not_a_stream, schema_bytes
from packprep.schemas.views import ListView, list_view

_READAHEAD = 8 << 20
_POSITIONS = "position_ids"
# Columns that mask a loss. Labels are not derived from them, because that depends on the trainer's
# options.
_MASKS = ("completion_mask", "assistant_masks", "loss_mask", "prompt_mask")


class Field(NamedTuple):
    """A column of a pack, and the column of the file that stores it.

    kind `lengths`: boundaries stored as segment lengths. dtype: dtype of the pack's values. Only
    token columns of a dataset from another packer may differ from the format's dtype; they are cast
    when they are copied.
    """

    name: str
    stored: str
    kind: Literal["token", "segment", "boundary", "row", "lengths"]
    dtype: str


def stored_fields(manifest: Manifest) -> tuple[Field, ...]:
    """Fields of every shard of an output, in either spelling."""
    return tuple(
        Field(
            column.name,
            stored.name,
            "lengths" if stored.kind != column.kind else column.kind,
            column.dtype,
        )
        for column, stored in zip(manifest.columns, manifest.stored_columns, strict=True)
    )


def plain_fields(schema: pa.Schema, where: str) -> tuple[Field, ...]:
    """The fields of a `load_from_disk` directory without a manifest, from any packer.

    Lists of tokens and cu_seqlens, or input_ids and seq_lengths as TRL names them.

    FormatError if tokens or boundaries are missing, or are not lists of integers.
    """
    try:
        counts = Counter(schema.names)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where} has a column name that is not UTF-8: {error}; save it again"
        ) from None
    if duplicates := [name for name, count in counts.items() if count > 1]:
        raise FormatError(f"{where} has duplicate column {duplicates[0]}; expected unique names")
    names = set(schema.names)
    kinds: dict[str, Any] = {name: (name, column.kind) for name, column in STANDARD_COLUMNS.items()}
    if {*HF_NAMES.values()} <= names and not {*HF_NAMES} <= names:
        kinds |= {"tokens": ("input_ids", "token"), "cu_seqlens": ("seq_lengths", "lengths")}
    fields = []
    for name, (stored, kind) in kinds.items():
        if stored in names:
            arrow = schema.field(stored).type
            is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow)
            if not is_list or not pa.types.is_integer(arrow.value_type):
                raise FormatError(
                    f"{where} column {stored} is {arrow}; expected a list of integers"
                )
            dtype = str(arrow.value_type) if kind == "token" else STANDARD_COLUMNS[name].dtype
            fields.append(Field(name, stored, kind, dtype))
    if not {"tokens", "cu_seqlens"} <= {field.name for field in fields}:
        raise FormatError(
            f"{where} has the columns {', '.join(schema.names)}; expected tokens and cu_seqlens, "
            "or input_ids and seq_lengths as TRL packs them"
        )
    masks = [name for name in _MASKS if name in names]
    if masks and "labels" not in names:
        raise FormatError(
            f"{where} has {masks[0]} but no labels; save it with labels, -100 for tokens without "
            "loss"
        )
    return tuple(fields)


class BatchRows:
    """The packs of one record batch: `rows.get("tokens", 3)` is a view of the tokens of pack 3."""

    def __init__(self, views: dict[str, ListView]) -> None:
        self.views = views
        # Reading a Python int from a memoryview takes a third of the time of a numpy scalar.
        self._columns = {name: (view.offsets.data, view.values) for name, view in views.items()}
        self._longest: memoryview | None = None

    def get(self, name: str, row: int) -> NDArray[Any]:
        offsets, values = self._columns[name]
        return values[offsets[row] : offsets[row + 1]]

    def tokens(self, row: int) -> int:
        """Number of tokens of a pack."""
        offsets = self._columns["tokens"][0]
        return int(offsets[row + 1] - offsets[row])

    def fill(self, name: str, row: int, out: NDArray[Any]) -> None:
        """Copy the values of a pack to `out`, which may have another type."""
        out[:] = self.get(name, row)

    def longest_segment(self, row: int) -> int:
        """Tokens of the longest segment of a pack; the first call computes it for all packs."""
        if self._longest is None:
            offsets = self.views["cu_seqlens"].offsets
            lengths = np.diff(self.views["cu_seqlens"].flat, append=0)
            # The last boundary of a pack is followed by the 0 of the next: a negative length, so it
            # is never the longest.
            self._longest = np.maximum.reduceat(lengths, offsets[:-1] - offsets[0]).data
        return int(self._longest[row])

    def all(self, row: int) -> dict[str, NDArray[Any]]:
        return {name: self.get(name, row) for name in self._columns}


class MappedShard:
    """The packs of one Arrow stream file.

    where: its name in messages. packs: expected number of packs, if known. columns: expected
    schema, if a manifest has it. mapping: function that maps the file, if it must be fetched first.

    FormatError if the file is not a complete stream, or does not have these packs and fields.
    """

    def __init__(
        self,
        file: Path,
        where: str,
        fields: tuple[Field, ...],
        packs: int | None = None,
        columns: tuple[Column, ...] = (),
        mapping: Callable[[], pa.NativeFile] | None = None,
    ) -> None:
        self.file = file
        self._columns, self._map = columns, mapping or self._map_local
        self.where = where
        self.fields = fields
        self._packs = packs
        self.size: int | None = None  # when it was first opened, of a local file
        self._batches: list[pa.RecordBatch] | None = None
        self._starts: list[int] = []
        # For each record batch read so far, and True if every pack in it is sound.
        self._rows: dict[int, tuple[BatchRows, bool]] = {}

    def stream(self) -> pa.ipc.RecordBatchStreamReader:
        file = self._map()
        try:
            stream = pa.ipc.open_stream(file)
        except (pa.ArrowException, OSError) as error:
            raise not_a_stream(self.file, error) from None
        if self._columns:
            check_schema(stream.schema, self._columns, self.where)
        return stream

    def _map_local(self) -> pa.NativeFile:
        try:
            file = pa.memory_map(str(self.file))
        except OSError as error:
            raise not_a_stream(self.file, error) from None
        self._check_size(file.size())
        return file

    def check_size(self) -> None:
        """Raise FormatError if a local file is not as long as when it was opened."""
        if self.size is not None:
            with suppress(OSError):  # deleted: still readable if it is mapped
                self._check_size(self.file.stat().st_size)

    def _check_size(self, size: int) -> None:
        if self.size is None:
            self.size = size
        elif size != self.size:
            raise FormatError(
                f"{self.file} has {size} bytes; it had {self.size} when it was opened: leave "
                "outputs alone while they are read, and open it again"
            )

    def __len__(self) -> int:
        return sum(map(len, self._mapped)) if self._packs is None else self._packs

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches, without empty ones."""
        return iter(self._mapped)

    @property
    def _mapped(self) -> list[pa.RecordBatch]:
        """Mapped record batches. Reads their headers, not their values."""
        batches = self._batches  # a local, because another thread may release them
        if batches is None:
            stream = self.stream()
            try:
                batches = [batch for batch in stream if len(batch)]
            except (pa.ArrowException, OSError) as error:
                raise not_a_stream(self.file, error) from None
            self._check_packs(sum(map(len, batches)))
            self._starts = list(accumulate(map(len, batches), initial=0))[:-1]
            self._batches = batches
        return batches

    def _check_packs(self, packs: int) -> None:
        if self._packs not in (None, packs):
            raise FormatError(f"{self.file} holds {packs} packs; the manifest says {self._packs}")

    def release(self) -> None:
        """Close the file until it is read again; views of it stay valid."""
        self._batches, self._rows = None, {}

    def find(self, pack: int) -> tuple[BatchRows, int]:
        """The record batch of a pack, and the pack's row in it; FormatError for a bad pack."""
        batches = self._mapped
        number = bisect_right(self._starts, pack) - 1
        entry = self._rows.get(number)
        if entry is None:
            entry = self._rows[number] = self._checked(batches[number])
        return self._find_in(entry, pack, self._starts[number])

    def _checked(self, batch: pa.RecordBatch) -> tuple[BatchRows, bool]:
        """Packs of a record batch, and True if all are sound."""
        views = {field.name: self._view(batch, field) for field in self.fields}
        return BatchRows(views), _all_sound(views, self.fields)

    def _find_in(
        self, entry: tuple[BatchRows, bool], pack: int, first: int
    ) -> tuple[BatchRows, int]:
        rows, sound = entry
        row = pack - first
        if not sound:
            self._check({name: view.row(row) for name, view in rows.views.items()}, pack)
        return rows, row

    def longest(self) -> int:
        """Tokens of the longest pack, for outputs without a manifest."""
        return int(self.pack_tokens().max(initial=0))

    def pack_tokens(self) -> NDArray[np.int64]:
        """Tokens of each pack, int64 [packs], from the list offsets."""
        counts = [
            np.diff(self._view(batch, field).offsets).astype(np.int64)
            for batch in self.batches()
            for field in self.fields
            if field.name == "tokens"
        ]
        return np.concatenate([np.empty(0, np.int64), *counts])

    def _view(self, batch: pa.RecordBatch, field: Field) -> ListView:
        view = list_view(batch, field.stored, self.where)
        if field.kind == "token":
            return view
        if field.kind == "lengths":
            view = to_boundaries(view)
        return view._replace(values=view.values.astype(field.dtype, copy=False))

    def _check(self, row: dict[str, NDArray[Any]], number: int) -> None:
        where = f"{self.where} pack {number}"
        tokens, boundaries = len(row["tokens"]), len(row["cu_seqlens"])
        check_boundaries(row["cu_seqlens"], tokens, where)
        expected = {
            "token": tokens,
            "segment": boundaries - 1,
            "boundary": boundaries,
            "lengths": boundaries,
            "row": len(row.get("row_ids", ())),
        }
        for field in self.fields:
            if len(row[field.name]) != expected[field.kind]:
                raise FormatError(
                    f"{where}: {field.stored} has {len(row[field.name])} values; expected "
                    f"{expected[field.kind]}"
                )
        real = row.get("segment_lengths")
        if real is not None and ((real < 0) | (real > np.diff(row["cu_seqlens"]))).any():
            raise FormatError(
                f"{where}: a value of segment_lengths is below 0 or above the segment's length; "
                "expected the tokens of the segment without padding"
            )


class ReadShard(MappedShard):
    """The packs of a shard that is read with pread; see `MappedShard`.

    cache: keeps record batches of all shards. The file is open while one of them is kept.
    position_ids of an output are not read, because they follow from its boundaries.
    """

    def __init__(self, cache: "BatchCache", *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unread = ""
        if any(column.name == _POSITIONS for column in self._columns):
            self._unread = _POSITIONS  # those of another packer, without a manifest, may differ
            self.fields = tuple(field for field in self.fields if field.name != _POSITIONS)
        self._cache = cache
        self._file: Callable[[], SteadyFile | None] = lambda: None
        self._state: tuple[int, int] | None = None  # of the file when it was first opened
        self._index: StreamIndex | None = None
        self._schema: pa.Schema | None = None

    def _map_local(self) -> pa.NativeFile:
        return pa.BufferReader(schema_bytes(self._open()))

    def _open(self) -> SteadyFile:
        file = self._file()
        if file is None:
            file = SteadyFile(self.file, self._state)
            self._state, self._file = file.state, weakref.ref(file)
            self._check_size(file.state[0])
        return file

    def index(self) -> StreamIndex:
        """Places of the record batches; the first call reads their headers."""
        index = self._index
        if index is None:
            index = StreamIndex(self._open())
            self._check_packs(index.rows)
            self._index = index
        return index

    def __len__(self) -> int:
        return self.index().rows if self._packs is None else self._packs

    def batches(self) -> Iterator[pa.RecordBatch]:
        file = self._open()
        return (self._read(file, number)[0] for number in range(len(self.index())))

    def _read(self, file: SteadyFile, number: int, without: str = "") -> tuple[pa.RecordBatch, int]:
        if self._schema is None:
            with self.stream() as stream:
                self._schema = stream.schema
        return self.index().read(file, number, self._schema, without)

    def read(self, number: int) -> tuple["KeptBatch", int]:
        """Read a record batch for the cache; also its bytes."""
        file = self._open()
        batch, size = self._read(file, number, self._unread)
        return KeptBatch(*self._checked(batch), file), size

    def find(self, pack: int) -> tuple[BatchRows, int]:
        index = self.index()
        number = index.at(pack)
        kept = self._cache.get((self, number))
        return self._find_in((kept.rows, kept.sound), pack, index.starts[number])


class KeptBatch(NamedTuple):
    """A record batch in memory; sound: True if all packs are. file: open while this is kept."""

    rows: BatchRows
    sound: bool
    file: SteadyFile


BatchCache = ReadCache[tuple[ReadShard, int], KeptBatch]


def batch_cache(limit: int) -> BatchCache:
    """Cache of the record batches of shards, of at most `limit` bytes."""
    return ReadCache(lambda key: key[0].read(key[1]), limit)


def _all_sound(views: dict[str, ListView], fields: tuple[Field, ...]) -> bool:
    """True if every pack of a record batch passes `MappedShard._check`, in a few numpy passes."""
    lengths, entries = np.diff(views["tokens"].offsets), np.diff(views["cu_seqlens"].offsets)
    if not (lengths > 0).all() or not (entries > 1).all():
        return False
    expected = {"token": lengths, "segment": entries - 1, "boundary": entries, "lengths": entries}
    if "row_ids" in views:
        expected["row"] = np.diff(views["row_ids"].offsets)
    if any((np.diff(views[field.name].offsets) != expected[field.kind]).any() for field in fields):
        return False
    cu = views["cu_seqlens"].flat
    first = np.cumsum(entries) - entries
    if cu[first].any() or (cu[first + entries - 1] != lengths).any():
        return False
    rises = cu[1:] - cu[:-1]
    inside = np.ones(len(rises), np.bool_)
    inside[first[1:] - 1] = False  # from the end of one pack to the 0 of the next
    segments = rises[inside]
    if not (segments > 0).all():
        return False
    if "segment_lengths" not in views:
        return True
    real = views["segment_lengths"].flat
    return bool(((real >= 0) & (real <= segments)).all())


def will_need(file: Path) -> None:
    """Ask the system to read a file into memory; no effect where posix_fadvise is missing."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(file, os.O_RDONLY)
    try:
        for offset in range(0, os.fstat(handle).st_size, _READAHEAD):
            os.posix_fadvise(handle, offset, _READAHEAD, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(handle)
