"""Text of segments on the terminal: lines that begin with the position of their first token."""

import hashlib
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packprep.inspect.lookup import FoundPack, LocatedSegment
    from packprep.schemas.manifest import Manifest
    from packprep.schemas.sources import Sources

# Digest of the tokenizer in a build of token ids.
_NO_TOKENIZER = hashlib.sha256(b"").hexdigest()


def decoder_of(manifest: "Manifest", moved: str | None) -> Any:
    """Tokenizer that turns ids into text.

    None if rows were token ids and no tokenizer is given; then ids are shown.
    """
    from tokenizers import Tokenizer

    from packprep.engines.tokenizer import load_tokenizer, recorded_tokenizer

    if manifest.data["inputs"]["tokenizer"].get("sha256") != _NO_TOKENIZER:
        loaded = recorded_tokenizer(manifest, moved, bos="none", eos="none")
    elif moved is not None:
        loaded = load_tokenizer(moved, bos="none", eos="none")
    else:
        return None
    return Tokenizer.from_buffer(loaded.json)


def segment_title(
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


def special_ids(manifest: "Manifest", decoder: Any) -> frozenset[int]:
    """Ids of the special tokens that are known."""
    tokenizer = manifest.data["inputs"]["tokenizer"]
    ids = {token["id"] for end in ("bos", "eos") if (token := tokenizer.get(end))}
    if decoder is not None:
        ids |= {id_ for id_, token in decoder.get_added_tokens_decoder().items() if token.special}
    return frozenset(ids)


def print_segment(
    found_pack: "FoundPack",
    segment: "LocatedSegment",
    decoder: Any,
    special: frozenset[int],
    colour: str,
    head: int | None,
) -> None:
    """Print the tokens of a segment. head: only the first ones. decoder, special: see above."""
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
