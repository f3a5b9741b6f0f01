"""The input cut into units.

Runs of documents of a fixed amount of text, never of a number that workers decide.

A unit is what is shuffled. It is read and tokenized in slices, so that work starts before a unit is
read to its end and the memory of one slice serves the next. Documents are numbered over the whole
input, rows without usable text included, so a number always names its row.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.sources.carried import RowShape
from packprep.sources.position import Extent, Position
from packprep.sources.reading import BEGIN, TEXT_ROWS, RowPlace, read_rows
from packprep.sources.source import Source
from packprep.support.errors import InputError
from packprep.support.problems import problem_at, reasons_in

# Text of a slice: 64 MB at once took a sixth more time, most of it to get fresh memory from the
# system. 16 MB take as long as 8 and leave larger holes in freed memory; each file of tokens is a
# mapping, of which a system allows 65,530.
SLICE_BYTES = 8_000_000


@dataclass(frozen=True)
class Part:
    """Rows of a slice that come from one source. skipped: rows without usable text, by reason."""

    source: int
    rows: int
    skipped: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Slice(Extent):
    """A run of documents tokenized by one task.

    table: the columns of reading.py without `problem`, [documents]; null text or no ids where the
    row was skipped. first_rows: of each part, the row of its source that it begins with.
    """

    table: pa.Table
    parts: tuple[Part, ...]
    first_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.documents == len(self.table)


@dataclass(frozen=True, kw_only=True)
class Start(Position):
    """The slice that reading begins with.

    before: bytes of text in the slices of its unit before it. rows: of each source, read before.
    source: the first that is opened: all rows of those before it are read.
    begin: a row of it that reading may begin with, not behind the next one, and its byte.
    """

    before: int = 0
    rows: Sequence[int] = ()
    source: int = 0
    begin: RowPlace = BEGIN


def read_slices(
    sources: Sequence[Source],
    config: BuildConfig,
    scratch: Path,
    start: Start | None = None,
    shape: RowShape = TEXT_ROWS,
) -> Generator[Slice]:
    """The slices of the input in order, from `start` on.

    A unit ends with the document that reaches `unit_size` bytes of text, a slice with the one that
    reaches SLICE_BYTES.
    """
    start = start or Start()
    read = Counter(dict(enumerate(start.rows)))  # rows of each source
    rows = clipped(
        sources,
        config,
        lambda source, begin: read_rows(source, config, scratch, shape, begin),
        start,
    )
    for cut in cut_rows(rows, config, start):
        yield _slice(cut, read)


@dataclass(frozen=True, kw_only=True)
class SlicePieces(Extent):
    """A slice as it is cut out of the input.

    pieces: its tables, each with the number of its source. before: see `Start`.
    """

    before: int
    pieces: Sequence[tuple[int, pa.Table]]


def cut_rows(
    rows: Iterable[tuple[int, pa.Table]], config: BuildConfig, start: Start
) -> Iterator[SlicePieces]:
    """The slices that tables of rows make, see `read_slices`."""
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
            room = min(config.unit_size - before, SLICE_BYTES) - size
            taken, added = _fill(table, room)
            pending.append((source, table.slice(0, taken)))
            table = table.slice(taken)
            size += added
            if added >= room:
                yield (made := cut())
                first = made.end
                before, number = before + size, number + 1
                if before >= config.unit_size:
                    unit, number, before = unit + 1, 0, 0
                size, pending = 0, []
    if pending:
        yield cut()


def clipped(
    sources: Sequence[Source],
    config: BuildConfig,
    read: Callable[[Source, RowPlace], Iterator[pa.Table]],
    start: Start,
) -> Iterator[tuple[int, pa.Table]]:
    """Tables of rows with the number of their source, up to `limit`.

    The first bad row stops unless skipped.

    An entry of `sources` may have a limit of its own, over all its files.
    read: gives the rows of a source from a place on, tables with a column `problem`.
    """
    done = start.rows
    left = None if config.limit is None else config.limit - sum(done)
    of_entry: dict[int, int] = {}
    for number, source in enumerate(sources):
        if (own := source.reading.get("limit")) is not None:
            before = done[number] if number < len(done) else 0
            of_entry[source.entry] = of_entry.get(source.entry, own) - before
    if left == 0:
        return
    for number, source in enumerate(sources[start.source :], start.source):
        begin = start.begin if number == start.source else BEGIN
        row, skip = begin.row, done[number] if number < len(done) else 0
        if of_entry.get(source.entry) == 0:
            continue
        for table in read(source, begin):
            if row < skip:
                row += len(table)
                if row <= skip:
                    continue
                table = table.slice(len(table) - (row - skip))
                row = skip
            if (own := of_entry.get(source.entry)) is not None:
                table = table.slice(0, own)
                of_entry[source.entry] = own - len(table)
            if left is not None:
                table = table.slice(0, left)
                left -= len(table)
            if config.on_error == "stop" and table["problem"].null_count < len(table):
                _stop_at_problem(source, table, row)
            yield number, table
            row += len(table)
            if left == 0:
                return
            if of_entry.get(source.entry) == 0:
                break


def _stop_at_problem(source: Source, table: pa.Table, first_row: int) -> None:
    at = pc.index(pc.is_valid(table["problem"]), True).as_py()
    raise bad_row(source, first_row + at, problem_at(table["problem"], at).detail)


def bad_row(source: Source, row: int, detail: str) -> InputError:
    """The error about a row that cannot be used."""
    line = source.line_of_row(row)
    place = f"{source.name} row {row}" + (f" (line {line})" if line else "")
    return InputError(f"{place}: {detail}; fix it, or skip such rows with --on-error skip")


def _fill(table: pa.Table, room: int) -> tuple[int, int]:
    """Number of rows that reach `room` bytes of text, and their bytes.

    All of them if they don't.
    """
    ends = np.cumsum(row_bytes(table))
    taken = int(np.searchsorted(ends, room)) + 1
    return (taken, int(ends[taken - 1])) if taken <= len(ends) else (len(ends), int(ends[-1]))


def row_bytes(table: pa.Table) -> NDArray[np.int64]:
    """Size of each row as units and windows count it, int64 [documents].

    A table may hold it as a column `size`.
    """
    if "size" in table.column_names:
        sizes: NDArray[np.int64] = table["size"].to_numpy()
        return sizes
    if "ids" in table.column_names:
        return id_bytes(table["ids"])
    size = text_bytes(table["text"])
    return size + text_bytes(table["second"]) if "second" in table.column_names else size


def text_bytes(text: pa.ChunkedArray) -> NDArray[np.int64]:
    """UTF-8 bytes of each document, int64 [documents]; 0 for null."""
    lengths: NDArray[np.int64] = pc.fill_null(pc.binary_length(text), 0).to_numpy().astype(np.int64)
    return lengths


def id_bytes(ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Four bytes for each id of each document, int64 [documents].

    What units and windows count in place of text.
    """
    lengths: NDArray[np.int64] = 4 * pc.list_value_length(ids).to_numpy().astype(np.int64)
    return lengths


def _slice(cut: SlicePieces, read: Counter[int]) -> Slice:
    """read: rows of each source that came before; those of this slice are added."""
    rows: Counter[int] = Counter()
    skipped: dict[int, Counter[str]] = {}
    for source, table in cut.pieces:
        rows[source] += len(table)
        skipped.setdefault(source, Counter()).update(reasons_in(table["problem"]))
    parts = tuple(
        Part(source, count, dict(sorted(skipped[source].items())))
        for source, count in sorted(rows.items())
    )
    # One text type for all formats: some readers give 64-bit offsets.
    tables = [table.drop_columns(["problem"]) for _, table in cut.pieces]
    schema = pa.schema(
        [
            (
                field.name,
                pa.large_string() if field.name in ("text", "second", "group") else field.type,
            )
            for field in tables[0].schema
        ]
    )
    table = pa.concat_tables([table.cast(schema) for table in tables])
    first_rows = tuple(read[part.source] for part in parts)
    read.update({part.source: part.rows for part in parts})
    return Slice(**vars(cut.extent), table=table, parts=parts, first_rows=first_rows)


def ranges(sizes: NDArray[np.int64], limit: int, *, at_most: bool = False) -> list[tuple[int, int]]:
    """Neighbouring items cut into ranges that reach `limit`.

    Or that stay within it where one item does.
    """
    ends = np.cumsum(sizes)
    found, first = [], 0
    while first < len(ends):
        goal = limit + (int(ends[first - 1]) if first else 0)
        last = int(np.searchsorted(ends, goal, side="right" if at_most else "left")) + (not at_most)
        last = min(max(last, first + 1), len(ends))
        found.append((first, last))
        first = last
    return found
