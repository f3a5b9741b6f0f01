"""Segments of packs with their tokens, labels and rows: of some packs, or of one document."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Bools
from ..schemas.columns import NO_LOSS, WHOLE
from ..schemas.manifest import Manifest, Output, PackBatch, packs
from ..schemas.views import ListView, list_view, segments_of
from ..support.errors import ConfigError, InputError, nearest
from ..tokens.tokenizer import load_tokenizer
from .closing import tokenizer_of

View = Callable[[str], ListView]
"""A column of a batch by the standard name."""


class Shown(NamedTuple):
    """A segment of a pack.

    pack: number in its split. segment: in its pack. first: place of its first token in the pack.
    tokens: ids, without padding. trained: those that have a label. padding: tokens after them.
    document: input row over all sources, -1 for filler; None if the output does not say. start: its
    first token in the document. part: turn, or document of a row of ids; None for a whole row.
    side: 0 or 1 of a pair, else None.
    """

    split: str
    shard: str
    pack: int
    segment: int
    first: int
    tokens: NDArray[Any]
    trained: Bools
    padding: int
    document: int | None
    start: int | None
    part: int | None
    side: int | None


def shown_packs(output: Output, split: str | None, numbers: Sequence[int]) -> list[Shown]:
    """The segments of these packs, in this order, once. split: None for the first one.

    Raises ConfigError for what is not there.
    """
    splits = output.manifest.splits
    split = split or next(iter(splits))
    if split not in splits:
        raise ConfigError(f"there is no split {split!r}; the splits are {', '.join(splits)}")
    count = splits[split]["packs"]
    for number in numbers:
        if not 0 <= number < count:
            raise ConfigError(
                f"split {split} has no pack {number:,}; it has {count:,} packs, numbered from 0"
            )

    def chosen(first: int, batch: PackBatch, view: View) -> Iterable[int]:
        return [number - first for number in {*numbers} if 0 <= number - first < len(batch.batch)]

    by_pack: dict[int, list[Shown]] = {number: [] for number in numbers}
    for each in _shown(output, split, chosen, min(numbers), max(numbers)):
        by_pack[each.pack].append(each)
    return [each for of_pack in by_pack.values() for each in of_pack]


def shown_document(output: Output, document: int) -> list[Shown]:
    """The segments of an input row, in order, from all splits. Reads all document ids."""
    if "document_ids" not in output.manifest.columns:
        raise ConfigError(
            f"{output.files} has no document_ids, by which a row is found; build it with them"
        )

    def chosen(first: int, batch: PackBatch, view: View) -> Iterable[int]:
        ids = view("document_ids")
        places = np.flatnonzero(ids.flat == document)
        return map(int, np.unique(np.searchsorted(ids.places, places, side="right") - 1))

    found = [
        each
        for split in output.manifest.splits
        for each in _shown(output, split, chosen)
        if each.document == document
    ]
    return sorted(found, key=lambda each: (each.part or 0, each.side or 0, each.start or 0))


def _shown(
    output: Output,
    split: str,
    chosen: Callable[[int, PackBatch, View], Iterable[int]],
    begin: int = 0,
    last: int | None = None,
) -> Iterator[Shown]:
    """Segments of some packs. chosen: f(pack of the split that a batch begins with, batch, view).

    begin, last: no chosen pack is before or after these.
    """
    columns, firsts, count = output.manifest.columns, dict[str, int](), 0
    for shard in output.manifest.shards(split):
        firsts[shard.path], count = count, count + shard.packs
    for part in packs(output, split, check=False, begin=begin):
        first = firsts[part.shard.path] + part.first
        if last is not None and first > last:
            return

        def view(name: str, part: PackBatch = part) -> ListView:
            return list_view(part.batch, columns[name].name, part.shard.path)

        if rows := sorted(chosen(first, part, view)):
            views = {name: view(name) for name in columns}
            yield from _segments(views, rows, part, split, first)


def _segments(
    views: Mapping[str, ListView], rows: Iterable[int], part: PackBatch, split: str, first: int
) -> Iterator[Shown]:
    """The segments of these packs of a batch. first: number of its first pack."""
    places = segments_of(views, part.shard.path, part.first)
    tokens = views["tokens"].flat
    labels = views["labels"].flat if "labels" in views else None
    of_segment = {name: view.flat for name, view in views.items()}

    def value(name: str, segment: int) -> int | None:
        return int(of_segment[name][segment]) if name in of_segment else None

    for row in rows:
        for segment in range(int(places.first[row]), int(places.first[row + 1])):
            begin, end = int(places.starts[segment]), int(places.ends[segment])
            length = value("segment_lengths", segment) or end - begin  # filler has none
            ids = tokens[begin : begin + length]
            trained = np.arange(len(ids)) > 0  # the first token has nothing before it
            if labels is not None:
                trained = labels[begin : begin + length] != NO_LOSS
            turn, side = value("turn_ids", segment), value("pair_sides", segment)
            yield Shown(
                split=split,
                shard=part.shard.path,
                pack=first + row,
                segment=segment - int(places.first[row]),
                first=begin - int(places.tokens[row]),
                tokens=ids,
                trained=trained,
                padding=end - begin - len(ids),
                document=value("document_ids", segment),
                start=value("document_starts", segment),
                part=None if turn == WHOLE else turn,
                side=None if side == WHOLE else side,
            )


def row_of(manifest: Manifest, document: int | None) -> str:
    """FILE:ROW of an input row; filler, or nothing if the output does not say."""
    for source in manifest.data["sources"]:
        if document is not None and 0 <= document - source["first_row"] < source["rows"]:
            return f"{source['name']}:{document - source['first_row']}"
    return "" if document is None else "filler"


def document_of(manifest: Manifest, name: str) -> int:
    """Input row over all sources of "17", or of FILE:ROW; the end of a path is enough as FILE.

    Raises ConfigError if there is no such row, or if several files match.
    """
    file, colon, number = name.rpartition(":")
    sources = manifest.data["sources"]
    if not number.isdecimal():
        raise ConfigError(f"--document is {name!r}, expected a number or FILE:ROW, from 0")
    ends = [source for source in sources if f"/{source['name']}".endswith(f"/{file}")]
    matching = [source for source in sources if source["name"] == file] or ends
    if colon and len(matching) != 1:
        names = [source["name"] for source in matching or sources]
        what = f"{len(matching)} sources are" if matching else "no source is"
        raise ConfigError(f"{what} called {file!r}{nearest(file, names)}")
    rows = sum(source["rows"] for source in (matching if colon else sources))
    if int(number) >= rows:
        raise ConfigError(f"there is no row {name}; there are {rows:,}, numbered from 0")
    return int(number) + (matching[0]["first_row"] if colon else 0)


def decoder_of(manifest: Manifest, moved: str | None) -> Any:
    """The `tokenizers.Tokenizer` of an output, or of `moved`; None if its rows were ids.

    Raises ConfigError if it is not named, or another one.
    """
    from tokenizers import Tokenizer

    expected = tokenizer_of(manifest)["sha256"]
    source = moved or manifest.run.get("tokenizer")
    if not expected and moved is None:
        return None
    if source is None:
        raise ConfigError(
            "the output does not name its tokenizer; give it with --tokenizer, or add --ids"
        )
    try:
        tokenizer = load_tokenizer(source, bos="none", eos="none")
    except InputError as error:
        raise InputError(
            f"the tokenizer of the build cannot be read: {error}; give --tokenizer, or add --ids"
        ) from None
    if expected not in ("", tokenizer.sha256):
        raise ConfigError(
            f"{source} is not the tokenizer of this output: its sha256 begins with "
            f"{tokenizer.sha256[:12]}, expected {expected[:12]}; give the one of the build"
        )
    return tokenizer.json and Tokenizer.from_buffer(tokenizer.json)
