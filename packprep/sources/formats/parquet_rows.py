"""Rows of a Parquet file through `datasets`, which reads the wanted columns alone."""

import contextlib
import glob
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from packprep.sources.formats.format import (
    ROWS_PER_TABLE,
    Format,
    Input,
    LocalPath,
    Wanted,
    tables_in,
)


def _tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    import datasets
    import pyarrow.dataset as pds  # brings pandas along, a fifth of a second

    names = [name for name in wanted.plan.columns if name in pq.read_schema(str(path)).names]
    # Checksums where the file has them. Buffered ahead, a file would be held in memory as it is on
    # the disk.
    checked = pds.ParquetFragmentScanOptions(
        page_checksum_verification=True, pre_buffer=False, use_buffered_stream=True
    )
    rows = datasets.load_dataset(
        "parquet",
        split="train",
        streaming=True,
        data_files=[glob.escape(str(path))],
        cache_dir=str(wanted.scratch),
        batch_size=ROWS_PER_TABLE,
        columns=names or None,
        fragment_scan_options=checked,
    )
    return tables_in(rows)


def _columns(source: Input, path: LocalPath) -> Sequence[str]:
    names: list[str] = pq.read_schema(str(path)).names
    return names


def _count(source: Input) -> int | None:
    if not source.compression:
        with (
            contextlib.suppress(pa.ArrowInvalid),
            source.raw() as file,
        ):  # reading it says better what is wrong
            return int(pq.read_metadata(file).num_rows)
    return None


PARQUET = Format(
    name="parquet",
    endings=("parquet",),
    columns=_columns,
    tables=_tables,
    count=_count,
    text_per_byte=3.0,  # two to four
)
