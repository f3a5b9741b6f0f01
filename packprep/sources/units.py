"""The input cut into units: runs of documents with a fixed amount of text.

Their size never depends on the number of workers.

Units are shuffled. A unit is read and tokenized in slices, so that work starts before the unit is
read to its end, and so that slices reuse memory. Documents are numbered over the whole input,
including rows without usable text, so a number always names its row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.config.grammar.known_columns import UNREAD
from packprep.config.stages import Reading
from packprep.sources.formats.row_plan import RowPlan
from packprep.sources.position import Extent, Position
from packprep.sources.reading import BEGIN, RowPlace, read_rows
from packprep.sources.source import Source
from packprep.support.errors import InputError
from packprep.support.problems import problem_at, reasons_in

# Text of a slice. 64 MB took a sixth more time, mostly to get new memory from the system. 16 MB
# take as long as 8 and leave larger holes in freed memory. Much smaller slices would be too many
# token files: each is mapped, and a system allows 65,530 mappings.
SLICE_BYTES = 8_000_000


@dataclass(frozen=True)
class Part:
    """Rows of a slice that come from one source.

    skipped: rows without usable text, by reason. unread: "column NAME" and "key NAME", which
    nothing reads, each with the rows or messages where it was seen.
    """

    source: int
    rows: int
    skipped: dict[str, int]
    unread: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Slice(Extent):
    """A run of documents tokenized by one task.

    table: the columns of reading.py without `problem`, [documents]; a skipped row has null text or
    no ids.
    first_rows: of each part, its first row in its source.
    """

    table: pa.Table
    parts: tuple[Part, ...]
    first_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.documents == len(self.table)


@dataclass(frozen=True, kw_only=True)
class Start(Position):
    """The slice that reading begins with.

    before: bytes of text in earlier slices of its unit.
    rows: of each source, already read.
    source: the first one to open; all rows of earlier sources are read.
    begin: a row of that source, and its byte, at which reading may begin: at most the next row.
    """

    before: int = 0
    rows: Sequence[int] = ()
    source: int = 0
    begin: RowPlace = BEGIN


FRONT = Start()  # of all sources


def read_slices(
    sources: Sequence[Source],
    plans: Sequence[RowPlan],
    reading: Reading,
    scratch: Path,
    start: Start = FRONT,
) -> Generator[Slice]:
    """The slices of the input in order, from `start` on.

    A unit ends with the document that reaches `unit_size` bytes of text, a slice with the one that
    reaches SLICE_BYTES. The first bad row is an error, unless bad rows are skipped.

    plans: of the sources.
    """
    read = Counter(dict(enumerate(start.rows)))  # rows of each source
    rows = clipped(
        sources,
        reading.limit,
        lambda number, begin, row: read_rows(sources[number], plans[number], scratch, begin, row),
        start,
        stops=any(plan.on_error == "stop" for plan in plans),
    )
    for cut in cut_rows(rows, reading.unit_size, start):
        yield _slice(cut, read)


@dataclass(frozen=True, kw_only=True)
class SlicePieces(Extent):
    """A slice as cut from the input.

    pieces: its tables, each with the number of its source.
    before: see `Start`.
    """

    before: int
    pieces: Sequence[tuple[int, pa.Table]]


def cut_rows(
    rows: Iterable[tuple[int, pa.Table]], unit_size: int, start: Start = FRONT
) -> Iterator[SlicePieces]:
    """Slices of tables of rows, see `read_slices`."""
    pending: list[tuple[int, pa.Table]] = []
    unit, number, first = start.unit, start.slice, start.first_document
    size, before = 0, start.before  # text of this slice, and of the slices of its unit before it

    def cut() -> SlicePieces:
        return SlicePieces(
            unit=unit,
            slice=number,
            first_document=first,
            documents=sum(len(piece) for _, piece in pending),
            text_bytes=size,
            before=before,
            pieces=pending,
        )

    for source, table in rows:
        while len(table):
            room = min(unit_size - before, SLICE_BYTES) - size
            taken, added = _fill(table, room)
            pending.append((source, table.slice(0, taken)))
            table = table.slice(taken)
            size += added
            if added >= room:
                yield (made := cut())
                first = made.end
                before, number = before + size, number + 1
                if before >= unit_size:
                    unit, number, before = unit + 1, 0, 0
                size, pending = 0, []
    if pending:
        yield cut()


def clipped(
    sources: Sequence[Source],
    limit: int | None,
    read: Callable[[int, RowPlace, int], Iterator[pa.Table]],
    start: Start = FRONT,
    *,
    stops: bool = False,
) -> Iterator[tuple[int, pa.Table]]:
    """Tables of rows, each with the number of its source, up to `limit`.

    An entry of `sources` may have its own limit, over all its files.
    read: reads the rows of a source, by its number, from a row on; its place is one at which
    reading may begin, at most that row. stops: the first row with a `problem` is an error.
    """
    done = start.rows
    left = None if limit is None else limit - sum(done)
    left_of_entry: dict[int, int] = {}
    for number, source in enumerate(sources):
        if (entry_limit := source.limit) is not None:
            before = done[number] if number < len(done) else 0
            left_of_entry[source.entry] = left_of_entry.get(source.entry, entry_limit) - before
    if left == 0:
        return
    for number, source in enumerate(sources[start.source :], start.source):
        begin = start.begin if number == start.source else BEGIN
        row = max(begin.row, done[number] if number < len(done) else 0)
        if left_of_entry.get(source.entry) == 0:
            continue
        for table in read(number, begin, row):
            if (entry_left := left_of_entry.get(source.entry)) is not None:
                table = table.slice(0, entry_left)
                left_of_entry[source.entry] = entry_left - len(table)
            if left is not None:
                table = table.slice(0, left)
                left -= len(table)
            if stops and table["problem"].null_count < len(table):
                _stop_at_problem(source, table, row)
            yield number, table
            row += len(table)
            if left == 0:
                return
            if left_of_entry.get(source.entry) == 0:
                break


def _stop_at_problem(source: Source, table: pa.Table, first_row: int) -> None:
    place = pc.index(pc.is_valid(table["problem"]), True).as_py()
    raise bad_row(source, first_row + place, problem_at(table["problem"], place).detail)


def bad_row(source: Source, row: int, detail: str) -> InputError:
    """The error about a row that cannot be used, or about its source if that has changed."""
    if (changed := source.changed()) is not None:
        return changed
    line = source.line_of_row(row)
    place = f"{source.name} row {row}" + (f" (line {line})" if line else "")
    return InputError(f"{place}: {detail}; fix it, or skip such rows with --on-error skip")


def _fill(table: pa.Table, room: int) -> tuple[int, int]:
    """Number of rows that reach `room` bytes of text, and their bytes; all rows if they do not."""
    ends = np.cumsum(row_bytes(table))
    taken = int(np.searchsorted(ends, room)) + 1
    return (taken, int(ends[taken - 1])) if taken <= len(ends) else (len(ends), int(ends[-1]))


def row_bytes(table: pa.Table) -> NDArray[np.int64]:
    """Size of each row as units and windows count it, int64 [documents].

    Taken from the column `size` where the table has one.
    """
    if "size" in table.column_names:
        sizes: NDArray[np.int64] = table["size"].to_numpy()
        return sizes
    if "ids" in table.column_names:
        size = id_bytes(table["ids"])
        return size + id_bytes(table["second_ids"]) if "second_ids" in table.column_names else size
    size = np.zeros(len(table), np.int64)
    for names, measure in (
        (("text", "second"), text_bytes),
        (("parts", "second_parts"), part_bytes),
    ):
        for name in {*names} & {*table.column_names}:
            size += measure(table[name])
    return size


def text_bytes(text: pa.ChunkedArray[Any]) -> NDArray[np.int64]:
    """UTF-8 bytes of each document, int64 [documents]; 0 for null."""
    lengths: NDArray[np.int64] = pc.fill_null(pc.binary_length(text), 0).to_numpy().astype(np.int64)
    return lengths


def id_bytes(ids: pa.ChunkedArray[Any]) -> NDArray[np.int64]:
    """Size of documents that are token ids: four bytes for each id, int64 [documents]."""
    lengths: NDArray[np.int64] = 4 * pc.list_value_length(ids).to_numpy().astype(np.int64)
    return lengths


def part_bytes(parts: pa.ChunkedArray[Any]) -> NDArray[np.int64]:
    """Size of the token ids among the parts of each document, int64 [documents]."""
    lists: Any = parts.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ids = pc.struct_field(lists.flatten(), "ids")
    sizes = 4 * pc.fill_null(pc.list_value_length(ids), 0).to_numpy().astype(np.int64)
    ends = np.append(0, np.cumsum(sizes))
    lengths: NDArray[np.int64] = np.diff(ends[np.append(0, np.cumsum(counts))])
    return lengths


def _slice(cut: SlicePieces, read: Counter[int]) -> Slice:
    """Make the slice. read: rows of each source so far; those of this slice are added."""
    rows: Counter[int] = Counter()
    skipped: dict[int, Counter[str]] = {}
    unread: dict[int, Counter[str]] = {}
    for source, table in cut.pieces:
        if not read[source] and not rows[source]:  # the part that begins the source names them
            columns = json.loads((table.schema.metadata or {}).get(UNREAD.encode(), b"[]"))
            unread[source] = Counter(f"column {name}" for name in columns)
        rows[source] += len(table)
        skipped.setdefault(source, Counter()).update(reasons_in(table["problem"]))
        if UNREAD in table.column_names:
            values = map(str, pc.list_flatten(table[UNREAD]).to_pylist())
            unread.setdefault(source, Counter()).update(values)
    parts = tuple(
        Part(
            source,
            count,
            dict(sorted(skipped[source].items())),
            dict(sorted(unread.get(source, {}).items())),
        )
        for source, count in sorted(rows.items())
    )
    dropped = {"problem", UNREAD}
    table = pa.concat_tables(
        [
            table.drop_columns([*dropped & {*table.column_names}]).replace_schema_metadata()
            for _, table in cut.pieces
        ]
    )
    first_rows = tuple(read[part.source] for part in parts)
    read.update({part.source: part.rows for part in parts})
    return Slice(**vars(cut.extent), table=table, parts=parts, first_rows=first_rows)


def ranges(sizes: NDArray[np.int64], limit: int, *, at_most: bool = False) -> list[tuple[int, int]]:
    """Ranges (first, last) of neighbouring items whose sizes reach `limit`.

    at_most: ranges that do not exceed `limit`, unless a single item does.
    """
    ends = np.cumsum(sizes)
    cuts, first = [], 0
    while first < len(ends):
        goal = limit + (int(ends[first - 1]) if first else 0)
        last = int(np.searchsorted(ends, goal, side="right" if at_most else "left")) + (not at_most)
        last = min(max(last, first + 1), len(ends))
        cuts.append((first, last))
        first = last
    return cuts
