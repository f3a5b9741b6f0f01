"""`packprep show`."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from ..look.show import Shown, decoder_of, document_of, row_of, shown_document, shown_packs
from ..look.text import lines_of, pieces_of, special_ids
from ..schemas.manifest import Manifest, open_output
from ..support.errors import ConfigError

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")  # of segments, in turn


@click.command(context_settings={"max_content_width": 80})
@click.argument("place", metavar="OUT")
@click.argument("numbers", nargs=-1, type=click.IntRange(0), metavar="[PACK]...")
@click.option("--document", metavar="N|FILE:ROW", help="All segments of a row, from any pack.")
@click.option("--split", metavar="NAME", help="Split of the packs.  [the first]")
@click.option("--ids", is_flag=True, help="Print ids; needs no tokenizer.")
@click.option("--tokenizer", metavar="NAME", help="The tokenizer, if it has moved.")
@click.option("--json", "as_json", is_flag=True, help="Print ids, text and rows as JSON.")
def command(
    place: str,
    numbers: tuple[int, ...],
    document: str | None,
    split: str | None,
    ids: bool,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Print packs of OUT as text, each segment under the row that it is from.

    \b
    PACK: numbers of packs in their split, from 0.  [0]
    A line begins with the number of its first token. Tokens without a label are
    dim, or between ‹ and › where there is no colour; BOS and EOS are reversed.
    Example: packprep show packed 17
             packprep show packed --document docs/a.jsonl:1042
    """
    if document is not None and (numbers or split):
        raise ConfigError("--document shows a row from any pack; leave out PACK and --split")
    output = open_output(place)
    manifest = output.manifest
    if document is None:
        segments = shown_packs(output, split, numbers or (0,))
    else:
        segments = shown_document(output, row := document_of(manifest, document))
        if not segments:
            raise ConfigError(
                f"{row_of(manifest, row)} is in no pack: it was empty, skipped, dropped or not "
                f"drawn; packprep report {place} counts which"
            )
    decoder = None if ids else decoder_of(manifest, tokenizer)
    if as_json:
        lines = [json.dumps(_as_dict(each, manifest, decoder)) for each in segments]
        click.echo("[" + ",\n".join(lines) + "]")
        return
    _print_text(segments, manifest, decoder)


def _as_dict(each: Shown, manifest: Manifest, decoder: Any) -> dict[str, Any]:
    """A segment as plain JSON values."""
    ids = each.tokens.tolist()
    text = None if decoder is None else decoder.decode(ids, skip_special_tokens=False)
    made = {**each._asdict(), "row": row_of(manifest, each.document), "text": text}
    return {**made, "tokens": ids, "trained": each.trained.astype(int).tolist()}


def _part(each: Shown, manifest: Manifest) -> str:
    """The side of a pair, or the turn, that a segment is."""
    options = manifest.data["inputs"]["options"]
    if each.side is not None and each.side >= 0:
        return str(options.get("pairs", "first side,second side")).split(",")[-2:][each.side]
    return "" if each.part is None else f"{'turn' if 'turns' in options else 'part'} {each.part:,}"


def _print_text(segments: Sequence[Shown], manifest: Manifest, decoder: Any) -> None:
    """Segments with their text, pack by pack."""
    special = special_ids(manifest.data["inputs"]["tokens"].get("tokenizer", {}), decoder)
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for (split, pack), some in groupby(segments, key=lambda each: (each.split, each.pack)):
        of_pack = list(some)
        count = manifest.splits[split]["packs"]
        shown = f"{len(of_pack)} segment{'s' * (len(of_pack) != 1)}"
        title = f"pack {pack:,} of {count:,} of {split}, {of_pack[0].shard}: {shown}"
        click.secho(title, bold=True, color=colours)
        for each in of_pack:
            colour = _COLOURS[each.segment % len(_COLOURS)]
            click.secho(f"\n{_title(each, manifest)}", fg=colour, bold=True, color=colours)
            margin = max(len(str(len(each.tokens))), 4)
            width = max(shutil.get_terminal_size().columns - margin - 2, 20)
            pieces = pieces_of(each.tokens, each.trained, decoder, special)
            for line in lines_of(pieces, width):
                number = click.style(str(line[0].position).rjust(margin), dim=True)
                click.echo(f"{number}  {_styled(line, colour, colours)}", color=colours)
        click.echo()


def _title(each: Shown, manifest: Manifest) -> str:
    """The row of a segment and its place in the pack."""
    named = "" if each.document is None else f": {row_of(manifest, each.document)}"
    if part := _part(each, manifest):
        named += f" {part}"
    if each.start and each.side is None:  # of a second side it counts from the first one
        named += f" from its token {each.start:,}"
    if each.padding:
        named += f", {each.padding:,} of padding"
    last = each.first + len(each.tokens) - 1
    return f"segment {each.segment}, tokens {each.first:,} to {last:,} of the pack{named}"


def _styled(line: Iterable[Any], colour: str, colours: bool) -> str:
    """A line of pieces; brackets mark untrained text where there are no colours."""
    shown = []
    marks = groupby(line, key=lambda each: (each.trained, each.special and colours))
    for (trained, special), same in marks:
        text = "".join(each.text for each in same)
        if not trained and not colours:
            shown.append(f"‹{text}›")
        else:
            shown.append(click.style(text, fg=colour, dim=not trained, reverse=special))
    return "".join(shown)
