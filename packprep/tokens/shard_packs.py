"""The one loop over the packs of a shard; all of packprep that reads finished shards uses it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.schemas.columns import check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.index.token_file import UNREADABLE
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.tokens.index_shards import AsPacks


def stored_packs(
    shard: Path | BufferedReader,
    manifest: Manifest,
    entry: FileEntry,
    where: str,
    packs_of: AsPacks | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The record batches of a shard, each with the number of its first pack in the shard.

    shard: a path, which is mapped, or an open file. where: names the shard in messages. packs_of:
    `as_packs` of the output, to have the packs of an index too; without it an index has its own
    columns. Only the columns and the number of packs are checked. Raises FormatError.
    """
    packs = 0
    try:
        with _opened(shard) as file, pa.ipc.open_stream(file) as stream:
            check_schema(stream.schema, manifest.file_columns, where)
            for batch in stream:
                yield packs, batch if packs_of is None else packs_of(entry, batch, packs)
                packs += len(batch)
    except FormatError:
        raise
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's of damage has none
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(
            f"{where} is not a valid Arrow stream after {packs:,} packs: {reason}; restore the "
            "file or build again"
        ) from None
    if packs != entry.packs:
        raise FormatError(
            f"{where} has {packs:,} packs; the manifest says {entry.packs:,}; restore the file or "
            "build again"
        )


def _opened(shard: Path | BufferedReader) -> AbstractContextManager[Any]:
    return pa.memory_map(str(shard)) if isinstance(shard, Path) else nullcontext(shard)
