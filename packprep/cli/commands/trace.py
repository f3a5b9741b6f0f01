"""`packprep trace`: from a pack to its rows, and from a row to the packs that hold it."""

import json
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.output_type import STORE_OPTION, OutputType, with_store
from packprep.cli.printing import print_columns
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.lookup import LocatedSegment
    from packprep.inspect.policy import Sources
    from packprep.schemas.manifest import Output

SPLIT_OPTION = click.option(
    "--split", metavar="NAME", help="Split that holds the pack.  [default: the first]"
)
SHARD_OPTION = click.option(
    "--shard", metavar="FILE", help="Number packs within this shard, as verify does."
)


@click.command("trace", short_help="List the rows in a pack, or the packs that hold a row.")
@click.argument("output", metavar="OUT", type=OutputType())
@click.option(
    "--pack", type=click.IntRange(0), metavar="P", help="Number of a pack in its split, from 0."
)
@click.option(
    "--segment", type=click.IntRange(0), metavar="S", help="Only this segment of the pack, from 0."
)
@click.option("--document", metavar="SOURCE:ROW", help="Row of a source, from 0; or a document id.")
@SPLIT_OPTION
@SHARD_OPTION
@STORE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    output: "Output",
    pack: int | None,
    segment: int | None,
    document: str | None,
    split: str | None,
    shard: str | None,
    store: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the rows of the sources that are in a pack of OUT, or the packs that hold a row.

    Rows and packs are numbered from 0. Give either --pack or --document. turn is the message that
    is trained, where a document is one turn of a row (--turns). Of trees, the rows are listed, and
    segment is the number of a row in its pack.

    \b
    Example:
      packprep trace packed --pack 17 --segment 2
      packprep trace packed --document docs/a.jsonl:1042
    """
    from packprep.inspect.lookup import document_number, find_documents, find_pack
    from packprep.inspect.policy import Sources
    from packprep.schemas.manifest import read_manifest

    if (pack is None) == (document is None):
        raise ConfigError("give either --pack or --document; see packprep trace --help")
    output = with_store(output, store)
    manifest = read_manifest(output)
    sources = Sources(manifest)
    if pack is not None:
        segments = list(find_pack(output, manifest, pack, split, shard, rows=True).segments)
        if segment is not None:
            if segment >= len(segments):
                raise ConfigError(
                    f"pack {pack} has {len(segments)} segments, numbered from 0, so there is no "
                    f"segment {segment}"
                )
            segments = [segments[segment]]
    else:
        number = document_number(sources, str(document))
        segments = find_documents(output, manifest, [number])
        if not segments and not as_json:
            click.echo(
                f"{sources.row(number)} is in no pack: it was empty, skipped or dropped; "
                "report.json counts which"
            )
            return
    has_turns = any(column.name == "turn_ids" for column in manifest.columns)
    if not as_json:  # a column of dashes would say nothing
        has_turns = any(located.turn is not None for located in segments)
    has_epochs = manifest.epochs > 1
    rows = [
        _row(located, sources, has_turns=has_turns, has_epochs=has_epochs) for located in segments
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        print_columns(rows, keys=3 + has_epochs)


def _row(
    segment: "LocatedSegment", sources: "Sources", *, has_turns: bool, has_epochs: bool
) -> dict[str, Any]:
    """A segment as a row of the table; keys are its columns."""
    document = segment.document
    known = document is not None and document >= 0
    source, row = None, None
    if known and document is not None and document < sources.total:
        source, row = sources.place(document)
    return {
        "split": segment.place.split,
        **({"epoch": segment.place.epoch} if has_epochs else {}),
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
