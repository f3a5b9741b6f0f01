"""`packprep export`: an output in the format of another trainer."""

from typing import TYPE_CHECKING, Any

import click

from packprep.cli.options import QUIET_OPTION, STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store
from packprep.cli.printing import print_json, print_table
from packprep.config.grammar.spellings import gone_format
from packprep.exports.registry import EXPORT_FORMATS

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output

_WIDTH = max(map(len, EXPORT_FORMATS))
_LINES = "\n".join(f"{name:{_WIDTH}}  {format_.words}" for name, format_ in EXPORT_FORMATS.items())
_HELP = f"""Write the packs of OUT, in the same order, or its documents, as files that another
trainer reads.

\b
{_LINES}

The export is absent or complete, and the same command resumes it. Equal outputs give equal
bytes. export.json lists every file with its digest. An output of --share-prefixes needs
--unshared: other trainers know no trees.

\b
Example:
  packprep export packed --to megatron -o packed-megatron
"""


class _Format(click.Choice[str]):
    """A format, and the answer to one of earlier versions."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if answer := gone_format(value):
            self.fail(answer, param, ctx)
        return super().convert(value, param, ctx)


@click.command("export", short_help="Write an output in the format of another trainer.", help=_HELP)
@output_argument("source")
@click.option(
    "--to",
    required=True,
    metavar="FORMAT",
    type=_Format(EXPORT_FORMATS),
    help=f"One of {', '.join(EXPORT_FORMATS)}.",
)
@value_option(
    "DIR|URL",
    "-o",
    "--output",
    required=True,
    help="Directory to write, or a folder of a store such as s3://bucket/exported.",
)
@click.option(
    "--epoch",
    type=click.IntRange(0),
    metavar="E",
    help="The packing to write, from 0, of an output that has one for each epoch.",
)
@click.option(
    "--unshared",
    is_flag=True,
    help="Write the rows of trees, each with its whole prefix, packed again.",
)
@value_option(
    "DIR",
    "--work-dir",
    help="Directory in which an export to a store is made before it is sent.  [default: here]",
)
@click.option(
    "--unproven-store",
    is_flag=True,
    help="Write to a store that the tests of packprep have not run with.",
)
@STORE_OPTION
@json_option("export.json")
@QUIET_OPTION
def command(
    source: "Output",
    to: str,
    output: str,
    store: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Write the packs of OUT in another format."""
    from packprep.exports.export import export
    from packprep.support.progress import open_progress

    with open_progress(quiet=quiet) as progress:
        manifest = export(with_store(source, store), output, to, progress=progress, **options)
    if as_json:
        print_json(manifest.data)
    elif not quiet:
        packs = "{packs:,} packs, {segments:,} segments, {tokens:,} tokens"
        words = "{packs:,} rows, {tokens:,} tokens" if EXPORT_FORMATS[to].of_documents else packs
        rows: list[tuple[str, str]] = [
            (split, words.format(**counts)) for split, counts in manifest.splits.items()
        ]
        size = sum(each["bytes"] for each in manifest.files.values())
        rows.append(("files", f"{len(manifest.files):,} ({size:,} bytes)"))
        print_table(f"{output}, {to}", rows)
