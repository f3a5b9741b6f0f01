"""`packprep show`: a pack as readable text."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.amount_types import CountType
from packprep.cli.commands.trace import SHARD_OPTION, SPLIT_OPTION
from packprep.cli.completion import of_paths
from packprep.cli.output_type import STORE_OPTION, OutputType, with_store
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.lookup import FoundPack, LocatedSegment
    from packprep.inspect.policy import Sources
    from packprep.schemas.manifest import Manifest, Output

# Digest of the tokenizer in a build of token ids.
_NO_TOKENIZER = hashlib.sha256(b"").hexdigest()
# In turn, so that neighbouring segments have different colours.
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@click.command("show", short_help="Print a pack as text, document by document.")
@click.argument("output", metavar="OUT", type=OutputType())
@click.option(
    "--pack",
    type=click.IntRange(0),
    metavar="P",
    help="Number of a pack in its split, from 0.  [default: 0]",
)
@click.option(
    "--doc",
    metavar="ROW",
    help="Show all segments of a document instead: a document id, or SOURCE:ROW.",
)
@click.option("--raw", is_flag=True, help="Print token ids instead of text; needs no tokenizer.")
@click.option(
    "--head", type=CountType(1), metavar="N", help="Only the first N tokens of each segment."
)
@SPLIT_OPTION
@SHARD_OPTION
@click.option(
    "--tokenizer",
    metavar="PATH|NAME",
    shell_complete=of_paths(),
    help="The tokenizer, if it has moved since the build.",
)
@STORE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print segments, ids and text as JSON.")
def command(
    output: "Output",
    pack: int | None,
    doc: str | None,
    raw: bool,
    head: int | None,
    split: str | None,
    shard: str | None,
    tokenizer: str | None,
    store: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print a pack of OUT, each segment under its document.

    Every line begins with the position of its first token. Each segment has a colour; BOS, EOS
    and other special tokens are highlighted. Where there are labels, tokens without loss are dim,
    or between ‹ and › if there is no colour.

    \b
    Example:
      packprep show packed --pack 17
    """
    from packprep.inspect.lookup import document_number, find_documents, find_pack
    from packprep.inspect.policy import Sources
    from packprep.schemas.manifest import read_manifest

    if pack is not None and doc is not None:
        raise ConfigError("--pack and --doc exclude each other; give only one of them")
    output = with_store(output, store)
    manifest = read_manifest(output)
    sources = Sources(manifest)
    if doc is None:
        first = find_pack(output, manifest, pack or 0, split, shard)
        shown = [(first, segment) for segment in first.segments]
    else:
        places = find_documents(output, manifest, [document_number(sources, doc)])
        if not places:
            raise ConfigError(
                f"{sources.row(document_number(sources, doc))} is in no pack: it was empty, "
                "skipped or dropped; report.json counts which"
            )
        packs = {
            place.place: find_pack(output, manifest, place.place.pack, place.place.split, rows=True)
            for place in places
        }
        shown = [(packs[place.place], place) for place in places]
    decoder = None if raw else _decoder(manifest, tokenizer)
    if as_json:
        click.echo(
            json.dumps(
                [_as_dict(each, segment, sources, decoder) for each, segment in shown], indent=2
            )
        )
        return
    if doc is None:
        used = len(first.columns["tokens"])
        packs_of_split = f"{manifest.splits[first.split].packs:,} packs of {first.split}"
        if manifest.epochs > 1:
            packs_of_split += f", in epoch {first.segments[0].place.epoch}"
        segments = f"{len(shown)} segments" if len(shown) != 1 else "1 segment"
        click.secho(
            f"pack {first.number} of {packs_of_split}: {used:,} of {manifest.max_length:,} tokens, "
            f"{segments}",
            bold=True,
        )
    special = _special(manifest, decoder)
    for number, (found_pack, segment) in enumerate(shown):
        colour = _COLOURS[number % len(_COLOURS)]
        click.echo()
        click.secho(
            _title(
                segment,
                sources,
                _side(found_pack, segment, manifest),
                with_pack=doc is not None,
                above=_path_above(found_pack, segment),
            ),
            fg=colour,
            bold=True,
        )
        _print_segment(found_pack, segment, decoder, special, colour, head)


def _decoder(manifest: "Manifest", moved: str | None) -> Any:
    """Tokenizer that turns ids into text.

    None where rows were token ids and no tokenizer is given; then ids are shown.
    """
    from tokenizers import Tokenizer

    from packprep.engines.tokenizer import load_tokenizer, recorded_tokenizer

    if manifest.data["inputs"]["tokenizer"].get("sha256") != _NO_TOKENIZER:
        return Tokenizer.from_buffer(
            recorded_tokenizer(manifest, moved, bos="none", eos="none").json
        )
    return (
        None
        if moved is None
        else Tokenizer.from_buffer(load_tokenizer(moved, bos="none", eos="none").json)
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


def _title(
    segment: "LocatedSegment",
    sources: "Sources",
    side: str,
    *,
    with_pack: bool,
    above: Sequence[int] = (),
) -> str:
    """Title of a segment; one that continues others is indented, so trees are an outline."""
    place = "  " * len(above) + (f"pack {segment.place.pack} " if with_pack else "")
    follows = f" after segment {above[0]}" if above else ""
    title = (
        f"{place}segment {segment.place.segment}{follows}, tokens {segment.begin:,} to "
        f"{segment.end - 1:,} of the pack"
    )
    if segment.document is None:
        return title
    if segment.document < 0:
        return f"{title}: filler"
    start = f" from its token {segment.start:,}" if segment.start else ""
    if side:  # tokens of the second side count from the first one's
        start = f", {side}"
    padding = segment.end - segment.begin - segment.real
    turn = f" {sources.part_name} {segment.turn}" if segment.turn is not None else ""
    return f"{title}: {sources.row(segment.document)}{turn}{start}" + (
        f", {padding} of padding" if padding else ""
    )


def _special(manifest: "Manifest", decoder: Any) -> frozenset[int]:
    """Ids of the special tokens that are known."""
    tokenizer = manifest.data["inputs"]["tokenizer"]
    ids = {token["id"] for end in ("bos", "eos") if (token := tokenizer.get(end))}
    if decoder is not None:
        ids |= {id_ for id_, token in decoder.get_added_tokens_decoder().items() if token.special}
    return frozenset(ids)


def _print_segment(
    found_pack: "FoundPack",
    segment: "LocatedSegment",
    decoder: Any,
    special: frozenset[int],
    colour: str,
    head: int | None,
) -> None:
    from packprep.inspect.show import lines, pieces_as_ids, pieces_as_text

    count = segment.real or segment.end - segment.begin  # filler has no real tokens
    count = min(count, head or count)
    part = slice(segment.begin, segment.begin + count)
    ids, labels = found_pack.columns["tokens"][part], found_pack.columns.get("labels")
    labels = None if labels is None else labels[part]
    pieces = (
        pieces_as_ids(ids, special, labels)
        if decoder is None
        else pieces_as_text(ids, decoder, special, labels)
    )
    margin = max(len(str(count)), 4)
    for line in lines(pieces, max(shutil.get_terminal_size().columns - margin - 2, 20)):
        text = "".join(
            _styled(list(same), trained, is_special, colour)
            for (trained, is_special), same in groupby(
                line, key=lambda piece: (piece.trained, piece.special)
            )
        )
        click.echo(f"{click.style(str(line[0].position).rjust(margin), dim=True)}  {text}")
    if count < segment.real:
        click.secho(f"{'':{margin}}  and {segment.real - count:,} more tokens", dim=True)


def _styled(pieces: list[Any], trained: bool, special: bool, colour: str) -> str:
    text = "".join(piece.text for piece in pieces)
    if not trained:
        # The brackets are for readers without colour; with it they would be in the way.
        return click.style(text, dim=True) if sys.stdout.isatty() else f"‹{text}›"
    return click.style(text, fg=colour, reverse=special)


def _as_dict(
    found_pack: "FoundPack", segment: "LocatedSegment", sources: "Sources", decoder: Any
) -> dict[str, Any]:
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
