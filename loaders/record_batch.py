"""The packs of one record batch, of shards or of a plan, checked when they are read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Bools
from ..schemas.columns import Column
from ..schemas.files import FormatError
from ..schemas.gather import TablePacks
from ..schemas.manifest import Manifest
from ..schemas.views import ListView, list_view


class Rows:
    """The packs of one record batch: `rows.get("tokens", 3)` is a view of the tokens of pack 3."""

    def __init__(self, views: Mapping[str, ListView]) -> None:
        # Reading a Python int from a memoryview takes a third of the time of a numpy scalar.
        self._columns = {name: (view.offsets.data, view.values) for name, view in views.items()}
        self._bounds, self._ends = views["tokens"].offsets.data, views["cu_seqlens"]
        self._longest = list[int]()

    def get(self, name: str, row: int) -> NDArray[Any]:
        """The values of a column of a pack."""
        offsets, values = self._columns[name]
        return values[offsets[row] : offsets[row + 1]]

    def parts(self, row: int) -> list[NDArray[Any]]:
        """The tokens of a pack in parts, which may be views of the token files."""
        return [self.get("tokens", row)]

    def tokens(self, row: int) -> int:
        """Number of tokens of a pack."""
        return int(self._bounds[row + 1] - self._bounds[row])

    def longest(self, row: int) -> int:
        """Tokens of the longest segment of a pack; the first call computes it for all packs."""
        if not self._longest:
            # The last boundary of a pack is followed by the 0 of the next: a negative length.
            lengths, offsets = np.diff(self._ends.flat, append=0), self._ends.offsets
            self._longest = np.maximum.reduceat(lengths, offsets[:-1] - offsets[0]).tolist()
        return self._longest[row]


class PlanRows(Rows):
    """The packs of one record batch of a plan: a column is made when it is first read.

    Tokens that packs have as they are in the token files stay there.
    """

    def __init__(self, packs: TablePacks) -> None:
        columns = {column.standard: column for column in packs.layout.columns}
        runs, offsets = packs.runs(columns["tokens"]), packs.offsets(columns["tokens"])
        memory, begins = runs.values.spanned(runs.count)
        self._begins, self._ends_of_runs = begins.data, (begins + runs.count).data
        self._segments = packs.table.offsets.data
        self._memory = memory if np.array_equal(runs.count, packs.length) else None
        views = {"tokens": ListView(offsets, memory)}
        super().__init__(views | {"cu_seqlens": packs.view(columns["cu_seqlens"])})
        self._columns = _Made(packs, columns)

    def parts(self, row: int) -> list[NDArray[Any]]:
        if self._memory is None:
            return super().parts(row)
        here = slice(self._segments[row], self._segments[row + 1])
        runs = zip(self._begins[here], self._ends_of_runs[here], strict=True)
        return [self._memory[begin:end] for begin, end in runs]


class _Made(dict[str, tuple[memoryview, NDArray[Any]]]):
    """Columns of packs, which are kept once they are made."""

    def __init__(self, packs: TablePacks, columns: Mapping[str, Column]) -> None:
        self._packs, self._of = packs, columns

    def __missing__(self, name: str) -> tuple[memoryview, NDArray[Any]]:
        view = self._packs.view(self._of[name])
        self[name] = made = view.offsets.data, view.values
        return made


def columns_of(manifest: Manifest) -> dict[str, Column]:
    """Columns of the packs by standard name: boundaries, where the files have lengths."""
    columns = {**manifest.columns}
    if lengths := columns.pop("seq_lengths", None):
        columns["cu_seqlens"] = replace(lengths, kind="boundary", makes="cu_seqlens")
    return columns


def stored_rows(
    batch: pa.RecordBatch, columns: Mapping[str, Column], max_length: int, where: str, first: int
) -> Rows:
    """The packs of a record batch of shards. first: number of the first one in its shard.

    Raises FormatError unless all lists of each pack fit one another.
    """
    views = {name: list_view(batch, each.name, where) for name, each in columns.items()}
    if columns["cu_seqlens"].name == "seq_lengths":
        views["cu_seqlens"] = _boundaries(views["cu_seqlens"])
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
    return Rows(views)


def _boundaries(of_lengths: ListView) -> ListView:
    """The boundaries of segments with these lengths."""
    counts, lengths = np.diff(of_lengths.offsets), of_lengths.flat
    ends = np.cumsum(lengths, dtype=np.int64)
    before = np.append(0, ends)[of_lengths.places[:-1]]
    values = np.zeros(len(lengths) + len(counts), np.int32)
    pack = np.repeat(np.arange(len(counts)), counts)
    values[np.arange(len(lengths)) + pack + 1] = ends - np.repeat(before, counts)
    offsets = of_lengths.places + np.arange(len(of_lengths.offsets))
    return ListView(offsets.astype(np.int32), values)
