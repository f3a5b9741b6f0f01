"""The last check of a build: its own output is opened and read, as a loader does it.

The writer has checked every pack of shards, but nothing of what an index leads to. So one record
batch of each shard of an index is gathered and checked; of other outputs, one of each split.
"""

from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.tokens.reading import reader


def read_back(staging: Path, manifest: Manifest, opened: Callable[[str], BufferedReader]) -> None:
    """Raise FormatError if packs of an output cannot be read, or break the format.

    staging: directory that has its token files. opened: opens a shard by its path in the output.
    """
    output = reader(staging, manifest, "packs", opened=lambda entry: opened(entry.path))
    splits = set()
    try:
        for entry in manifest.files:
            if entry.packs and (manifest.is_index or entry.split not in splits):
                splits.add(entry.split)
                next(output.read(entry))
    except (FormatError, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's has none
            raise
        raise FormatError(
            f"the output is not signed, because it cannot be read: {error}; delete {staging} "
            "and build again, and report it if that fails too"
        ) from None
