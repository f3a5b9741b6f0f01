"""Rows of an Arrow file, stream or file format, through `datasets`.

The Arrow builder of `datasets` stops at the first text that is not UTF-8, with its place in a
record batch and no file. Here only the asked columns are looked at, what text is not UTF-8 is found
row by row (`arrowcolumns.text_column`), and offsets that leave the file, which crash whatever
follows them, are an error before anything does.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
import pyarrow as pa

from packprep.sources.formats.arrow_columns import sound
from packprep.sources.formats.builder import RowBuilder
from packprep.support.problems import no_problems


class ArrowRows(RowBuilder):
    """A plain file.

    Its tables have those of the asked columns that there are, as they are, and no problem yet.
    """

    def _generate_tables(self, files: Iterable[str]) -> Iterator[tuple[Any, pa.Table]]:
        for number, path in enumerate(files):
            with _opened(path) as (schema, batches):
                places = [
                    schema.names.index(name) for name in self.config.columns if name in schema.names
                ]
                for block, batch in enumerate(batches):
                    columns = [sound(batch.column(place)) for place in places]
                    names = [*(schema.names[place] for place in places), "problem"]
                    table = pa.table([*columns, no_problems(len(batch))], names=names)
                    yield datasets.builder.Key(number, block), table


def column_names(path: str) -> list[str]:
    """Names of all columns of an Arrow file."""
    with _opened(path) as (schema, _):
        return list(schema.names)


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Not mapped: a file that shrinks while it is read would end the process."""
    with pa.OSFile(path) as file:
        if file.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(file)
            yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, iter(stream)
