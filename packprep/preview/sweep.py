"""Many plans of the same documents: max_length x strategy x overflow, from lengths alone.

Each plan uses the planning functions, documents, windows and seeds of a build. Without sampling,
the figures of a row are exactly those of the build. Segments are cut and bounded once for all
strategies that share them. A plan of 10 million documents takes 0.5 to 1 second on one core.

A sample is repeated up to the size of the whole before planning, because few documents pack worse
than many. A jackknife estimates the error of its shares: ten plans, each without another tenth of
the sample.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packprep.config.aliases import respelled
from packprep.config.build_config import BuildConfig
from packprep.config.pack_rules import PackRules
from packprep.config.stages import Cutting, Writing
from packprep.inspect.contents import PackContents, joined_contents, training_split
from packprep.output.shard_writer import ShardLayout
from packprep.packing.account import Sums
from packprep.packing.figures import FIGURES
from packprep.packing.strategies import ONE_BY_ONE
from packprep.preview.output_bytes import output_bytes
from packprep.preview.stored_lengths import Lengths
from packprep.preview.window_plan import contents_of, documents_cut, window_sums
from packprep.support.errors import ConfigError
from packprep.support.hashing import Purpose, mix, stream
from packprep.windows.planner import (
    CutWindow,
    cut_window,
    plan_cut,
    plan_window,
    remainders_of_runs,
    resized,
    shuffled,
)
from packprep.windows.segments import TooLongError

_PLANNED = {row.name: row for row in FIGURES if row.plan is not None}
TILED = 10_000_000  # documents up to which a sample is repeated
_GROUPS = 10  # of the jackknife
_T = 2.262  # 97.5 % of Student's t with _GROUPS - 1 degrees of freedom


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of one plan. problem: the reason if there is no plan; all figures are then 0.

    figures: those of report.json that a plan knows.
    cut: documents that are split or lose tokens at an end.
    contents: of the packs of the training split; None if there are none.
    bytes: size of the shards.
    seconds: time to plan.
    utilization_error, loss_error: half a 95% interval, 0 without sampling. Counts of a sample are
    scaled to the whole.
    """

    max_length: int
    strategy: str
    overflow: str
    problem: str = ""
    figures: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(_PLANNED, 0))
    utilization_error: float = 0.0
    loss_error: float = 0.0
    tokens_in: int = 0
    tokens_packed: int = 0
    tokens_shared: int = 0
    cut: int = 0
    contents: PackContents | None = None
    bytes: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        contents = None if self.contents is None else self.contents.as_dict()
        values = vars(self) | {"contents": contents}
        return {**values, **values.pop("figures")}


def combinations(
    options: Mapping[str, Any],
    lengths: Sequence[int],
    strategies: Sequence[str],
    overflows: Sequence[str],
) -> tuple[list[BuildConfig], list[str]]:
    """A config for each combination, lengths first, and reasons why some are not possible.

    Raises the last reason if no combination is possible.
    """
    for length in lengths:
        BuildConfig(max_length=length)  # raises for a length that no strategy allows
    configs, refused = [], []
    error: ConfigError | None = None
    for length, overflow, strategy in itertools.product(lengths, overflows, strategies):
        try:
            choice = {"max_length": length, "strategy": strategy, "overflow": overflow}
            if len(strategies) > 1 and strategy not in ONE_BY_ONE:
                choice["shuffle_documents"] = False
            configs.append(BuildConfig(**respelled({**options, **choice})))
        except ConfigError as reason:
            error = reason
            refused.append(f"{length:,} {strategy} {overflow}: {reason.args[0]}")
    if error is not None and not configs:
        raise error
    return configs, refused


def sweep(
    lengths: Lengths,
    choices: Sequence[PackRules],
    writing: Writing,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Row]:
    """Rows of the choices, in their order.

    report: called with the number of finished plans and of all plans.
    """
    # A copy of a row would share all its tokens.
    copies = 1 if choices[0].cutting.share_prefixes else _copies(lengths)
    repeated = replace(lengths, windows=[window.repeated(copies) for window in lengths.windows])
    rows: dict[int, Row] = {}
    by_cut = sorted(range(len(choices)), key=lambda number: _cut_key(choices[number].cutting))
    for _, group in itertools.groupby(by_cut, key=lambda number: _cut_key(choices[number].cutting)):
        numbers = list(group)
        planned = _plan_group(repeated, [choices[number] for number in numbers], writing)
        for number, row in zip(numbers, planned, strict=True):
            if lengths.share < 1 and not row.problem:
                row = _with_errors(row, lengths, choices[number], writing)
            rows[number] = _scaled(row, lengths.scale / copies)
            report(len(rows), len(choices))
    return [rows[number] for number in range(len(choices))]


def _cut_key(cutting: Cutting) -> tuple[int, str, bool]:
    """Key of the segments: choices with equal keys cut documents in the same way."""
    return cutting.max_length, cutting.overflow, cutting.strategy == "wrapped"


def _copies(lengths: Lengths) -> int:
    return max(1, min(round(1 / lengths.share), TILED // max(lengths.documents, 1)))


def _plan_group(lengths: Lengths, choices: Sequence[PackRules], writing: Writing) -> Iterator[Row]:
    """Rows of choices that share their segments, which are kept if there is one window."""
    windows, tokenizer = lengths.windows, lengths.tokenizer
    training = training_split(window.split for window in windows)
    kept: CutWindow | None = None
    for rules in choices:
        cutting, ordering = rules.cutting, rules.ordering
        if cutting.packer.name == "balanced" and len(windows) > len(
            {window.split for window in windows}
        ):
            yield Row(
                **_named(cutting),
                problem=f"balanced packs one window and the input makes {len(windows)}",
            )
            continue
        sums, divided, size = Sums(), 0, 0
        contents: list[PackContents] = []
        layout = ShardLayout.of(rules, writing, tokenizer, lengths.carried)
        started = time.perf_counter()
        try:
            changes = _changes(lengths, rules, writing)
            for window, change in zip(windows, changes, strict=True):
                seed = window.seed(ordering.seed)
                documents, stored = shuffled(window.documents, rules, seed)
                cut = kept or cut_window(documents, tokenizer, rules)
                kept = cut if len(windows) == 1 else None
                plan = plan_cut(documents, cut, rules, seed, stored=stored)
                written = resized(plan.packs, change, ordering.pack_order.name)
                of_window = window_sums(plan, written, cutting.max_length)
                sums += of_window
                divided += documents_cut(plan)
                if window.split == training:
                    tokens = of_window.tokens_kept
                    contents.append(contents_of(training, written, cutting.max_length, tokens))
                size += output_bytes(
                    layout,
                    writing.shard_size,
                    tokens=of_window.tokens_packed,
                    segments=of_window.segments,
                    packs=of_window.packs,
                    rows=int(written.rows_per_pack.sum()),
                )
        except TooLongError as error:
            yield Row(**_named(cutting), problem=f"a document has {error.tokens:,} tokens")
            continue
        except ConfigError as error:
            yield Row(**_named(cutting), problem=error.args[0])
            continue
        seconds = time.perf_counter() - started
        row = row_of(cutting, sums, divided, size, seconds)
        yield replace(row, contents=joined_contents(contents))


def _named(cutting: Cutting) -> dict[str, Any]:
    return {name: getattr(cutting, name) for name in ("max_length", "strategy", "overflow")}


def _changes(lengths: Lengths, rules: PackRules, writing: Writing) -> list[int]:
    """Packs to add to or drop from each window, as in a build.

    With packs_multiple_of, all windows are planned once more.
    """
    if writing.multiple.packs == 1:
        return [0] * len(lengths.windows)
    counts = []
    for window in lengths.windows:
        seed = window.seed(rules.ordering.seed)
        counts.append(len(plan_window(window.documents, lengths.tokenizer, rules, seed).packs))
    splits = [window.split for window in lengths.windows]
    return remainders_of_runs(splits, counts, writing.multiple.packs, writing.multiple.remainder)


def row_of(cutting: Cutting, sums: Sums, cut: int, size: int, seconds: float = 0.0) -> Row:
    """Row of the sums of all windows. cut: see `documents_cut`. size: bytes of the shards."""
    return Row(
        **_named(cutting),
        figures={name: row.value(sums) for name, row in _PLANNED.items()},
        tokens_in=sums.tokens_in,
        tokens_packed=sums.tokens_packed,
        tokens_shared=sums.shared,
        cut=cut,
        bytes=size,
        seconds=seconds,
    )


def _with_errors(row: Row, lengths: Lengths, rules: PackRules, writing: Writing) -> Row:
    """Add half a 95% interval of both shares: a jackknife over ten groups of documents.

    This is the delete-a-group jackknife of Quenouille and Tukey. A sample without replacement has
    sqrt(1 - share) of that error.
    """
    key, windows = stream(rules.ordering.seed, Purpose.PLAN_ERROR), lengths.windows
    groups = [mix(key, np.arange(len(window.documents))) % np.uint64(_GROUPS) for window in windows]
    shares = []
    for group in range(_GROUPS):
        rest = [
            window.take(groups_of_window != group)
            for window, groups_of_window in zip(windows, groups, strict=True)
        ]
        [part] = _plan_group(replace(lengths, windows=rest), [rules], writing)
        shares.append((part.figures["utilization"], part.figures["tokens_lost_share"]))
    spread = np.sqrt((_GROUPS - 1) * np.var(np.array(shares), axis=0) * (1 - lengths.share))
    return replace(row, utilization_error=float(_T * spread[0]), loss_error=float(_T * spread[1]))


def _scaled(row: Row, scale: float) -> Row:
    if scale == 1:
        return row
    counts = ("tokens_in", "tokens_packed", "tokens_shared", "cut", "bytes")
    figures = {
        name: round(value * scale) if _PLANNED[name].unit == "count" else value
        for name, value in row.figures.items()
    }
    return replace(
        row,
        figures=figures,
        contents=None if row.contents is None else row.contents.scaled(scale),
        **{name: round(getattr(row, name) * scale) for name in counts},
        seconds=row.seconds * scale,
    )


_MOST_LOST = 0.01  # share of tokens that a best row may lose


_MEASURES: dict[str, Callable[[Row], float]] = {
    "padding": lambda row: -row.figures["utilization"],
    "loss": lambda row: row.figures["tokens_lost"],
    "cuts": lambda row: row.cut,
    "bias": lambda row: abs(row.figures["bias"]),
    "straggler": lambda row: row.figures["straggler"],
    "bytes": lambda row: row.bytes / max(1, row.tokens_in - row.figures["tokens_lost"]),
}
"""The figure to minimize, by goal."""


def best(rows: Sequence[Row]) -> dict[str, int]:
    """Number of the best row for each goal; {} without rows.

    Ties go to the row that loses, pads and cuts less. A row that loses more than 1% of the tokens
    is never best, unless all rows do: dropping documents makes all other figures look good.
    padding: highest utilization; loss: fewest tokens lost; cuts: fewest documents cut; bias:
    lengths mix most; straggler: most even steps; bytes: smallest size per kept token.
    """
    planned = _comparable(rows)

    def after(row: Row) -> tuple[float, ...]:
        goals = ("loss", "padding", "cuts", "bias", "straggler")
        return tuple(_MEASURES[goal](row) for goal in goals)

    return {
        goal: min(planned, key=lambda number: (measure(rows[number]), *after(rows[number])))
        for goal, measure in _MEASURES.items()
        if planned
    }


def ties(rows: Sequence[Row]) -> list[str]:
    """Goals for which several rows are exactly equal.

    `best` chooses one of these by their other figures.
    """
    planned = [rows[number] for number in _comparable(rows)]
    values = {goal: sorted(map(measure, planned)) for goal, measure in _MEASURES.items()}
    return [goal for goal, least in values.items() if len(least) > 1 and least[0] == least[1]]


def _comparable(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows that can be best."""
    planned = [number for number, row in enumerate(rows) if not row.problem]
    lost = {number: rows[number].figures["tokens_lost_share"] for number in planned}
    return [number for number in planned if lost[number] <= _MOST_LOST] or planned
