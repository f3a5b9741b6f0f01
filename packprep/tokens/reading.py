"""The reader of finished outputs for packprep, which copies tokens of an index with its kernel."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from packprep.packing.kernels.gather import copy_compiled
from packprep.schemas.index.token_store import Stores, store_places
from packprep.schemas.listed import cache_note, check_file, is_cache, names_in
from packprep.schemas.manifest import FileEntry, Manifest, Output
from packprep.schemas.storage.reader import Check, Reader
from packprep.support.errors import ConfigError
from packprep.support.progress import Progress


def reader(
    output: Output,
    manifest: Manifest | None = None,
    check: Check = "columns",
    opened: Callable[[FileEntry], AbstractContextManager[Any]] | None = None,
) -> Reader:
    """See `Reader`."""
    return Reader(output, manifest, check, copy=copy_compiled, opened=opened)


def say_left_out(source: Reader, progress: Progress) -> None:
    """Report files that `datasets` has left in the directory of an output."""
    names = names_in(source.output) if isinstance(source.output, Path) else []
    if caches := [*filter(is_cache, names)]:
        progress.say(f"{source}: left out {cache_note(caches)}")


def refuse_index(output: Output, manifest: Manifest, sentence: str) -> None:
    """Raise ConfigError for an index output. sentence: "push needs its tokens in shards"."""
    if manifest.is_index:
        raise ConfigError(
            f"{output} is an index, and {sentence}; write them with packprep merge {output} -o "
            "DIR --materialize shards, then give DIR"
        )


class MovedStore:
    """An index output whose token stores have moved; see `FetchedOutput`.

    store: see `store_places`.
    """

    def __init__(self, output: Output, manifest: Manifest, store: Stores) -> None:
        self._output = output
        stores = store_places(manifest, store)
        self.manifest = Manifest(
            data=manifest.data, run=manifest.run | {"stores": stores}, sha256=manifest.sha256
        )

    def __str__(self) -> str:
        return str(self._output)

    @property
    def name(self) -> str:
        return self._output.name

    def fetch(self, entry: FileEntry) -> Path:
        """See `FetchedOutput.fetch`."""
        return check_file(self._output, entry)
