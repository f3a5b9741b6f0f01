"""One shard file, mapped: its record batches as views.

Every pack is checked once, a record batch at a time.

Nothing is read at construction but the schema. The boundaries of a record batch are checked in
numpy passes when its first pack is asked for (under a microsecond per pack); a pack that fails
raises when it is read, not before.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.boundaries import check_boundaries
from packprep.schemas.columns import Column, check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.views import ListView, list_view

_READAHEAD = 8 << 20


class Field(NamedTuple):
    """A column as packs have it, and as the file has it.

    kind `lengths`: boundaries stored as segment lengths. dtype: of the pack's values; only token
    columns of a dataset that others wrote may have another than the format's, and are cast as they
    are copied.
    """

    name: str
    stored: str
    kind: Literal["token", "segment", "boundary", "lengths"]
    dtype: str


class BatchRows:
    """The packs of one record batch by column: `rows.get("tokens", 3)` is a view of pack 3's."""

    def __init__(self, views: dict[str, ListView]) -> None:
        self.views = views
        # An element of a memoryview is a Python int, in a third of the time of a numpy scalar.
        self._columns = {name: (view.offsets.data, view.values) for name, view in views.items()}
        self._longest: memoryview | None = None

    def get(self, name: str, row: int) -> NDArray[Any]:
        offsets, values = self._columns[name]
        return values[offsets[row] : offsets[row + 1]]

    def longest_segment(self, row: int) -> int:
        """Tokens of the longest segment of a pack; of all packs at once when first asked."""
        if self._longest is None:
            offsets = self.views["cu_seqlens"].offsets
            lengths = np.diff(_flat(self.views["cu_seqlens"]), append=0)
            # What follows a pack's last boundary is the next pack's 0: a negative length, never the
            # longest.
            self._longest = np.maximum.reduceat(lengths, offsets[:-1] - offsets[0]).data
        return int(self._longest[row])

    def all(self, row: int) -> dict[str, NDArray[Any]]:
        return {name: self.get(name, row) for name in self._columns}


class MappedShard:
    """The packs of one Arrow stream file.

    where: its name in messages. packs: how many it must hold, if that is known.

    columns: what its schema must be, where a manifest says it. mapping: maps it, where it must be
    brought here first.

    FormatError if the file is not a whole stream, or does not hold these packs and fields.
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
        self._batches: list[pa.RecordBatch] | None = None
        self._starts: list[int] = []
        self._rows: dict[
            int, tuple[BatchRows, bool]
        ] = {}  # of a record batch, and whether every pack in it is sound

    def stream(self) -> pa.ipc.RecordBatchStreamReader:
        file = self._map()
        try:
            stream = pa.ipc.open_stream(file)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None
        if self._columns:
            check_schema(stream.schema, self._columns, self.where)
        return stream

    def _map_local(self) -> pa.NativeFile:
        try:
            return pa.memory_map(str(self.file))
        except OSError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(
            f"{self.file} is not a whole Arrow stream: {error}; restore the file or build again"
        )

    def __len__(self) -> int:
        return sum(map(len, self.batches)) if self._packs is None else self._packs

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """Record batches that have a pack, mapped. Touches their headers, not their values."""
        batches = self._batches  # another thread may release them meanwhile
        if batches is None:
            stream = self.stream()
            try:
                batches = [batch for batch in stream if len(batch)]
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(error) from None
            packs = sum(map(len, batches))
            if self._packs not in (None, packs):
                raise FormatError(
                    f"{self.file} holds {packs} packs; the manifest says {self._packs}"
                )
            self._starts = list(accumulate(map(len, batches), initial=0))[:-1]
            self._batches = batches
        return batches

    def release(self) -> None:
        """Open the file anew when it is next read; views of it stay valid."""
        self._batches, self._rows = None, {}

    def find(self, pack: int) -> tuple[BatchRows, int]:
        """The record batch that holds a pack, and the pack's row in it.

        FormatError if the pack is bad.
        """
        batches = self.batches
        number = bisect_right(self._starts, pack) - 1
        found = self._rows.get(number)
        if found is None:
            views = {field.name: self._view(batches[number], field) for field in self.fields}
            found = self._rows[number] = BatchRows(views), _all_sound(views, self.fields)
        rows, sound = found
        row = pack - self._starts[number]
        if not sound:
            self._check({name: view.row(row) for name, view in rows.views.items()}, pack)
        return rows, row

    def longest(self) -> int:
        """Tokens of the longest pack: a pass over the list offsets, where no manifest says it."""
        views = (
            self._view(batch, field)
            for batch in self.batches
            for field in self.fields
            if field.name == "tokens"
        )
        return max((int(np.diff(view.offsets).max()) for view in views), default=0)

    def _view(self, batch: pa.RecordBatch, field: Field) -> ListView:
        view = list_view(batch, field.stored, self.where)
        if field.kind == "token":
            return view
        if field.kind != "lengths":
            return view._replace(values=view.values.astype(field.dtype, copy=False))
        # [3, 5] -> [0, 3, 8], for every pack at once: running sums over the batch, less the sum
        # before each pack.
        lengths = view.values[view.offsets[0] : view.offsets[-1]].astype(np.int64)
        offsets = view.offsets.astype(np.int64) - int(view.offsets[0])
        sums = np.concatenate([[0], np.cumsum(lengths)])
        entries = np.diff(offsets) + 1
        flat = np.arange(int(entries.sum())) - np.repeat(np.arange(len(entries)), entries)
        boundaries = sums[flat] - np.repeat(sums[offsets[:-1]], entries)
        return ListView(
            (offsets + np.arange(len(offsets))).astype(np.int32), boundaries.astype(np.int32)
        )

    def _check(self, row: dict[str, NDArray[Any]], number: int) -> None:
        where = f"{self.where} pack {number}"
        tokens, boundaries = len(row["tokens"]), len(row["cu_seqlens"])
        check_boundaries(row["cu_seqlens"], tokens, where)
        expected = {
            "token": tokens,
            "segment": boundaries - 1,
            "boundary": boundaries,
            "lengths": boundaries,
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
                f"{where}: a segment is shorter than the tokens that segment_lengths gives it, or "
                "they are < 0"
            )


def _all_sound(views: dict[str, ListView], fields: tuple[Field, ...]) -> bool:
    """True if every pack of a record batch holds what `MappedShard._check` checks.

    A few passes, no loop.
    """
    lengths, entries = np.diff(views["tokens"].offsets), np.diff(views["cu_seqlens"].offsets)
    if not (lengths > 0).all() or not (entries > 1).all():
        return False
    expected = {"token": lengths, "segment": entries - 1, "boundary": entries, "lengths": entries}
    if any((np.diff(views[field.name].offsets) != expected[field.kind]).any() for field in fields):
        return False
    cu = _flat(views["cu_seqlens"])
    first = np.cumsum(entries) - entries
    if cu[first].any() or (cu[first + entries - 1] != lengths).any():
        return False
    rises = cu[1:] - cu[:-1]
    inside = np.ones(len(rises), np.bool_)
    inside[first[1:] - 1] = False  # from the end of one pack to the 0 of the next
    own = _flat(views["segment_lengths"]) if "segment_lengths" in views else None
    room = rises[inside]
    return bool((room > 0).all() and (own is None or ((own >= 0) & (own <= room)).all()))


def _flat(view: ListView) -> NDArray[Any]:
    return view.values[view.offsets[0] : view.offsets[-1]]


def will_need(file: Path) -> None:
    """Ask the system to read a file into memory; nothing where it cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(file, os.O_RDONLY)
    try:
        for offset in range(0, os.fstat(handle).st_size, _READAHEAD):
            os.posix_fadvise(handle, offset, _READAHEAD, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(handle)
