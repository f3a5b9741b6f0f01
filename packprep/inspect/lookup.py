"""Places in an output.

The segments of a pack, the rows they come from, and the packs that hold a row.

Nothing is verified here beyond what is read; shards are mapped, so that finding a document in a
terabyte touches its `document_ids` alone: eight bytes per segment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.inspect.provenance import Sources
from packprep.inspect.shard_files import UNREADABLE
from packprep.schemas.batch_view import BatchView
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Findings
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import FileEntry, Manifest, Output
from packprep.schemas.validate import sound_parts
from packprep.schemas.views import list_view
from packprep.support.errors import ConfigError, nearest


@dataclass(frozen=True)
class PackPlace:
    """Place of a segment.

    pack: number in its split; pack_in_shard: in its file, as `verify` names it.
    """

    split: str
    pack: int
    segment: int
    shard: str
    pack_in_shard: int


@dataclass(frozen=True)
class LocatedSegment:
    """A segment of a pack.

    begin, end: tokens of the pack, padding included. real: tokens without padding.
    document, start: input row and offset in the document, None where the shards do not say;
    document -1 is filler.
    """

    place: PackPlace
    begin: int
    end: int
    real: int
    document: int | None
    start: int | None


@dataclass(frozen=True)
class FoundPack:
    """One pack. columns: its values by name, as stored."""

    split: str
    number: int
    shard: str
    segments: tuple[LocatedSegment, ...]
    columns: dict[str, NDArray[Any]]


def split_of(manifest: Manifest, split: str | None) -> str:
    """The split asked for, or the first one."""
    if split is not None and split not in manifest.splits:
        raise ConfigError(
            f"there is no split {split!r}; the splits are {', '.join(manifest.splits)}"
        )
    return split or next(iter(manifest.splits))


def find_pack(
    directory: Output,
    manifest: Manifest,
    pack: int,
    split: str | None = None,
    shard: str | None = None,
) -> FoundPack:
    """Pack `pack` of a split, or of one shard.

    ConfigError where there is none, FormatError where it is damaged.
    """
    split = split_of(manifest, split)
    first, wanted = 0, pack
    for entry in manifest.shards(split):
        packs = int(entry.packs or 0)
        if shard is not None and shard not in (entry.path, Path(entry.path).name):
            first += packs
            continue
        if wanted < packs:
            return _read_pack(directory, manifest, entry, wanted, first)
        if shard is not None:
            raise ConfigError(
                f"{entry.path} has {packs:,} packs, numbered from 0; pack {pack} is not among them"
            )
        wanted, first = wanted - packs, first + packs
    if shard is not None:
        names = [Path(entry.path).name for entry in manifest.shards(split)]
        raise ConfigError(f"split {split} has no shard {shard!r}{nearest(shard, names)}")
    raise ConfigError(
        f"split {split} has {first:,} packs, numbered from 0; pack {pack} is not among them"
    )


def _read_pack(
    directory: Output, manifest: Manifest, entry: FileEntry, wanted: int, first: int
) -> FoundPack:
    """Pack `wanted` of a shard. first: number in the split of the shard's first pack."""
    begun = 0
    for batch in _batches(directory, entry):
        if wanted < begun + len(batch):
            findings = Findings()
            views = list(
                sound_parts(
                    batch.slice(wanted - begun, 1),
                    manifest.columns,
                    max_length=manifest.max_length,
                    vocab_size=manifest.vocab_size,
                    where=entry.path,
                    first_pack=wanted,
                    findings=findings,
                )
            )
            if (
                not views
            ):  # a pack that breaks other rules can be shown, one without boundaries cannot
                raise FormatError(str(next(iter(findings))))
            return FoundPack(
                str(entry.split),
                first + wanted,
                entry.path,
                _segments(views[0], entry, first),
                views[0].columns,
            )
        begun += len(batch)
    raise FormatError(f"{entry.path} holds {begun:,} packs; the manifest says {entry.packs:,}")


def _segments(view: BatchView, entry: FileEntry, first: int) -> tuple[LocatedSegment, ...]:
    documents, starts = (view.columns.get(name) for name in ("document_ids", "document_starts"))
    return tuple(
        LocatedSegment(
            place=PackPlace(
                str(entry.split), first + view.first_pack, number, entry.path, view.first_pack
            ),
            begin=begin,
            end=end,
            real=real,
            document=None if documents is None else int(documents[number]),
            start=None if starts is None else int(starts[number]),
        )
        for number, (begin, end, real) in enumerate(
            zip(view.starts.tolist(), view.ends.tolist(), view.real.tolist(), strict=True)
        )
    )


def find_documents(
    directory: Output, manifest: Manifest, documents: Sequence[int]
) -> list[LocatedSegment]:
    """The segments of some documents in all splits, by document and place in it.

    One pass over the document_ids.
    """
    if "document_ids" not in {column.name for column in manifest.columns}:
        raise ConfigError(
            f"the shards of {directory} have no document_ids, so no document can be found in them"
        )
    found = []
    for split in manifest.splits:
        first = 0
        for entry in manifest.shards(split):
            begun = 0
            for batch in _batches(directory, entry):
                ids = list_view(batch, "document_ids", entry.path)
                at = np.flatnonzero(
                    np.isin(ids.values[ids.offsets[0] : ids.offsets[-1]], documents)
                )
                packs = np.searchsorted(ids.offsets - ids.offsets[0], at, side="right") - 1
                for pack in np.unique(packs).tolist():
                    read = _read_pack(directory, manifest, entry, begun + pack, first)
                    found += [segment for segment in read.segments if segment.document in documents]
                begun += len(batch)
            first += int(entry.packs or 0)
    return sorted(
        found, key=lambda found: (found.document or 0, found.start or 0, found.place.pack)
    )


def document_number(sources: Sources, name: str) -> int:
    """Document id of "SOURCE:ROW", SOURCE being a path as the build was given it or its end.

    Or of a bare number.

    ConfigError where no source or several have that name, or the row is not one of its rows.
    """
    source, _, row = name.rpartition(":")
    if not row.isdecimal():
        raise ConfigError(f"{name!r} is not of the form SOURCE:ROW, such as {sources.names[0]}:17")
    if not source:
        if int(row) >= sources.total:
            raise ConfigError(
                f"there is no document {row}; the sources have {sources.total:,} rows, numbered "
                "from 0"
            )
        return int(row)
    numbers = [number for number, known in enumerate(sources.names) if known == source]
    if not numbers:
        parts = Path(source).parts
        numbers = [
            number
            for number, known in enumerate(sources.names)
            if Path(known).parts[-len(parts) :] == parts
        ]
    if len(numbers) != 1:
        listed = ", ".join(sources.names[number] for number in numbers[:4])
        if numbers:
            raise ConfigError(
                f"{source} is the name of {len(numbers)} sources ({listed}); give more of the path"
            )
        raise ConfigError(
            f"{source} is no source of this output{nearest(source, sources.names[:100])}"
        )
    if int(row) >= sources.rows[numbers[0]]:
        raise ConfigError(
            f"{source} has {sources.rows[numbers[0]]:,} rows, numbered from 0; there is no row "
            f"{row}"
        )
    return int(sources.firsts[numbers[0]]) + int(row)


def _batches(directory: Output, entry: FileEntry) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard, mapped."""
    path = check_file(directory, entry)
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except UNREADABLE as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} is not a whole Arrow stream: {error}; see packprep verify"
        ) from None
