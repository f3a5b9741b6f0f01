"""`packprep stats`: the contents of an output."""

import json
from typing import TYPE_CHECKING

import click

from packprep.cli.amount_types import CountType
from packprep.cli.output_type import STORE_OPTION, OutputType, with_store
from packprep.cli.printing import print_grid, print_sentence, print_table

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output

_SOURCE_HEADS = (
    "",
    "documents",
    "empty",
    "skipped",
    "dropped",
    "tokens in",
    "packed",
    "lost",
    "BOS",
    "EOS",
)


@click.command("stats", short_help="Show the contents of an output, and its steps per epoch.")
@click.argument("output", metavar="OUT", type=OutputType())
@click.option(
    "--global-batch-size",
    type=CountType(1),
    metavar="N",
    help="Packs per optimizer step, over all ranks.",
)
@click.option(
    "--world-size",
    type=CountType(1),
    default=1,
    metavar="N",
    help="Number of ranks.  [default: 1]",
)
@STORE_OPTION
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything as JSON, with exact counts."
)
def command(
    output: "Output",
    global_batch_size: int | None,
    world_size: int,
    store: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the report of OUT, each of its sources, histograms of its shards, and steps per epoch.

    Steps are those of the split "train" with --global-batch-size packs each. Packs left over at
    the end of an epoch make no step, as in PackedLoader.

    \b
    Example:
      packprep stats packed --global-batch-size 256 --world-size 8
    """
    from packprep.inspect import stats
    from packprep.inspect.histograms import measure_output
    from packprep.inspect.report_file import read_report
    from packprep.output.report import table
    from packprep.schemas.manifest import read_manifest

    output = with_store(output, store)
    report, manifest = read_report(output), read_manifest(output)
    measured = measure_output(output)
    facts = stats.training(output, manifest, measured, global_batch_size, world_size)
    if as_json:
        result = {"report": report, "counts": stats.summaries(measured), "training": facts}
        click.echo(json.dumps(result, indent=2))
        return
    print_table(str(output), table(report))
    click.echo()
    print_grid("sources", _SOURCE_HEADS, stats.source_rows(report))
    for histogram in stats.histograms(measured):
        click.echo()
        print_sentence(f"{histogram.title} ({histogram.summary})", "italic")
        for line in histogram.lines():
            click.echo(line)
    click.echo()
    print_table("training", stats.training_rows(facts))
