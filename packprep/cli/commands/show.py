"""`packprep show`: a pack as readable text, its rows, and the packs that hold a row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store
from packprep.cli.printing import print_columns, print_json
from packprep.cli.segment_text import decoder_of, print_segment, segment_title, special_ids
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.lookup import FoundPack, LocatedSegment
    from packprep.schemas.manifest import Manifest, Output
    from packprep.schemas.sources import Sources

# In turn, so that neighbouring segments have different colours.
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@click.command("show", short_help="Print a pack as text, or the rows in it; find a row.")
@output_argument()
@click.option(
    "--pack",
    type=click.IntRange(0),
    metavar="P",
    help="Number of a pack in its split, from 0.  [default: 0]",
)
@click.option(
    "--segment", type=click.IntRange(0), metavar="S", help="Only this segment of the pack, from 0."
)
@click.option(
    "--doc",
    metavar="ROW",
    help="Show all segments of a document instead: a document id, or SOURCE:ROW.",
)
@click.option("--find", metavar="ROW", help="List the packs that hold a row, which --doc shows.")
@click.option("--rows", is_flag=True, help="List the rows of the sources; print no text.")
@click.option("--raw", is_flag=True, help="Print token ids instead of text; needs no tokenizer.")
@value_option("N", "--head", help="Only the first N tokens of each segment.")
@click.option("--split", metavar="NAME", help="Split that holds the pack.  [default: the first]")
@click.option("--shard", metavar="FILE", help="Number packs within this shard, as verify does.")
@value_option("PATH|NAME", "--tokenizer", help="The tokenizer, if it has moved since the build.")
@STORE_OPTION
@json_option("segments, ids and text as JSON")
def command(
    output: "Output",
    pack: int | None,
    segment: int | None,
    doc: str | None,
    find: str | None,
    rows: bool,
    raw: bool,
    head: int | None,
    split: str | None,
    shard: str | None,
    tokenizer: str | None,
    store: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print a pack of OUT, each segment under its document, or list rows and packs.

    Every line begins with the position of its first token. Each segment has a colour; BOS, EOS
    and other special tokens are highlighted. Where there are labels, tokens without loss are dim,
    or between ‹ and › if there is no colour.

    --rows lists the source and row of each segment of a pack, and --find the packs that hold a
    row. Rows and packs are numbered from 0. turn is the message that is trained, where a document
    is one turn of a row (--turns). Of trees, rows are listed, and segment is the number of a row in
    its pack.

    \b
    Example:
      packprep show packed --pack 17
      packprep show packed --pack 17 --rows
      packprep show packed --find docs/a.jsonl:1042
    """
    from packprep.inspect.lookup import (
        document_number,
        find_documents,
        find_pack,
        why_in_no_pack,
    )
    from packprep.schemas.manifest import read_manifest
    from packprep.schemas.sources import Sources

    if sum(each is not None for each in (pack if segment is None else segment, doc, find)) > 1:
        raise ConfigError("--pack, --doc and --find exclude each other; give only one of them")
    output = with_store(output, store)
    manifest = read_manifest(output)
    sources = Sources(manifest)
    listed, row = rows or find is not None, find if doc is None else doc
    first = None
    if row is None:
        first = find_pack(output, manifest, pack or 0, split, shard, rows=listed)
        segments = _chosen(first, pack or 0, segment)
    else:
        number = document_number(sources, row)
        segments = find_documents(output, manifest, [number])
        if not segments:
            reason = why_in_no_pack(manifest, sources, number)
            sentence = f"{sources.row(number)} is in no pack: {reason}"
            if not listed:
                raise ConfigError(sentence)
            click.echo("[]" if as_json else sentence)
            return
    if listed:
        _list(segments, manifest, sources, as_json=as_json)
        return
    shown = [
        (
            first or find_pack(output, manifest, each.place.pack, each.place.split, rows=True),
            each,
        )
        for each in segments
    ]
    decoder = None if raw else decoder_of(manifest, tokenizer)
    if as_json:
        found = [_as_dict(each, segment, sources, decoder) for each, segment in shown]
        print_json(found)
        return
    if first is not None:
        click.secho(_heading(first, len(shown), manifest), bold=True)
    special = special_ids(manifest, decoder)
    for place, (found_pack, each) in enumerate(shown):
        colour = _COLOURS[place % len(_COLOURS)]
        click.echo()
        side, above = _side(found_pack, each, manifest), _path_above(found_pack, each)
        title = segment_title(each, sources, side, with_pack=first is None, above=above)
        click.secho(title, fg=colour, bold=True)
        print_segment(found_pack, each, decoder, special, colour, head)


def _chosen(found_pack: "FoundPack", pack: int, segment: int | None) -> "Sequence[LocatedSegment]":
    """All segments of a pack, or one of them."""
    segments = found_pack.segments
    if segment is None:
        return segments
    if segment >= len(segments):
        raise ConfigError(
            f"pack {pack} has {len(segments)} segments, numbered from 0, so there is no segment "
            f"{segment}"
        )
    return segments[segment : segment + 1]


def _list(
    segments: "Sequence[LocatedSegment]", manifest: "Manifest", sources: "Sources", *, as_json: bool
) -> None:
    """Print the rows of segments as a table or as JSON."""
    from packprep.inspect.lookup import located_rows

    rows = located_rows(segments, manifest, sources)
    if as_json:
        print_json(rows)
        return
    if all(row.get("turn") is None for row in rows):  # a column of dashes would say nothing
        rows = [{key: value for key, value in row.items() if key != "turn"} for row in rows]
    print_columns(rows, keys=3 + (manifest.epochs > 1))


def _heading(found_pack: "FoundPack", segments: int, manifest: "Manifest") -> str:
    """The line above the segments of a pack."""
    used = len(found_pack.columns["tokens"])
    split = f"{manifest.splits[found_pack.split].packs:,} packs of {found_pack.split}"
    if manifest.epochs > 1:
        split += f", in epoch {found_pack.segments[0].place.epoch}"
    return (
        f"pack {found_pack.number} of {split}: {used:,} of {manifest.max_length:,} tokens, "
        f"{segments} segment{'s' * (segments != 1)}"
    )


def _side(found_pack: "FoundPack", segment: "LocatedSegment", manifest: "Manifest") -> str:
    """Column of a pair that a segment is from, such as "rejected"; "" where rows are not pairs."""
    sides = found_pack.columns.get("pair_sides")
    if sides is None or (side := int(sides[segment.place.segment])) < 0:
        return ""
    named = manifest.data["inputs"]["options"].get("pair_columns") or ("first side", "second side")
    return str(named[side])


def _path_above(found_pack: "FoundPack", segment: "LocatedSegment") -> list[int]:
    """Segments that a segment of a tree continues, the nearest first."""
    parents = found_pack.columns.get("segment_parents")
    if parents is None:
        return []
    above, at = [], int(parents[segment.place.segment])
    while at >= 0:
        above.append(at)
        at = int(parents[at])
    return above


def _as_dict(
    found_pack: "FoundPack", segment: "LocatedSegment", sources: "Sources", decoder: Any
) -> dict[str, object]:
    part = slice(segment.begin, segment.begin + (segment.real or segment.end - segment.begin))
    ids = found_pack.columns["tokens"][part].tolist()
    labels = found_pack.columns.get("labels")
    known = segment.document is not None and 0 <= segment.document < sources.total
    return {
        "pack": segment.place.pack,
        "segment": segment.place.segment,
        "document": segment.document,
        "row": sources.row(segment.document) if known and segment.document is not None else None,
        "turn": segment.turn,
        "start": segment.start,
        "tokens": ids,
        "labels": None if labels is None else labels[part].tolist(),
        "text": None if decoder is None else decoder.decode(ids, skip_special_tokens=False),
    }
