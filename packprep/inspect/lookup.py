"""Look-ups in an output: the segments of a pack, their rows, and the packs that hold a row.

Only what is read is checked. Shards are mapped, so finding a document in a terabyte reads only its
`document_ids`: eight bytes per segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import WHOLE_ROW
from packprep.schemas.manifest import FileEntry, Manifest, Output
from packprep.schemas.sources import Sources
from packprep.schemas.trees import rows_view
from packprep.schemas.views import list_view
from packprep.sources.skip_rows import left_out_of
from packprep.support.errors import ConfigError, nearest
from packprep.tokens.reading import reader


@dataclass(frozen=True)
class PackPlace:
    """Place of a segment.

    pack: number in its split. pack_in_shard: number in its file. epoch: 0 unless documents are
    packed for several.
    """

    split: str
    pack: int
    segment: int
    shard: str
    pack_in_shard: int
    epoch: int = 0


@dataclass(frozen=True)
class LocatedSegment:
    """A segment of a pack.

    begin, end: range in the tokens of the pack, with padding. real: number of tokens without
    padding. document, start: input row, and offset in the document; None if the shards do not have
    them. Document -1 is filler. turn: message that is trained, if the document is one turn of its
    row.
    """

    place: PackPlace
    begin: int
    end: int
    real: int
    document: int | None
    start: int | None
    turn: int | None = None


@dataclass(frozen=True)
class FoundPack:
    """One pack. columns: stored values by name."""

    split: str
    number: int
    shard: str
    segments: tuple[LocatedSegment, ...]
    columns: dict[str, NDArray[Any]]


def split_of(manifest: Manifest, split: str | None) -> str:
    """The given split, or the first one. Raises ConfigError if there is no such split."""
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
    *,
    rows: bool = False,
) -> FoundPack:
    """Pack `pack` of a split, or of one shard.

    rows: of trees, give the rows as segments, numbered from 0, as if no prefix were shared.
    Raises ConfigError if there is no such pack, FormatError if it is damaged.
    """
    split = split_of(manifest, split)
    first, wanted = 0, pack
    for entry in manifest.shards(split):
        packs = int(entry.packs or 0)
        if shard is not None and shard not in (entry.path, Path(entry.path).name):
            first += packs
            continue
        if wanted < packs:
            return _read_pack(directory, manifest, entry, wanted, first, rows=rows)
        if shard is not None:
            raise ConfigError(
                f"{entry.path} has no pack {pack}; it has {packs:,} packs, numbered from 0"
            )
        wanted, first = wanted - packs, first + packs
    if shard is not None:
        names = [Path(entry.path).name for entry in manifest.shards(split)]
        raise ConfigError(f"split {split} has no shard {shard!r}{nearest(shard, names)}")
    raise ConfigError(f"split {split} has no pack {pack}; it has {first:,} packs, numbered from 0")


def _read_pack(
    directory: Output,
    manifest: Manifest,
    entry: FileEntry,
    wanted: int,
    first: int,
    *,
    rows: bool = False,
) -> FoundPack:
    """Read pack `wanted` of a shard. first: number in the split of the first pack of the shard."""
    view = reader(directory, manifest).pack(entry, wanted)
    view = rows_view(view) if rows and manifest.has_trees else view
    return FoundPack(
        str(entry.split),
        first + wanted,
        entry.path,
        _segments(view, entry, first),
        view.columns,
    )


def _segments(view: BatchView, entry: FileEntry, first: int) -> tuple[LocatedSegment, ...]:
    documents, starts, turns = (
        view.columns.get(name) for name in ("document_ids", "document_starts", "turn_ids")
    )
    return tuple(
        LocatedSegment(
            place=PackPlace(
                str(entry.split),
                first + view.first_pack,
                number,
                entry.path,
                view.first_pack,
                entry.epoch or 0,
            ),
            begin=begin,
            end=end,
            real=real,
            document=None if documents is None else int(documents[number]),
            start=None if starts is None else int(starts[number]),
            turn=None if turns is None or turns[number] == WHOLE_ROW else int(turns[number]),
        )
        for number, (begin, end, real) in enumerate(
            zip(view.starts.tolist(), view.ends.tolist(), view.real.tolist(), strict=True)
        )
    )


def find_documents(
    directory: Output, manifest: Manifest, documents: Sequence[int]
) -> list[LocatedSegment]:
    """The segments of some documents in all splits, ordered by document, turn and start.

    Of trees, the rows; see `find_pack`.
    Takes one pass over the document_ids.
    """
    if "document_ids" not in {column.name for column in manifest.columns}:
        raise ConfigError(
            f"the shards of {directory} have no document_ids, which are needed to find a document"
        )
    ids_column = "row_ids" if manifest.has_trees else "document_ids"
    located, output = [], reader(directory, manifest)
    for split in manifest.splits:
        first = 0
        for entry in manifest.shards(split):
            for batch in output.read(entry, [ids_column]):
                ids = list_view(batch.rows, ids_column, entry.path)
                places = np.flatnonzero(np.isin(ids.flat, documents))
                packs = np.searchsorted(ids.offsets - ids.offsets[0], places, side="right") - 1
                for pack in np.unique(packs).tolist():
                    number = batch.first + pack
                    read = _read_pack(directory, manifest, entry, number, first, rows=True)
                    located += [
                        segment for segment in read.segments if segment.document in documents
                    ]
            first += int(entry.packs or 0)
    return sorted(
        located,
        key=lambda segment: (
            segment.document or 0,
            segment.turn or 0,
            segment.start or 0,
            segment.place.pack,
        ),
    )


def located_rows(
    segments: Sequence[LocatedSegment], manifest: Manifest, sources: Sources
) -> list[dict[str, int | str | None]]:
    """Segments with their places and rows of sources, as rows of a table; keys are its columns.

    source: path of the source, or "filler". turn is a column if rows are divided into turns, epoch
    if documents are packed for several.
    """
    has_turns = any(column.name == "turn_ids" for column in manifest.columns)
    rows: list[dict[str, int | str | None]] = []
    for segment in segments:
        document, source, row = segment.document, None, None
        if document is not None and 0 <= document < sources.total:
            source, row = sources.place(document)
        rows.append(
            {
                "split": segment.place.split,
                **({"epoch": segment.place.epoch} if manifest.epochs > 1 else {}),
                "pack": segment.place.pack,
                "segment": segment.place.segment,
                "tokens": segment.real,
                "from_token": segment.start,
                "document": document,
                "source": "filler" if document == -1 else source,
                "row": row,
                **({"turn": segment.turn} if has_turns else {}),
                "shard": segment.place.shard,
                "pack_in_shard": segment.place.pack_in_shard,
            }
        )
    return rows


def document_number(sources: Sources, name: str) -> int:
    """See `Sources.document`. Raises ConfigError if no source or several match."""
    try:
        return sources.document(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def why_in_no_pack(manifest: Manifest, sources: Sources, document: int) -> str:
    """The reason why a document has no segment, as far as the manifest tells."""
    name, row = sources.place(document)
    listed = left_out_of(manifest) if "sources" in manifest.data["inputs"] else ()
    if any(name == source and row in rows for source, rows in listed):
        return "skip_rows of the build lists it"
    return "it was empty, skipped or dropped; report.json counts which"
