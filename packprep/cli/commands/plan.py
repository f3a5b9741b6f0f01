"""`packprep plan`: results of every choice of length, strategy and overflow, without a build."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.amount_types import ShareType
from packprep.cli.commands.build import Grouped, build_options, choices_of, merged_options
from packprep.cli.completion import of_names, of_paths
from packprep.cli.options import value_option
from packprep.cli.printing import print_grid, print_json, print_sentence
from packprep.config.aliases import default_overflow
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.amounts import count_of
from packprep.config.grammar.settings import OverflowSetting, StrategySetting
from packprep.engines.third_party import share_machine, tell_libraries
from packprep.support.errors import ConfigError, nearest

if TYPE_CHECKING:
    from packprep.preview.stored_lengths import Lengths
    from packprep.preview.sweep import Row

_FORMATS = {"count": ",", "share": ".3%", "number": ".2f"}  # of a figure, by unit
_SWEPT = ("max_length", "strategy", "overflow")
# A plan writes no output and runs on this machine.
_OUTPUT = ("output", "overwrite", "append", "shard_size", "shuffle")
_MIXED = ("phases",)
_MACHINES = ("executor", "part", "work_dir", "task_index", "num_tasks", "ray_address")
_OVERFLOWS = ("split", "truncate", "drop")  # "all"; error gives either their plan or none


def _known(key: str) -> tuple[str, ...]:
    """Choices of an option of a build."""
    [field] = [field for field in dataclasses.fields(BuildConfig) if field.name == key]
    return choices_of(field)


@build_options("sources", *_OUTPUT, *_MACHINES, *_SWEPT, *_MIXED)
@click.command(
    "plan",
    cls=Grouped,
    short_help="Compare pack lengths, strategies and overflow; write no shards.",
    epilog="Exit codes: 0 done, 2 wrong usage or bad input, 130 after Ctrl-C.",
)
@click.argument(
    "sources", nargs=-1, metavar="SOURCE...|TOKENS|OUT|LENGTHS.npy", shell_complete=of_paths()
)
@click.option(
    "--max-length", metavar="N,...", help="Tokens per pack; several with commas.  [default: 4096]"
)
@click.option(
    "--strategy",
    metavar="NAME,...",
    shell_complete=of_names([*_known("strategy"), "all"], several=True),
    help="Strategies, separated by commas, or all.  [default: best_fit]",
)
@click.option(
    "--overflow",
    metavar="NAME,...",
    shell_complete=of_names([*_known("overflow"), "all"], several=True),
    help="split, truncate, drop or error, separated by commas, or all.  [default: split; for pairs "
    "truncate]",
)
@value_option(
    "SHARE",
    "--sample",
    type=ShareType(checked=False),
    default=1.0,
    help="Share of the documents to tokenize, such as 0.05 or 5%.  [default: 1.0]",
)
@value_option(
    "N", "--global-batch-size", help="Packs per optimizer step; adds a column of steps per epoch."
)
@click.option(
    "--padding-of-batch",
    type=click.IntRange(1),
    metavar="N",
    help="Say how much of batches of N documents is padding, if they are not packed.",
)
@value_option("FILE", "-c", "--config", help="YAML file with the options of a build.")
@click.option("--json", is_flag=True, default=None, help="Print the plans as JSON.")
@click.option("-q", "--quiet", is_flag=True, default=None, help="Print no progress.")
def command(
    sources: tuple[str, ...],
    sample: float,
    global_batch_size: int | None,
    padding_of_batch: int | None,
    config: Path | None,
    **typed: Any,
) -> None:
    """Plan every combination of length, strategy and overflow.

    Text is tokenized, all documents or a --sample, and the tokens are kept only if --keep-tokens
    names a token store. Token stores, an output of packprep and an array of lengths (numpy.save)
    are read in seconds. Without --sample the figures are exactly those of a build with the same
    options.

    The best row for each goal is marked, unless several are equal. A plan that loses over 1% of
    the tokens is marked only if all plans do.

    \b
    Example:
      packprep plan docs/*.jsonl --tokenizer tokenizer.json --sample 0.05 \\
        --max-length 2048,8192 --strategy all
      packprep plan lengths.npy --max-length 4096,8192 --strategy all \\
        --overflow all --global-batch-size 256
    """
    options, run = merged_options(sources, config, typed, _SWEPT)
    choices = {
        name: str(options.pop(name)).split(",") if name in options else None for name in _SWEPT
    }
    lengths = [_integer(text) for text in choices["max_length"] or ["4096"]]
    strategies = _names("strategy", choices["strategy"] or ["best_fit"])
    tell_libraries()
    from packprep.packing.kernels.compiled import compiling
    from packprep.preview.lengths import read_lengths, write_rate
    from packprep.preview.stored_lengths import options_to_plan, store_tokens
    from packprep.preview.sweep import combinations, sweep
    from packprep.support.progress import open_progress

    if (tokens := store_tokens(options.get("sources"))) is not None:
        options = options_to_plan(tokens, options)
    overflows = _names("overflow", choices["overflow"] or [default_overflow(options)])
    configs, refused = combinations(options, lengths, strategies, overflows)
    base = configs[0]
    share_machine(base.num_proc, base.tokenizing)
    with open_progress(quiet=run["quiet"]) as progress, compiling(progress.say):
        with read_lengths(base, sample, progress, tokens) as measured:
            # Where no document is too long, every overflow is the same plan.
            fitting = {
                length
                for length in lengths
                if sample == 1 and measured.longest <= length and len(overflows) > 1
            }
            configs = [
                each
                for each in configs
                if each.max_length not in fitting or each.overflow == overflows[0]
            ]
            rows = sweep(
                measured,
                [each.pack_rules(measured.skipped) for each in configs],
                base.writing,
                lambda done, total: progress.advance("plan", done, total, "plans"),
            )
        rate = write_rate(measured, base.max_length, base.writing)
    if all(row.problem for row in rows):
        raise ConfigError(
            f"nothing can be planned: {rows[0].problem}; choose another --overflow or --strategy"
        )
    notes = _notes(measured, rate, refused, fitting) + _advice(rows, base)
    if padding_of_batch is not None:
        notes += _padding(measured, dict.fromkeys(lengths), padding_of_batch, base.seed)
    if run["json"]:
        print_json(_as_json(measured, rows, rate, notes, global_batch_size))
        return
    _print(measured, rows, rate, global_batch_size, fitting)
    for note in notes:
        print_sentence(note)


def _integer(text: str) -> int:
    if (count := count_of(text)) is None:
        raise ConfigError(
            f"--max-length is {text!r}, expected whole numbers separated by commas, such as "
            "2048,4Ki"
        )
    return count


def _names(key: str, typed: Sequence[str]) -> list[str]:
    """The typed names, each once, with "all" expanded."""
    known = _known(key)
    names = [
        each
        for name in map(str.strip, typed)
        for each in (_all(key, known) if name == "all" else [name])
    ]
    for name in names:
        if name.partition(":")[0] not in known:
            raise ConfigError(f"--{key} is {name!r}{nearest(name, [*known, 'all'])}")
    setting = StrategySetting if key == "strategy" else OverflowSetting
    return list(dict.fromkeys(str(setting.parse(key, name)) for name in names))


def _all(key: str, known: Sequence[str]) -> Sequence[str]:
    return _OVERFLOWS if key == "overflow" else known


def _build_seconds(measured: "Lengths", row: "Row", rate: float) -> float:
    return (measured.tokenize_seconds or 0.0) + row.seconds + row.bytes / rate


def _notes(
    measured: "Lengths", rate: float, refused: Sequence[str], fitting: set[int]
) -> list[str]:
    """Notes on how the figures were measured, and on plans left out."""
    tokenizing = (
        f"tokenizing as measured here ({measured.tokenize_seconds:,.1f} s for all text), "
        if measured.tokenize_seconds is not None
        else "no tokenizing, because the tokens exist, "
    )
    notes = [
        f"build s: {tokenizing}planning as measured here, "
        f"writing at {rate / 1e6:,.0f} MB/s, as measured here with a shard of zeros"
    ]
    if measured.share < 1:
        notes.append(
            f"sample of {measured.share:.3g} of the documents: counts are scaled to all of them; "
            "± is half of a 95% confidence interval"
        )
    if fitting:
        names = ", ".join(f"{length:,}" for length in sorted(fitting))
        notes.append(
            f"no document is longer than {names} tokens: every overflow gives the same plan there"
        )
    return notes + [f"left out: {reason}" for reason in refused]


def _advice(rows: Sequence["Row"], base: BuildConfig) -> list[str]:
    """Notes on plans whose packs are not full, and on min_pack_tokens; each cause once."""
    from packprep.reports.utilization import causes, outside_range

    notes = [
        f"{row.max_length:,} {row.strategy} {row.overflow}: packs are filled to "
        f"{row.figures['utilization']:.0%} only: {reason}"
        for row in rows
        if not row.problem
        for reason in causes(
            row.figures["utilization"],
            packs=row.figures["packs"],
            gap_share=row.figures["gap_share"],
            max_length=row.max_length,
            strategy=row.strategy,
            max_segments_per_pack=base.max_segments_per_pack,
            grouped=base.group_column is not None,
            may_split=row.overflow != "split" and not base.pair_columns,
        )
    ]
    lengths = dict.fromkeys(row.max_length for row in rows)
    ranges = (outside_range(base.min_pack_tokens, length) for length in lengths)
    return notes + [note for note in ranges if note is not None]


def _padding(measured: "Lengths", lengths: Iterable[int], batch: int, seed: int) -> list[str]:
    """A note for each max_length on the padding of batches that are not packed."""
    from packprep.packing.padding import batch_padding

    windows = [window.documents.length for window in measured.windows]
    of_lengths = ((length, batch_padding(windows, batch, length, seed)) for length in lengths)
    return [
        f"{length:,}: {padding.share:.1%} of batches of {batch:,} documents, each padded to the "
        f"longest, is padding: {padding.times:.2f} places for each token; of full attention "
        f"matrices {padding.attention_share:.1%}"
        for length, padding in of_lengths
    ]


def _as_json(
    measured: "Lengths", rows: Sequence["Row"], rate: float, notes: Sequence[str], batch: int | None
) -> dict[str, object]:
    from packprep.preview.sweep import best

    planned = [
        row.as_dict()
        | ({"steps_per_epoch": row.figures["packs"] // batch} if batch else {})
        | {"build_seconds": round(_build_seconds(measured, row, rate), 3)}
        for row in rows
    ]
    return {
        "from": measured.origin,
        "documents": measured.documents,
        "sample": measured.share,
        "notes": list(notes),
        "plans": planned,
        "best": best(rows),
    }


def _print(
    measured: "Lengths", rows: Sequence["Row"], rate: float, batch: int | None, fitting: set[int]
) -> None:
    from packprep.execute.disk_space import size_text
    from packprep.packing.figures import FIGURES
    from packprep.preview.sweep import best, ties

    goals: dict[int, list[str]] = {}
    equal = ties(rows)
    for goal, number in best(rows).items() if len(rows) > 1 else ():
        if goal not in equal:
            goals.setdefault(number, []).append(goal)
    sampled = measured.share < 1
    shares = any(row.tokens_shared for row in rows)
    columns = {row.name: row.plan for row in FIGURES if row.plan}
    heads = ["length", "strategy", "overflow", *columns.values()]
    heads += [*(["factor"] if shares else []), "cut", *(["steps"] if batch else [])]
    heads += ["bytes", "build s", "best for"]
    cells = []
    for number, row in enumerate(rows):
        overflow = "any" if row.max_length in fitting else row.overflow
        named = [f"{row.max_length:,}", row.strategy, overflow]
        if row.problem:
            cells.append([*named, *[""] * (len(heads) - 4), row.problem])
            continue
        cells.append(
            [
                *named,
                *(_figure(row, name, sampled=sampled) for name in columns),
                *([f"{_factor(row):.2f}"] if shares else []),
                f"{row.cut:,}",
                *([f"{row.figures['packs'] // batch:,}"] if batch else []),
                size_text(row.bytes),
                f"{_build_seconds(measured, row, rate):,.1f}",
                ", ".join(goals.get(number, [])),
            ]
        )
    colours = ["green" if number in goals else None for number in range(len(rows))]
    title = f"{measured.origin}: {measured.documents:,} documents" + (
        " of a sample" if sampled else ""
    )
    print_grid(title, heads, cells, keys=3, left=(1, 2, len(heads) - 1), colours=colours)
    if equal:
        print_sentence(f"best for {', '.join(equal)}: several plans are equal, so none is marked")


def _figure(row: "Row", name: str, *, sampled: bool) -> str:
    """Text of a figure of a plan; of a sample, with half of its interval."""
    from packprep.packing.figures import figure_row

    errors = {"utilization": row.utilization_error, "tokens_lost_share": row.loss_error}
    text = f"{row.figures[name]:{_FORMATS[figure_row(name).unit]}}"
    return f"{text} ± {100 * errors[name]:.3f}" if sampled and name in errors else text


def _factor(row: "Row") -> float:
    """Tokens of rows for each token that is written, with share_prefixes."""
    return (row.tokens_packed + row.tokens_shared) / max(row.tokens_packed, 1)
