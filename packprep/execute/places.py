"""Places of all slices of the input, known before any text is tokenized.

So any process can begin anywhere.

Units are cut by amounts of text, so where one begins depends on all rows before it. To know that
without one process reading everything, the rows of each source are measured by whoever comes first
(8 bytes a row, in sizes/), and cutting the measures gives exactly the slices that reading would:
places.json, which also says how many units there are in all.

It costs a second reading of the input, shared among the processes like the first. Of large files of
plain JSON lines it is known too at which bytes some rows begin, so that no process reads what comes
before its own.
"""

import bisect
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from packprep.execute.job import Job
from packprep.output.staging import PLACES, SIZES
from packprep.schemas.canonical import canonical_json
from packprep.schemas.storage.writing import write_file
from packprep.sources.carried import RowShape
from packprep.sources.position import Extent
from packprep.sources.reading import BEGIN, RowPlace, read_rows
from packprep.sources.source import Source
from packprep.sources.units import Start, clipped, cut_rows, row_bytes
from packprep.tokens.store import file_name

_ROWS = 4096  # measured rows cut at once: each cut adds up those that are left
_MOST_TOGETHER = 64  # slices, a gigabyte of text
_BEGINS = b"begins"
_BEGINS_EVERY = 64 << 20


@dataclass(frozen=True, kw_only=True)
class MeasuredSlice(Extent):
    """A slice that may not be made yet.

    It begins with row `row` of source `source`; before: see `Start`.

    near, byte: a row of that source not behind it, and where it begins.
    """

    before: int
    source: int
    row: int
    near: int = 0
    byte: int = 0

    @property
    def receipt(self) -> str:
        """File that is there once its token file is."""
        return file_name(self.unit, self.slice).replace(".arrow", ".json")


@dataclass(frozen=True)
class Places:
    """All slices of the input, in order. rows: read of each source."""

    slices: Sequence[MeasuredSlice]
    rows: Sequence[int]

    @cached_property
    def units(self) -> int:
        return self.slices[-1].unit + 1 if self.slices else 0

    def start(self, number: int) -> Start:
        """Place to read slice `number` from."""
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
        """Slices to be made by one task, first and one past the last.

        About four tasks for each of `parts`.

        A run begins in one source, so that none is read from its beginning more often than it must.
        """
        most = max(1, min(_MOST_TOGETHER, len(self.slices) // (4 * parts)))
        found = []
        numbers = range(len(self.slices))
        for _, run in itertools.groupby(numbers, lambda number: self.slices[number].source):
            inside = list(run)
            found += [
                (inside[at], inside[min(at + most, len(inside)) - 1] + 1)
                for at in range(0, len(inside), most)
            ]
        return found


def is_measured(job: Job, source: int) -> bool:
    return (job.staging / SIZES / f"{source:06d}.arrow").exists()


def measure_source(job: Job, source: int, shape: RowShape) -> None:
    """Read a source and keep the amount of text of each row.

    Of a large file it also keeps where some rows begin.
    """
    sizes: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    own = job.sources[source].reading.get("limit")
    left = min((limit for limit in (job.config.limit, own) if limit is not None), default=None)
    for table in read_rows(job.sources[source], job.config, job.scratch, shape):
        sizes.append(row_bytes(table.slice(0, left)))
        left = None if left is None else left - len(sizes[-1])
        if left == 0:
            break
    sink = pa.BufferOutputStream()
    table = pa.table({"size": np.concatenate(sizes)})
    if left is None:
        begins = canonical_json(_begins(job.sources[source], len(table)))
        table = table.replace_schema_metadata({_BEGINS: begins})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (job.staging / SIZES).mkdir(exist_ok=True)
    write_file(job.staging / SIZES / f"{source:06d}.arrow", sink.getvalue())


def _begins(source: Source, rows: int) -> list[tuple[int, int]]:
    """Rows and bytes of a large file of plain JSON lines where reading may begin.

    None of other sources.
    """
    row_begins = source.format.row_begins
    if (
        row_begins is None
        or source.compression
        or source.path is None
        or source.bytes < 2 * _BEGINS_EVERY
    ):
        return []
    with source.plain() as file:
        found, lines = row_begins(file, _BEGINS_EVERY)
    return found if lines == rows else []


def find_places(job: Job) -> Places:
    """Cut the measures of all sources, which are there, into slices.

    Or read what another process has found.
    """
    path = job.staging / PLACES
    try:
        loaded = json.loads(path.read_bytes())
        return Places(
            [
                MeasuredSlice(**dict(zip(loaded["keys"], place, strict=True)))
                for place in loaded["slices"]
            ],
            loaded["rows"],
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    number_of = {id(source): number for number, source in enumerate(job.sources)}
    begins: dict[int, list[list[int]]] = {}

    def measured(source: Source, _: RowPlace) -> Iterator[pa.Table]:
        with pa.memory_map(str(job.staging / SIZES / f"{number_of[id(source)]:06d}.arrow")) as file:
            table = pa.ipc.open_stream(file).read_all()
        begins[number_of[id(source)]] = json.loads(
            (table.schema.metadata or {}).get(_BEGINS, b"[]")
        )
        table = table.append_column(
            "problem", pa.nulls(len(table))
        )  # bad rows are found when they are tokenized
        for first in range(0, len(table), _ROWS):
            yield table.slice(first, _ROWS)

    read: Counter[int] = Counter()
    slices = []
    for cut in cut_rows(clipped(job.sources, job.config, measured, Start()), job.config, Start()):
        source = cut.pieces[0][0]
        row = read[source]
        behind = bisect.bisect_right(begins[source], row, key=lambda begin: begin[0])
        near, byte = begins[source][behind - 1] if behind else BEGIN
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
        for of, piece in cut.pieces:
            read[of] += len(piece)
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
