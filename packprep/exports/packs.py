"""Shards of a finished output, read as flat arrays, a record batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from packprep.exports.unshared import Unshared, plain_columns
from packprep.schemas.boundaries import bad_packs
from packprep.schemas.columns import FILLER, NO_LOSS, Column, as_unsigned
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import StopAtFirst
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.schemas.names import column_view, stored_schema
from packprep.support.arrays import Bools, Int32, Int64, UInt16
from packprep.tokens.checked_output import CheckedOutput
from packprep.tokens.shard_packs import stored_packs

# Other columns are not exported.
_READ = ("tokens", "cu_seqlens", "labels", "document_ids", "segment_lengths")


@dataclass(frozen=True, kw_only=True)
class PackBatch:
    """Packs of a record batch.

    rows: all columns of the shard.
    tokens: [tokens], of the type in the shard.
    packs, segments: int64 [packs + 1], first token and first segment of each pack, and the end.
    cu_seqlens: int32 [segments + packs], of all packs; those of pack p begin at segments[p] + p.
    bounds: int64 [segments + 1], first token of each segment, and the end.
    stored_labels: int32 [tokens], or None if every token is trained.
    documents: int64 [segments], -1 for filler; None if unknown.
    lengths: int32 [segments], tokens that are not padding; None if no segment ends in padding.
    """

    rows: pa.RecordBatch
    tokens: Int32 | UInt16
    packs: Int64
    segments: Int64
    cu_seqlens: Int32
    bounds: Int64
    stored_labels: Int32 | None
    documents: Int64 | None
    lengths: Int32 | None

    @cached_property
    def labels(self) -> Int32:
        """[tokens], unshifted targets; -100 where there is no loss and on each first token."""
        stored = self.tokens if self.stored_labels is None else self.stored_labels
        labels = stored.astype(np.int32)
        labels[self.bounds[:-1]] = NO_LOSS
        return labels

    @cached_property
    def trained(self) -> Bools:
        """[tokens], True where there is loss."""
        trained: Bools = self.labels != NO_LOSS
        return trained

    @property
    def has_untrained(self) -> bool:
        """True if a token other than the first of a segment has no loss or another target.

        Padding does not count: it is no token of a document.
        """
        if self.stored_labels is None:
            return False
        differs = self.labels != replace(self, stored_labels=None).labels
        return bool(np.any(differs & self.real_tokens if self.pads else differs))

    @property
    def has_other_targets(self) -> bool:
        """True if a token's label is another id."""
        return self.stored_labels is not None and bool(
            np.any((self.labels != self.tokens) & self.trained)
        )

    @cached_property
    def real_lengths(self) -> Int64:
        """[segments], number of tokens that are not padding; 0 for filler."""
        lengths = np.diff(self.bounds) if self.lengths is None else self.lengths.astype(np.int64)
        return lengths if self.documents is None else np.where(self.documents == FILLER, 0, lengths)

    @cached_property
    def pads(self) -> bool:
        """True if any token is padding."""
        return int(self.real_lengths.sum()) < len(self.tokens)

    @property
    def real_tokens(self) -> Bools:
        """[tokens], False for padding."""
        return self.position_ids() < np.repeat(self.real_lengths, np.diff(self.bounds))

    def position_ids(self) -> Int32:
        """[tokens], 0, 1, 2, ... in each segment."""
        starts = np.repeat(self.bounds[:-1].astype(np.int32), np.diff(self.bounds))
        return np.arange(len(self.tokens), dtype=np.int32) - starts


def read_packs(source: CheckedOutput, entry: FileEntry, path: Path) -> Iterator[PackBatch]:
    """The packs of one shard, in order; of trees, their rows in packs of their own.

    path: of the shard, from `CheckedOutput.shards`. Boundaries and the range of ids and labels are
    checked; `packprep verify` checks all else. Raises FormatError that names file and pack.
    """
    manifest = source.manifest
    columns = _columns(manifest)
    where = f"{source}/{entry.path}"
    plain = Unshared(manifest, entry) if manifest.has_trees else None
    for first, packed in stored_packs(path, manifest, entry, where, source.packs_of):
        batch = packed if plain is None else plain.packs(packed, where, first)
        views = {column.name: column_view(batch, column.name, where) for column in columns}
        bad_packs(views, columns, manifest.max_length, where, first, StopAtFirst())
        values = {name: view.flat for name, view in views.items()}
        offsets = {
            name: views[name].offsets.astype(np.int64) - int(views[name].offsets[0])
            for name in ("tokens", "cu_seqlens")
        }
        _check_range(values, manifest.vocab_size, f"{where} packs from {first}")
        if len(batch):
            yield _pack_batch(batch, values, offsets["tokens"], offsets["cu_seqlens"])


def _columns(manifest: Manifest) -> list[Column]:
    """Columns of which a `PackBatch` has values."""
    return [column for column in manifest.columns if column.name in _READ]


def no_packs(manifest: Manifest) -> PackBatch:
    """A batch without packs, with the columns of an output."""
    columns = manifest.columns
    if manifest.has_trees:
        columns = plain_columns(columns)
    rows = pa.RecordBatch.from_pylist([], stored_schema(columns, manifest.names))
    values = {column.name: np.empty(0, column.numpy_dtype) for column in _columns(manifest)}
    return _pack_batch(rows, values, np.zeros(1, np.int64), np.zeros(1, np.int64))


def _pack_batch(
    rows: pa.RecordBatch, values: dict[str, Int32], packs: Int64, entries: Int64
) -> PackBatch:
    """A batch of valid packs. entries: int64 [packs + 1], the offsets of cu_seqlens."""
    ends = values["cu_seqlens"]
    is_end = np.ones(len(ends), np.bool_)
    is_end[entries[:-1]] = False  # the 0 that begins each pack
    segments = entries - np.arange(len(entries))
    bounds = np.zeros(int(segments[-1]) + 1, np.int64)
    np.add(ends[is_end], np.repeat(packs[:-1], np.diff(segments)), out=bounds[1:])
    return PackBatch(
        rows=rows,
        tokens=values["tokens"],
        packs=packs,
        segments=segments,
        cu_seqlens=ends,
        bounds=bounds,
        stored_labels=values.get("labels"),
        documents=cast("Int64 | None", values.get("document_ids")),
        lengths=values.get("segment_lengths"),
    )


def _check_range(values: dict[str, Int32], vocab_size: int, where: str) -> None:
    """Raise FormatError for an id or a label that no tokenizer of this size has."""
    tokens, labels = values["tokens"], values.get("labels")
    # As unsigned, a negative id is larger than any vocabulary.
    if len(tokens) and int(as_unsigned(tokens).max()) >= vocab_size:
        raise FormatError(
            f"{where} have the token id {tokens[np.argmax(as_unsigned(tokens))]}; expected 0 to "
            f"{vocab_size - 1}: run packprep verify to find it"
        )
    if (
        labels is not None
        and len(labels)
        and not NO_LOSS <= labels.min() <= labels.max() < vocab_size
    ):
        raise FormatError(
            f"{where} have a label outside 0 to {vocab_size - 1} that is not {NO_LOSS}; run "
            "packprep verify to find it"
        )
