"""Rows of an Arrow file, stream or file format.

The Arrow builder of `datasets` stops at the first text that is not UTF-8, with its place in a
record batch and no file. Here only the asked columns are looked at, what text is not UTF-8 is found
row by row (`arrow_columns.text_column`), and offsets that leave the file, which crash whatever
follows them, are an error before anything does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from packprep.sources.formats.arrow_columns import sound
from packprep.sources.formats.format import ROWS_PER_TABLE, Format, Input, LocalPath, Wanted
from packprep.support.problems import READER_PROBLEM, no_problems


def _tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    """Tables of those of the wanted columns that there are, as they are."""
    with _opened(str(path)) as (schema, batches):
        places = [schema.names.index(name) for name in wanted.plan.columns if name in schema.names]
        for batch in batches:
            columns = [sound(batch.column(place)) for place in places]
            names = [*(schema.names[place] for place in places), READER_PROBLEM]
            table = pa.table([*columns, no_problems(len(batch))], names=names)
            for first in range(0, len(table), ROWS_PER_TABLE):
                yield table.slice(first, ROWS_PER_TABLE)


def _columns(source: Input, path: LocalPath) -> list[str]:
    with _opened(str(path)) as (schema, _):
        return list(schema.names)


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Not mapped: a file that shrinks while it is read would end the process."""
    with pa.OSFile(path, mode="r") as file:
        if file.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(file)
            yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, iter(stream)


ARROW = Format(name="arrow", endings=("arrow",), columns=_columns, tables=_tables)
