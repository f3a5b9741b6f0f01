"""`packprep equate`: the recipe for packs that trains like an unpacked recipe."""

from typing import TYPE_CHECKING

import click

from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store
from packprep.cli.printing import print_grid, print_json, print_sentence
from packprep.reports.trainers import TRAINERS

if TYPE_CHECKING:
    from packprep.reports.recipe import LossMean
    from packprep.schemas.manifest import Output


@click.command("equate", short_help="Translate a recipe of an unpacked run into one for packs.")
@output_argument()
@value_option("N", "--micro-batch", required=True, help="Sequences that a rank computes at a time.")
@value_option("N", "--accumulation", default=1, help="Micro-batches of a step.  [default: 1]")
@value_option("N", "--ranks", default=1, help="Number of ranks.  [default: 1]")
@value_option("N", "--epochs", default=1, help="Number of epochs.  [default: 1]")
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    metavar="RATE",
    required=True,
    help="Highest learning rate.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Steps in which the learning rate rises.  [default: 0]",
)
@click.option(
    "--loss",
    type=click.Choice(["token", "sequence", "batch"]),
    default="token",
    help="Mean of the loss of a step: over all its trained tokens, over the means of its "
    "sequences, or over the means of its micro-batches.  [default: token]",
)
@click.option(
    "--for",
    "trainer",
    metavar="TRAINER",
    type=click.Choice([*TRAINERS]),
    help=f"Print only the settings for packs, as they are called by one of {', '.join(TRAINERS)}.",
)
@STORE_OPTION
@json_option("the recipes as JSON")
def command(
    output: "Output",
    loss: "LossMean",
    trainer: str | None,
    store: tuple[str, ...],
    as_json: bool,
    **recipe: "int | float",
) -> None:
    """Translate the recipe of an unpacked run into one that trains the same on the packs of OUT.

    The options are those of the unpacked run. Its settings, used on packs, would put more
    sequences into a step, and so make fewer steps of an epoch. In the translated recipe a step
    holds as many sequences on average. Where that is not a whole number of packs on each rank, the
    learning rate follows the batch: by its square root, for Adam and AdamW. A schedule that ends
    with the last step needs no change.

    The split "train" is read. Each segment counts as a sequence.

    \b
    Example:
      packprep equate packed --micro-batch 4 --accumulation 8 --ranks 2 \\
        --epochs 3 --learning-rate 2e-5 --warmup-steps 50
      packprep equate packed --micro-batch 4 --learning-rate 2e-5 --for axolotl
    """
    from packprep.reports.recipe import (
        Recipe,
        equal_recipe,
        packed_settings,
        read_contents,
        recipe_notes,
        recipe_table,
    )

    contents = read_contents(with_store(output, store))
    equal = equal_recipe(contents, Recipe(**recipe), loss)  # type: ignore[arg-type]
    if as_json:
        trainers = {name: each.named(packed_settings(equal)) for name, each in TRAINERS.items()}
        print_json(equal.as_dict() | {"trainers": trainers})
    elif trainer is not None:
        click.echo("\n".join(TRAINERS[trainer].lines(packed_settings(equal))))
    else:
        title = (
            f"{output}: {contents.total:,} sequences in {contents.packs:,} packs, "
            f"{contents.mean:.1f} in each"
        )
        heads = ("", "unpacked", "packs, same settings", "packs, equal step")
        print_grid(title, heads, recipe_table(equal))
        for note in recipe_notes(equal):
            print_sentence(note)
