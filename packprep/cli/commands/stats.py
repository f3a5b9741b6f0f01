"""`packprep stats`: the contents of outputs, or the progress of an unfinished build."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.completion import of_paths
from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_at, with_store
from packprep.cli.printing import print_grid, print_json, print_sentence, print_table
from packprep.cli.side_by_side import print_side_by_side
from packprep.config.grammar.settings import model_cost
from packprep.schemas.plans.cost import Cost
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.histograms import Measured
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


@click.command("stats", short_help="Show the contents of outputs, or the progress of a build.")
@click.argument("outputs", metavar="OUT...", nargs=-1, required=True, shell_complete=of_paths())
@value_option("N", "--global-batch-size", help="Packs per optimizer step, over all ranks.")
@value_option("N", "--world-size", default=1, help="Number of ranks.  [default: 1]")
@value_option(
    "FILE",
    "--cost-of",
    help="config.json of a model, or its folder: FLOPs of an epoch, and costs of packs for it.",
)
@STORE_OPTION
@value_option(
    "DIR",
    "--work-dir",
    help="--work-dir of the unfinished build of an output in a store.  [default: here]",
)
@click.option(
    "--all", "everything", is_flag=True, help="Of several OUT, also show numbers that are equal."
)
@json_option("everything as JSON, with exact counts")
def command(
    outputs: tuple[str, ...],
    global_batch_size: int | None,
    world_size: int,
    cost_of: Path | None,
    store: tuple[str, ...],
    work_dir: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Show the report of OUT, each of its sources, histograms of its shards, and steps per epoch.

    Steps are those of the split "train" with --global-batch-size packs each. Packs left over at
    the end of an epoch make no step, as in PackedLoader.

    Of a build that is not finished, show how far it is. It is running, stopped (run the same
    command to resume), or waiting (for other tasks of its array, or for --part merge).

    Several OUT are shown side by side: the options and numbers that differ, and whether they are
    better or worse than those of the first. An OUT may then be a report.json too.

    \b
    Example:
      packprep stats packed --global-batch-size 256 --world-size 8
      packprep stats packed-best_fit packed-greedy
    """
    if len(outputs) > 1:
        alone = {"--store": store, "--global-batch-size": global_batch_size, "--cost-of": cost_of}
        if option := next((option for option, value in alone.items() if value), None):
            raise ConfigError(f"{option} is for one output; give one, or leave it out")
        places = list(map(output_at, outputs))
        print_side_by_side(places, everything=everything, as_json=as_json)
        return
    from packprep.inspect.histograms import measure_output
    from packprep.output.progress import build_progress
    from packprep.schemas.errors import FormatError
    from packprep.schemas.manifest import read_manifest

    (name,) = outputs
    try:
        output = output_at(name)
        read_manifest(output)
    except FormatError:
        progress = build_progress(name, work_dir)
        if progress is None:
            raise
        if as_json:
            print_json({"progress": progress})
        else:
            _print_progress(name, progress)
        return
    # None replaces an output of a store.
    progress = build_progress(name) if isinstance(output, Path) else None
    output = with_store(output, store)
    cost = None if cost_of is None else model_cost(cost_of)
    measured = measure_output(output, cost=cost)
    facts = _facts(output, measured, global_batch_size, world_size, cost)
    if as_json:
        print_json({"progress": progress} | facts)
        return
    if progress is not None:
        _print_progress(f"{name} is finished; a build that is not", progress)
        click.echo()
    _print_facts(output, measured, facts)


def _print_progress(title: str, progress: Mapping[str, object]) -> None:
    def text(key: str) -> str:
        value = progress[key]
        return f"{value:,}" if type(value) is int and key != "pid" else str(value)

    print_table(title, [(key.replace("_", " "), text(key)) for key in progress])


def _facts(
    output: "Output",
    measured: "Measured",
    global_batch_size: int | None,
    world_size: int,
    cost: Cost | None,
) -> dict[str, Any]:
    """Everything that is shown of a finished output. builds: 1, and one more for each append."""
    from packprep.inspect.report_file import read_report
    from packprep.inspect.stats import summaries, training
    from packprep.schemas.manifest import read_manifest

    manifest = read_manifest(output)
    return {
        "report": read_report(output),
        "counts": summaries(measured),
        "training": training(output, manifest, measured, global_batch_size, world_size, cost),
        "builds": len(manifest.data["inputs"].get("generations", ())) or 1,
    }


def _print_facts(output: "Output", measured: "Measured", facts: dict[str, Any]) -> None:
    from packprep.inspect.stats import source_rows, training_rows
    from packprep.reports.charts import histograms, text_bars
    from packprep.reports.closing import table

    appended = [("builds", f"{facts['builds']:,}")] if facts["builds"] > 1 else []
    print_table(str(output), [*table(facts["report"]), *appended])
    click.echo()
    print_grid("sources", _SOURCE_HEADS, source_rows(facts["report"]))
    for histogram in histograms(measured):
        click.echo()
        print_sentence(f"{histogram.title}: {histogram.note}", "italic")
        for line in text_bars(histogram):
            click.echo(line)
    click.echo()
    print_table("training", training_rows(facts["training"]))
