"""Places of all slices of the input, computed before any text is tokenized.

With them any process can begin at any slice.

Units are cut by amounts of text, so the start of a unit depends on all rows before it. So that no
process must read everything, the processes share the measuring: one process measures the rows of
one source (8 bytes a row, in sizes/). Cutting these sizes gives exactly the slices that reading the
text would give. They are kept in places.json, with the number of units.

This costs a second reading of the input, which the processes share like the first one. For large
files of plain JSON lines the byte offsets of some rows are kept too, so that no process reads the
text before its own slices.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.execute.job import Job
from packprep.output.staging import PLACES, SIZES
from packprep.schemas.canonical import canonical_json, parse_json
from packprep.schemas.index.token_file import read_stream
from packprep.schemas.storage.writing import write_file
from packprep.sources.formats.row_plan import RowPlan
from packprep.sources.position import Extent
from packprep.sources.reading import BEGIN, RowPlace, read_rows
from packprep.sources.source import Source, check_unchanged
from packprep.sources.units import Start, clipped, cut_rows, row_bytes
from packprep.support.arrays import Int64
from packprep.tokens.store import TokenFile, file_name, rows_of_sources

_ROWS = 4096  # measured rows that are cut at once: each cut adds up the remaining ones
_MOST_TOGETHER = 64  # slices of a run, a gigabyte of text
_BEGINS = b"begins"
_BEGINS_EVERY = 64 << 20


@dataclass(frozen=True, kw_only=True)
class MeasuredSlice(Extent):
    """A slice that need not be tokenized yet.

    It begins with row `row` of source `source`.
    before: see `Start`.
    near, byte: that row or one before it in the source, and its byte offset.
    """

    before: int
    source: int
    row: int
    near: int = 0
    byte: int = 0

    @property
    def receipt(self) -> str:
        """Name of the receipt, which exists once the token file is complete."""
        return file_name(self.unit, self.slice).replace(".arrow", ".json")


@dataclass(frozen=True)
class Places:
    """All slices of the input, in order. rows: number of rows that are read of each source."""

    slices: Sequence[MeasuredSlice]
    rows: Sequence[int]

    @cached_property
    def units(self) -> int:
        return self.slices[-1].unit + 1 if self.slices else 0

    def start(self, number: int) -> Start:
        """Position at which to begin reading slice `number`."""
        place = self.slices[number]
        return Start(
            unit=place.unit,
            slice=place.slice,
            first_document=place.first_document,
            before=place.before,
            rows=[*self.rows[: place.source], place.row],
            source=place.source,
            begin=RowPlace(place.near, place.byte),
        )

    def runs(self, parts: int) -> list[tuple[int, int]]:
        """Runs of slices, one run a task: first slice and one past the last.

        There are about four runs for each of `parts`. The slices of a run begin in the same source,
        so that few tasks read a source from its beginning.
        """
        most = max(1, min(_MOST_TOGETHER, len(self.slices) // (4 * parts)))
        runs = []
        numbers = range(len(self.slices))
        for _, group in itertools.groupby(numbers, lambda number: self.slices[number].source):
            of_source = list(group)
            runs += [
                (of_source[first], of_source[min(first + most, len(of_source)) - 1] + 1)
                for first in range(0, len(of_source), most)
            ]
        return runs


def places_of(files: Sequence[TokenFile], sources: int) -> Places:
    """Places of slices that are tokenized. sources: their number."""
    return Places(
        [
            MeasuredSlice(**vars(file.extent), before=0, source=file.parts[0].source, row=0)
            for file in files
        ],
        rows_of_sources(files, sources),
    )


def is_measured(job: Job, source: int) -> bool:
    return (job.staging / SIZES / f"{source:06d}.arrow").exists()


def measure_source(job: Job, source: int, plan: RowPlan) -> None:
    """Read a source and write the amount of text of each row to its file in sizes/.

    For a large file the byte offsets of some rows are written too.
    """
    sizes: list[Int64] = []
    limits = (job.config.limit, job.sources[source].limit)
    rows_left = min((limit for limit in limits if limit is not None), default=None)
    for table in read_rows(job.sources[source], plan, job.scratch):
        sizes.append(row_bytes(table.slice(0, rows_left)))
        rows_left = None if rows_left is None else rows_left - len(sizes[-1])
        if rows_left == 0:
            break
    sink = pa.BufferOutputStream()
    table = pa.table({"size": np.concatenate(sizes)})
    if rows_left is None:
        begins = canonical_json(_begins(job.sources[source], len(table)))
        table = table.replace_schema_metadata({_BEGINS: begins})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    check_unchanged([job.sources[source]])
    (job.staging / SIZES).mkdir(exist_ok=True)
    content: Any = sink.getvalue()  # a buffer, which is written without a copy
    write_file(job.staging / SIZES / f"{source:06d}.arrow", content)


def _begins(source: Source, rows: int) -> list[tuple[int, int]]:
    """Rows at which reading may begin in a large file of plain JSON lines, with byte offsets.

    Of a file of token ids with row numbers instead. Empty for other sources.
    """
    row_begins = source.format.row_begins
    if (
        row_begins is None
        or source.compression
        or source.path is None
        or source.bytes < 2 * _BEGINS_EVERY
    ):
        return []
    begins, lines = row_begins(source, _BEGINS_EVERY)
    return begins if lines == rows else []


def find_places(job: Job) -> Places:
    """Cut the measured sizes of all sources into slices, or read places.json if it exists."""
    path = job.staging / PLACES
    try:
        loaded = parse_json(path.read_bytes())
        return Places(
            [
                MeasuredSlice(**dict(zip(loaded["keys"], place, strict=True)))
                for place in loaded["slices"]
            ],
            loaded["rows"],
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    begins: dict[int, list[list[int]]] = {}

    def measured(source: int, _: RowPlace, __: int) -> Iterator[pa.Table]:
        with pa.memory_map(str(job.staging / SIZES / f"{source:06d}.arrow")) as file:
            schema, batches = read_stream(file.read_buffer())
        table = pa.Table.from_batches(batches, schema)
        begins[source] = parse_json((table.schema.metadata or {}).get(_BEGINS, b"[]"))
        for first in range(0, len(table), _ROWS):
            yield table.slice(first, _ROWS)

    read: Counter[int] = Counter()
    slices = []
    for cut in cut_rows(clipped(job.sources, job.config.limit, measured), job.config.unit_size):
        source = cut.pieces[0][0]
        row = read[source]
        after = bisect.bisect_right(begins[source], row, key=lambda begin: begin[0])
        near, byte = begins[source][after - 1] if after else BEGIN
        slices.append(
            MeasuredSlice(
                **vars(cut.extent),
                before=cut.before,
                source=source,
                row=row,
                near=near,
                byte=byte,
            )
        )
        for number, piece in cut.pieces:
            read[number] += len(piece)
    places = Places(slices, [read[number] for number in range(len(job.sources))])
    facts = [asdict(place) for place in slices]
    content = {
        "units": places.units,
        "documents": sum(places.rows),
        "rows": places.rows,
        "keys": [*facts[0]] if facts else [],
        "slices": [list(place.values()) for place in facts],
    }
    write_file(path, canonical_json(content))
    return places
