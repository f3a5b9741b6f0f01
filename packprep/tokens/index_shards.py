"""Shards of an index output read as packs: their columns, gathered from its token files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from packprep.packing.kernels.gather import copy_compiled
from packprep.schemas.errors import FormatError
from packprep.schemas.index.stored_plan import IndexBatch
from packprep.schemas.index.token_store import Stores, TokenStore, store_places
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import FileEntry, Manifest, Output
from packprep.support.errors import ConfigError

AsPacks = Callable[[FileEntry, pa.RecordBatch, int], pa.RecordBatch]
"""f(shard, record batch of the file, number of its first pack) -> its packs."""


def as_packs(
    output: Output, manifest: Manifest, *, tokens: bool = True, digests: bool = False
) -> AsPacks:
    """Function from the record batches of an output's shards to packs.

    tokens: False to leave out what no caller of it reads: tokens and carried columns of an index
    are then 0, its labels are not. digests: compare each token file when it is opened.
    """
    if not manifest.is_index:
        return lambda entry, batch, first_pack: batch
    store, table = TokenStore(output, manifest, digests=digests), manifest.index_table
    paths = [entry.path for entry in manifest.files if entry.is_shard]
    window_of = dict(zip(paths, table.shards, strict=True))

    def packs(entry: FileEntry, batch: pa.RecordBatch, first_pack: int) -> pa.RecordBatch:
        gathered = IndexBatch(
            batch,
            store.window(window_of[entry.path]),
            manifest.columns,
            table,
            manifest.max_length,
            entry.path,
            first_pack,
            copy_compiled,
        )
        return gathered.record_batch(manifest.names, tokens=tokens)

    return packs


def changed_token_files(output: Output, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Token files in a store outside the output that are missing or changed, with a sentence."""
    store = TokenStore(output, manifest)
    for file in store.table.used:
        if store.is_listed(file):
            continue
        try:
            store.compare(file)
        except FormatError as error:
            yield file.path, str(error)


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
