"""`packprep spike`: the documents whose losses were out of line while training."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store
from packprep.cli.printing import print_columns, print_json, print_sentence
from packprep.cli.segment_text import decoder_of, print_segment, special_ids
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.spikes import Spike
    from packprep.schemas.manifest import Output
    from packprep.schemas.sources import Sources


@click.command("spike", short_help="Name the documents of losses that are out of line.")
@click.argument("log", type=click.Path(exists=True, path_type=Path))
@output_argument()
@click.option("--steps", metavar="FIRST:LAST", help="Only spikes at these steps.")
@value_option("FILE", "--rows", help="Write the rows, a SOURCE:ROW a line, to leave them out.")
@value_option("N", "--head", default=40, show_default=True, help="Tokens of each text.")
@value_option("PATH|NAME", "--tokenizer", help="The tokenizer, if it has moved since the build.")
@STORE_OPTION
@json_option("spikes as JSON")
def command(
    log: Path,
    output: "Output",
    steps: str | None,
    rows: Path | None,
    head: int,
    tokenizer: str | None,
    store: tuple[str, ...],
    as_json: bool,
) -> None:
    """Name the documents of OUT whose losses in LOG, the folder of a LossLog, are out of line.

    A loss is compared with its peers: segments of the same source and about the same length,
    trained at about the same time. usual is their median. score is the distance from it in log
    loss, in robust standard deviations; the limit follows from the tail of all scores, so that
    sound documents reach it in about one log of a hundred. before is the last time that the
    segment was trained before, in an earlier epoch, and whether it was a spike then.

    --rows writes the rows for PackedLoader(skip_rows=FILE), which leaves them out of the loss, and
    for packprep build --skip-rows FILE, which leaves them out of the packs.

    \b
    Example:
      packprep spike losses packed --steps 41000:41200 --rows broken.txt
    """
    from packprep.inspect.lookup import find_pack
    from packprep.inspect.spikes import find_spikes
    from packprep.schemas.manifest import read_manifest
    from packprep.schemas.sources import Sources

    first, last = _range(steps)
    output = with_store(output, store)
    manifest = read_manifest(output)
    sources = Sources(manifest)
    split, spikes = find_spikes(log, output, manifest)
    spikes = [spike for spike in spikes if first <= spike.step <= last]
    names = {spike.document: "{}:{}".format(*sources.place(spike.document)) for spike in spikes}
    if rows is not None:
        rows.write_text("".join(f"{names[document]}\n" for document in sorted(names)), "utf-8")
    if as_json:
        print_json([_as_dict(spike, sources) for spike in spikes])
        return
    if not spikes:
        print_sentence("no loss is out of line")
        return
    print_columns([_as_row(spike, sources) for spike in spikes], keys=3)
    decoder = decoder_of(manifest, tokenizer)
    special = special_ids(manifest, decoder)
    for spike in spikes:
        click.echo()
        click.secho(f"step {spike.step:,}: {sources.row(spike.document)}", bold=True)
        pack = find_pack(output, manifest, spike.pack, split)
        print_segment(pack, pack.segments[spike.segment], decoder, special, "cyan", head)


def _range(steps: str | None) -> tuple[int, float]:
    """First and last step of an option."""
    if steps is None:
        return 0, float("inf")
    first, _, last = steps.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise ConfigError(f"--steps is {steps!r}; expected FIRST:LAST, such as 41000:41200")
    return int(first), int(last)


def _as_row(spike: "Spike", sources: "Sources") -> dict[str, object]:
    source, row = sources.place(spike.document)
    before = "-"
    if spike.before is not None:
        spiked = ", a spike" if spike.before.spiked else ""
        before = f"{spike.before.loss:.2f} at step {spike.before.step:,}{spiked}"
    return {
        "step": spike.step,
        "pack": spike.pack,
        "segment": spike.segment,
        "loss": f"{spike.loss:.2f}",
        "usual": f"{spike.usual:.2f}",
        "score": f"{spike.score:.1f}",
        "tokens": spike.tokens,
        "source": source,
        "row": row,
        "before": before,
    }


def _as_dict(spike: "Spike", sources: "Sources") -> dict[str, object]:
    """Numbers that JSON has no word for are null."""
    source, row = sources.place(spike.document)
    finite = {
        name: value if abs(value) < float("inf") else None
        for name, value in (("loss", spike.loss), ("score", spike.score), ("usual", spike.usual))
    }
    before = None if spike.before is None else spike.before._asdict()
    return {**vars(spike), **finite, "source": source, "row": row, "before": before}
