"""`packprep plan`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..config.options import GROUPS
from ..look.advice import name_of, notes
from ..look.plan import CHOICES, Origin, Planned, origin_of, sweep
from ..look.recipe import Equal, equal_recipe, read_recipe, recipe_notes, recipe_table, settings
from ..plan.account import BATCH, FIGURES, MEANS
from ..support.errors import ConfigError
from .options import amount_of, config_of, progress_of
from .options import command as make
from .printing import print_grid, print_sentences


def run(
    config_file: str | None,
    quiet: bool,
    sample: str | None,
    global_batch_size: str | None,
    padding_of_batch: str | None,
    recipe: str | None,
    ranks: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Plan, and print a table and the recipe for packs."""
    typed = {name: given.pop(name) for name in CHOICES}
    choices = {name: text.split(",") for name, text in typed.items() if text}
    config = config_of(given, config_file)
    if recipe is None and ranks is not None:
        raise ConfigError("--ranks can do nothing without --recipe; leave it out")
    if recipe is not None and any(len(values) > 1 for values in choices.values()):
        raise ConfigError("--recipe is for one plan; name one length, strategy and overflow")
    unpacked = None if recipe is None else read_recipe(Path(recipe), amount_of("ranks", ranks))
    padded, rows = amount_of("padding_of_batch", padding_of_batch), amount_of("sample", sample)
    docs, in_step = padded or BATCH, amount_of("global_batch_size", global_batch_size)
    with progress_of(quiet) as progress, origin_of(config, rows, docs, progress) as origin:
        plans = sweep(origin, choices, progress)
    equal = None
    if unpacked is not None:
        equal = equal_recipe(unpacked, plans[0].report, origin.scale, pairs=origin.pairs)
    if as_json:
        print(json.dumps(_as_json(origin, plans, in_step, equal), indent=1))
        return
    _print_plans(origin, plans, in_step)
    if rows is not None and origin.share == 1:
        print("--sample takes whole splits, about 16 MB of text: all of it is planned")
    print_sentences(notes(origin, plans, padded))
    if equal is not None:
        _print_recipe(equal, plans[0].config.max_length)


def _print_plans(origin: Origin, plans: Sequence[Planned], batch: int | None) -> None:
    """Print the table. batch: packs of a step."""
    first = next(plan.report for plan in plans if plan.report)
    documents = first["documents"]["in"] * origin.scale
    tokens = first["tokens"]["tokens_in"] * origin.scale
    print(f"{origin.name}: {documents:,.0f} documents, {tokens:,.0f} tokens")
    heads, rows = ["length", "strategy", "overflow", "packs", "utilization", "lost"], []
    for plan in plans:
        if report := plan.report:
            row = [*name_of(plan).split(), f"{report['packs'] * origin.scale:,.0f}"]
            row += [f"{report[name]:.2%}" for name in ("utilization", "tokens_lost_share")]
            row += [f"{number:,.0f}" for number in _steps(report, origin.scale, batch).values()]
            rows.append(row)
    print_grid([*heads, *(["docs/step", "steps"] if batch else [])], rows, left=3)


def _steps(report: Mapping[str, Any], scale: float, batch: int | None) -> dict[str, int]:
    """Documents of a step, and steps, of so many packs a step; nothing for None."""
    if batch is None:
        return {}
    documents = round(report["segments"] / max(report["packs"], 1) * batch)
    steps = int(report["splits"]["train"]["packs"] * scale // batch)
    return {"documents_per_step": documents, "steps": steps}


def _print_recipe(equal: Equal, max_length: int) -> None:
    print(f"\n{equal.sequences:,} {equal.unit} in {equal.packs:,} packs, {equal.mean:.1f} in each")
    heads = ["", "unpacked", "packs, same settings", "packs, equal step"]
    print_grid(heads, recipe_table(equal), left=1)
    print_sentences(recipe_notes(equal, max_length))
    print("the recipe for packs:")
    for name, value in settings(equal).items():
        print(f"  {name}: {value}")


def _as_json(
    origin: Origin, plans: Sequence[Planned], batch: int | None, equal: Equal | None
) -> dict[str, Any]:
    """Figures of report.json, and the recipe; counts of a sample are scaled to the whole."""
    made: dict[str, Any] = {"from": origin.name, "sample": origin.share, "plans": []}
    names = [name for name in (*FIGURES, *MEANS) if name not in ("bos_rate", "eos_rate")]
    for plan in plans:
        figures = {name: plan.report[name] for name in names if name in plan.report}
        for name, value in figures.items():
            figures[name] = round(value * origin.scale) if isinstance(value, int) else value
        figures |= _steps(plan.report, origin.scale, batch) if plan.report else {}
        named = dict(zip(CHOICES, plan.choice, strict=True))
        made["plans"].append({**named, **figures, "problem": plan.problem})
    if equal is not None:
        made["recipe"] = {**settings(equal), "steps": equal.packed.steps(equal.packs)}
    return made


command = make(
    "plan",
    run,
    (
        *("tokenizer", "max_length", "strategy", "overflow", "seed"),
        *(name for group in ("Text", "Chats", "Pairs, ids, pieces") for name in GROUPS[group]),
        *(*GROUPS["Packs"], "weights", "max_tokens", "multiple", "holdout", "limit"),
        *("on_error", "num_proc"),
    ),
    """\b
    Plan the packs of SOURCE...: text, a store, an output, or lengths of documents
    (.npy, or numbers in .txt or .json). Of lists every combination is planned.
    Example: packprep plan tokens --max-length 2048,8192 --overflow split,truncate
             packprep plan docs/*.jsonl --tokenizer gpt2 --sample 100000
    """,
)
command.params += [
    click.Option(["--sample"], metavar="ROWS", help="Plan about so many rows only."),
    click.Option(["--global-batch-size"], metavar="PACKS", help="Of a step: adds its documents."),
    click.Option(["--padding-of-batch"], metavar="N", help="Padding of N documents, not packed."),
    click.Option(["--recipe"], metavar="FILE", help="Translate an unpacked run's YAML or JSON."),
    click.Option(["--ranks"], metavar="N", help="Processes of that run.  [1]"),
    click.Option(["--json", "as_json"], is_flag=True, help="Print all of it as JSON."),
]
