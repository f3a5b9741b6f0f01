"""One shard file, mapped or read: its record batches as views, each pack checked once.

Construction reads the schema only. The boundaries of a record batch are checked in numpy passes
when its first pack is read (under a microsecond per pack). A bad pack raises when it is read, not
before.
"""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.boundaries import check_boundaries
from packprep.schemas.columns import FILLER, HF_NAMES, STANDARD_COLUMNS, Column, check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import to_boundaries
from packprep.schemas.storage.batches import Batches
from packprep.schemas.storage.read_cache import ReadCache
from packprep.schemas.storage.steady import SteadyFile
from packprep.schemas.views import ListView, list_view

_READAHEAD = 8 << 20
_POSITIONS = "position_ids"
# Columns that mask a loss. Labels are not derived from them, because that depends on the trainer's
# options.
_MASKS = ("completion_mask", "assistant_masks", "loss_mask", "prompt_mask")


StoredKind = Literal["token", "segment", "boundary", "row", "lengths"]


class Field(NamedTuple):
    """A column of a pack, and the column of the file that stores it.

    kind `lengths`: boundaries stored as segment lengths. dtype: dtype of the pack's values. Only
    token columns of a dataset from another packer may differ from the format's dtype; they are cast
    when they are copied.
    """

    name: str
    stored: str
    kind: StoredKind
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
    kinds: dict[str, tuple[str, StoredKind]] = {
        name: (name, column.kind) for name, column in STANDARD_COLUMNS.items()
    }
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


class StoredShard:
    """The packs of one Arrow stream file.

    batches: its record batches. where: its name in messages. packs: expected number of packs, if
    known. columns: expected schema, if a manifest has it. cache: keeps record batches of all
    shards, if they are read into memory; position_ids of an output are not read then, because they
    follow from its boundaries.

    FormatError if the file is not a complete stream, or does not have these packs and fields.
    """

    def __init__(
        self,
        batches: Batches,
        where: str,
        fields: tuple[Field, ...],
        packs: int | None = None,
        columns: tuple[Column, ...] = (),
        cache: "BatchCache | None" = None,
    ) -> None:
        self.stored, self.where, self._packs = batches, where, packs
        self._columns, self._cache = columns, cache
        self._unread = ""
        if cache is not None and any(column.name == _POSITIONS for column in columns):
            self._unread = _POSITIONS  # those of another packer, without a manifest, may differ
        self.fields = tuple(field for field in fields if field.name != self._unread)
        self._starts: list[int] | None = None
        # For each record batch read so far, if no cache keeps them.
        self._rows: dict[int, KeptBatch] = {}

    @property
    def file(self) -> Path:
        return self.stored.path

    def check_schema(self) -> None:
        """Raise FormatError if the file does not have the columns of the manifest."""
        if self._columns:
            check_schema(self.stored.schema(), self._columns, self.where)

    def starts(self) -> list[int]:
        """Number of the first pack of each record batch, and last that of all packs."""
        starts = self._starts
        if starts is None:
            self.check_schema()
            starts = self.stored.starts()
            if self._packs not in (None, starts[-1]):
                raise FormatError(
                    f"{self.file} holds {starts[-1]} packs; the manifest says {self._packs}"
                )
            self._starts = starts
        return starts

    def __len__(self) -> int:
        return self.starts()[-1] if self._packs is None else self._packs

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches, without empty ones."""
        return (self.stored.read(number).batch for number in range(len(self.starts()) - 1))

    def release(self) -> None:
        """Close the file until it is read again; views of it stay valid."""
        self._starts, self._rows = None, {}
        self.stored.release()

    def find(self, pack: int) -> tuple[BatchRows, int]:
        """The record batch of a pack, and the pack's row in it; FormatError for a bad pack."""
        starts = self._starts or self.starts()
        number = bisect_right(starts, pack) - 1
        kept = self._rows.get(number)
        if kept is None:
            kept = self._kept(number)
        row = pack - starts[number]
        if not kept.sound:
            self._check({name: view.row(row) for name, view in kept.rows.views.items()}, pack)
        return kept.rows, row

    def _kept(self, number: int) -> "KeptBatch":
        if self._cache is not None:
            return self._cache.get((self, number))
        kept = self._rows[number] = self.read(number)[0]
        return kept

    def read(self, number: int) -> tuple["KeptBatch", int]:
        """Read a record batch; also its bytes in memory."""
        batch, size, file = self.stored.read(number, self._unread)
        return KeptBatch(*self._checked(batch), file), size

    def _checked(self, batch: pa.RecordBatch) -> tuple[BatchRows, bool]:
        """Packs of a record batch, and True if all are sound."""
        views = {field.name: self._view(batch, field) for field in self.fields}
        return BatchRows(views), _all_sound(views, self.fields)

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

    def pack_sequences(self) -> NDArray[np.int64]:
        """Segments of each pack that are not filler, int64 [packs]; of trees its rows."""
        fields = {field.name: field for field in self.fields}
        name = next(each for each in ("row_ids", "document_ids", "cu_seqlens") if each in fields)
        views = [self._view(batch, fields[name]) for batch in self.batches()]
        return np.concatenate([np.empty(0, np.int64), *(_sequences(view, name) for view in views)])

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


class KeptBatch(NamedTuple):
    """A record batch in memory; sound: True if all packs are. file: open while this is kept."""

    rows: BatchRows
    sound: bool
    file: SteadyFile | None


BatchCache = ReadCache[tuple[StoredShard, int], KeptBatch]


def batch_cache(limit: int) -> BatchCache:
    """Cache of the record batches of shards, of at most `limit` bytes."""
    return ReadCache(lambda key: key[0].read(key[1]), limit)


def _all_sound(views: dict[str, ListView], fields: tuple[Field, ...]) -> bool:
    """True if every pack of a record batch passes `StoredShard._check`, in a few numpy passes."""
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


def _sequences(view: ListView, name: str) -> NDArray[np.int64]:
    """Number of values of each list; of documents those that are not filler, of boundaries - 1."""
    if name != "document_ids":
        return np.diff(view.offsets).astype(np.int64) - (name == "cu_seqlens")
    return real_values(view)


def real_values(view: ListView) -> NDArray[np.int64]:
    """Number of values of each list that are not FILLER, int64 [lists]; no list is empty."""
    starts = view.offsets[:-1] - view.offsets[0]
    return np.add.reduceat(view.flat != FILLER, starts, dtype=np.int64)


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
