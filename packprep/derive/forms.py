"""Two forms of an output: the names of its columns, and an index or shards that hold their tokens.

Packs, tokens and their order are the same in each form. Boundaries become lengths, or lengths
boundaries. Names that need labels or position_ids add them; the manifest lists those, so that the
other direction leaves them out again and gives the bytes of before.
"""

from typing import Literal

import numpy as np
import pyarrow as pa

from packprep.output.sign_off import described
from packprep.schemas.batch_view import BatchView, batch_view
from packprep.schemas.canonical import digest_of
from packprep.schemas.columns import (
    HF_NAMES,
    NO_LOSS,
    STANDARD_COLUMNS,
    Column,
    columns_of_type,
    token_type,
)
from packprep.schemas.manifest import Manifest, Output, format_version
from packprep.schemas.names import (
    Names,
    column_view,
    list_array,
    needed_columns,
    packprep_batch,
    stored_batch,
    stored_columns,
)
from packprep.schemas.views import ListView
from packprep.support.errors import ConfigError

Materialize = Literal["shards", "index"]

# Standard columns that come with the rows, which a build writes after the others.
_CARRIED = ("pair_ids", "pair_sides", "turn_ids")


def manifest_in_form(
    output: Output, manifest: Manifest, names: Names | None, materialize: Materialize | None
) -> Manifest:
    """Manifest of the build of the same packs in another form; its files are those of `manifest`.

    names, materialize: of the new form; None keeps that of the output. Returns `manifest` itself if
    it has the form. Raises ConfigError if the packs cannot have it.
    """
    changed: dict[str, object] = {}
    options = dict(manifest.data["inputs"]["options"])
    as_shards = manifest.is_index and materialize == "shards"
    if materialize == "index" and not manifest.is_index:
        raise ConfigError(
            f"{output} has its tokens in shards, and an index needs them in a token store; build "
            "it with --materialize index"
        )
    if as_shards:
        options.pop("materialize", None)
        changed["format_version"] = format_version(column.name for column in manifest.columns)
    if names not in (None, manifest.names):
        if manifest.is_index and not as_shards:
            raise ConfigError(
                f"{output} is an index, and its columns have names only in shards with tokens; add "
                "--materialize shards"
            )
        _check_names(output, manifest, names)
        columns, added = _columns_named(manifest, names)
        options["names"] = names
        changed |= {"columns": described(stored_columns(columns, names)), "added": list(added)}
    if not changed:
        return manifest
    inputs = manifest.data["inputs"] | {"options": options}
    data = manifest.data | changed | {"inputs": inputs, "identity": digest_of(inputs)}
    if as_shards:
        del data["index"]
    if not data.get("added"):
        data.pop("added", None)
    return Manifest(data=data, run=manifest.run, sha256=manifest.sha256)


def _check_names(output: Output, manifest: Manifest, names: Names) -> None:
    if manifest.has_trees:
        raise ConfigError(
            f"{output} has trees, and trainers that read the names of hf would take them for "
            "documents; build without --share-prefixes"
        )
    if names == "hf" and any(column.name == "pair_sides" for column in manifest.columns):
        raise ConfigError(
            f"{output} has preference pairs, and trainers that read the names of hf would train on "
            "the rejected answers too; read it with PackedLoader(sides=...)"
        )
    taken = {*HF_NAMES.values()} if names == "hf" else {*HF_NAMES}
    for column in manifest.stored_columns:
        if column.name in taken:
            raise ConfigError(
                f"{output} has a column {column.name} of its own, a name of {names}; build it "
                "again with another name for that column"
            )


def _columns_named(manifest: Manifest, names: Names) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Columns of the output under other names, with packprep's names, and the added ones of them.

    They are in the order in which a build writes them: standard columns first.
    """
    kept = [column for column in manifest.columns if column.name not in manifest.added]
    present = {column.name for column in kept}
    added = tuple(name for name in needed_columns(names) if name not in present)
    types = columns_of_type(token_type(kept), manifest.max_length)
    stored = {column.name: column for column in kept}
    standard = [
        stored.get(name, types[name])
        for name in STANDARD_COLUMNS
        if name in added or (name in present and name not in _CARRIED)
    ]
    return (*standard, *(column for column in kept if column not in standard)), added


def named_batch(
    batch: pa.RecordBatch, columns: tuple[Column, ...], names: Names, where: str
) -> pa.RecordBatch:
    """The packs of a sound batch, of any names, with exactly these columns under these names.

    labels and position_ids are computed if they are missing.
    """
    packs = packprep_batch(batch, where)
    views = {name: column_view(packs, name, where) for name in ("tokens", "cu_seqlens")}
    view = batch_view(views, where, 0)
    arrays = [
        packs.column(packs.schema.get_field_index(column.name))
        if column.name in packs.schema.names
        else list_array(_computed(column, view))
        for column in columns
    ]
    complete = pa.record_batch(arrays, names=[column.name for column in columns])
    return stored_batch(complete, names)


def _computed(column: Column, view: BatchView) -> ListView:
    """labels or position_ids of packs without padding."""
    tokens = view.columns["tokens"]
    if column.name == "labels":
        values = tokens.astype(column.numpy_dtype)
        values[view.starts] = NO_LOSS
    else:
        starts = np.repeat(view.starts, view.ends - view.starts)
        values = (np.arange(len(tokens)) - starts).astype(column.numpy_dtype)
    return ListView(view.pack_tokens.astype(np.int32), values)
