"""`packprep equate`: the recipe for packs that trains like an unpacked recipe."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.completion import of_paths
from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_at, with_store
from packprep.cli.printing import print_grid, print_json, print_sentence
from packprep.reports.trainers import TRAINERS
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.inspect.contents import PackContents
    from packprep.reports.recipe import EqualRecipe, LossMean


@click.command("equate", short_help="Translate a recipe of an unpacked run into one for packs.")
@click.argument("packs", metavar="OUT|PLAN.json", shell_complete=of_paths())
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
    packs: str,
    loss: "LossMean",
    trainer: str | None,
    store: tuple[str, ...],
    as_json: bool,
    **recipe: "int | float",
) -> None:
    """Translate the recipe of an unpacked run into one that trains the same on packs.

    The packs are those of OUT, or of a plan of sources or of a token store: PLAN.json is what
    packprep plan --json prints, or --dry-run --json of build and pack. - is standard input.

    The options are those of the unpacked run. Its settings, used on packs, would put more
    sequences into a step, and so make fewer steps of an epoch. In the translated recipe a step
    holds as many sequences on average. Where that is not a whole number of packs on each rank, the
    learning rate follows the batch: by its square root, for Adam and AdamW. A schedule that ends
    with the last step needs no change.

    The split "train" is read. A sequence is a segment, a row of a tree, or a preference pair. Each
    phase has a recipe of its own.

    \b
    Example:
      packprep equate packed --micro-batch 4 --accumulation 8 --ranks 2 \\
        --epochs 3 --learning-rate 2e-5 --warmup-steps 50
      packprep equate packed --micro-batch 4 --learning-rate 2e-5 --for axolotl
      packprep pack tokens --max-length 8192 --dry-run --json | \\
        packprep equate - --micro-batch 4 --learning-rate 2e-5
    """
    from packprep.reports.recipe import (
        Recipe,
        equal_recipes,
        loader_notes,
        packed_settings,
        recipe_notes,
        recipe_table,
        spelling_for,
    )

    equals = equal_recipes(_packs(packs, store), Recipe(**recipe), loss)  # type: ignore[arg-type]
    if as_json:
        print_json(_as_json(equals))
        return
    for name, equal in equals.items():
        if trainer is not None:
            lines = spelling_for(trainer, equal).lines(packed_settings(equal))
            click.echo("\n".join([*([f"# {name}"] if len(equals) > 1 else []), *lines]))
            continue
        contents = equal.contents
        title = (
            f"{name}: {contents.total:,} {equal.sequences} in {contents.packs:,} packs, "
            f"{contents.mean:.1f} in each"
        )
        heads = ("", "unpacked", "packs, same settings", "packs, equal step")
        print_grid(title, heads, recipe_table(equal))
        for note in recipe_notes(equal):
            print_sentence(note)
    if trainer is None:
        for note in loader_notes(equals.values()):
            print_sentence(note)


def _packs(name: str, store: Sequence[str]) -> "dict[str, PackContents]":
    """Contents of the packs of an output, or of a plan in a file or on standard input."""
    from packprep.reports.recipe import packs_of_output, packs_of_plan
    from packprep.schemas.files import MANIFEST
    from packprep.tokens.store_entries import is_store

    path = Path(name)
    if name == "-" or path.is_file():
        if store:
            raise ConfigError(f"{name} is a plan, so it needs no token store; leave out --store")
        if name == "-":
            return packs_of_plan(sys.stdin.buffer.read(), "standard input")
        return packs_of_plan(path.read_bytes(), name)
    if not (path / MANIFEST).exists() and is_store(path):
        raise ConfigError(
            f"{name} is a token store, whose tokens are in no packs yet; plan them: packprep pack "
            f"{name} --max-length N --dry-run --json | packprep equate - ..."
        )
    return packs_of_output(with_store(output_at(name), store))


def _as_json(equals: "Mapping[str, EqualRecipe]") -> dict[str, object]:
    """The recipe, or one for each phase, with the settings of trainers."""
    from packprep.reports.recipe import packed_settings, readers_of

    recipes = {
        name: equal.as_dict()
        | {
            "trainers": {
                trainer: each.named(packed_settings(equal))
                for trainer, each in readers_of(equal).items()
            }
        }
        for name, equal in equals.items()
    }
    first, *others = recipes.values()
    return {"phases": [first, *others]} if others else first
