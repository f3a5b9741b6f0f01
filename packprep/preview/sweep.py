"""Many plans of the same documents.

Every max_length with every strategy and overflow, from lengths alone.

Each plan is made by the functions a build plans with, on the same documents, windows and seeds, so
where nothing is sampled a row's figures are those of the artifact, to the last digit. Segments are
cut and bounded once for all strategies that share them. 10 million documents take some half a
second to a second a plan, on one core.

A sample is planned as often over as makes it as large as the whole, because few documents pack
worse than many. How far its shares may be off is told by a jackknife: ten plans that leave out a
tenth of the sample each.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.engines.tokenizer import Tokenizer
from packprep.output.shard_writer import ShardLayout, column_bytes
from packprep.packing.account import Dropped, Sums
from packprep.packing.kernels.gather import Pointers
from packprep.packing.plan import PackPlan
from packprep.schemas.columns import Column
from packprep.support.errors import ConfigError
from packprep.support.hashing import Purpose, mix, stream
from packprep.windows.documents import Documents
from packprep.windows.placement import Packs
from packprep.windows.planner import cut_documents, plan_segments, remainders, resized, window_seed
from packprep.windows.segments import DocumentAccount, Segments, TooLongError

TILED = 10_000_000  # documents up to which a sample is repeated
_GROUPS = 10  # of the jackknife
_MUCH = 0.01  # of the tokens lost
_T = 2.262  # 97.5 % of Student's t with _GROUPS - 1 degrees of freedom


@dataclass(frozen=True)
class WindowDocuments:
    """Documents that are planned together: window `number` of a split."""

    split: str
    number: int
    documents: Documents

    @property
    def tokens(self) -> int:
        return int(self.documents.length.sum(dtype=np.int64))

    def take(self, kept: NDArray[Any]) -> "WindowDocuments":
        """The documents that a mask or an array of places keeps."""
        return replace(self, documents=self.documents.take(kept))

    def repeated(self, copies: int) -> "WindowDocuments":
        return self if copies == 1 else self.take(np.tile(np.arange(len(self.documents)), copies))


def of_lengths(split: str, number: int, length: NDArray[np.int32]) -> WindowDocuments:
    """A window of documents of which the lengths alone are known, [documents], 0 for none."""
    source = np.zeros(len(length), np.int32)
    documents = Documents(
        id=np.arange(len(length)),
        tokens=Pointers.null(len(length)),
        length=length,
        source=source,
        group=None,
    )
    return WindowDocuments(split, number, documents)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan. problem: why there is none, and then every figure is 0.

    utilization, bias, straggler, gap_share: as in report.json. cut: documents that do not stay in
    one piece, or lose tokens at an end. bytes: of the columns. seconds: of planning.
    utilization_error, loss_error: half a 95% interval, 0 where nothing was sampled; counts of a
    sample are scaled to the whole.
    """

    max_length: int
    strategy: str
    overflow: str
    problem: str = ""
    utilization: float = 0.0
    utilization_error: float = 0.0
    tokens_in: int = 0
    tokens_packed: int = 0
    tokens_lost: int = 0
    tokens_lost_share: float = 0.0
    loss_error: float = 0.0
    cut: int = 0
    packs: int = 0
    bound: int = 0
    gap: int = 0
    gap_share: float = 0.0
    bias: float = 0.0
    straggler: float = 0.0
    bytes: int = 0
    seconds: float = 0.0


def combinations(
    options: Mapping[str, Any],
    lengths: Sequence[int],
    strategies: Sequence[str],
    overflows: Sequence[str],
) -> tuple[list[BuildConfig], list[str]]:
    """The options with every combination, lengths first; and why some cannot be.

    Raises the last reason if none can.
    """
    for length in lengths:
        BuildConfig(max_length=length)  # a length that no strategy can have is wrong by itself
    configs, refused = [], []
    error: ConfigError | None = None
    for length, overflow, strategy in itertools.product(lengths, overflows, strategies):
        try:
            choice = {"max_length": length, "strategy": strategy, "overflow": overflow}
            configs.append(BuildConfig(**{**options, **choice}))
        except ConfigError as found:
            error = found
            refused.append(f"{length:,} {strategy} {overflow}: {found}")
    if error is not None and not configs:
        raise error
    return configs, refused


def sweep_configs(
    windows: Sequence[WindowDocuments],
    configs: Sequence[BuildConfig],
    tokenizer: Tokenizer,
    carried: Sequence[Column] = (),
    *,
    share: float = 1.0,
    scale: float = 1.0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Row]:
    """A row per config, in their order.

    tokenizer: only its BOS and EOS matter. carried: columns of the documents beside their tokens.
    share: of the documents that were sampled. scale: how many times larger the whole is than the
    sample. report: hears how many plans are done, and of how many.
    """
    copies = _copies(windows, share)
    whole = [window.repeated(copies) for window in windows]
    rows: dict[int, Row] = {}
    by_cut = sorted(range(len(configs)), key=lambda number: _cut_key(configs[number]))
    for _, group in itertools.groupby(by_cut, key=lambda number: _cut_key(configs[number])):
        numbers = list(group)
        planned = _plan_group(whole, [configs[number] for number in numbers], tokenizer, carried)
        for number, row in zip(numbers, planned, strict=True):
            if share < 1 and not row.problem:
                row = _with_errors(row, windows, configs[number], tokenizer, share)
            rows[number] = _scaled(row, scale / copies)
            report(len(rows), len(configs))
    return [rows[number] for number in range(len(configs))]


def _cut_key(config: BuildConfig) -> tuple[int, str, bool]:
    """Configs with equal keys have the same segments."""
    return config.max_length, config.overflow, config.strategy == "wrapped"


def _copies(windows: Sequence[WindowDocuments], share: float) -> int:
    documents = sum(len(window.documents) for window in windows)
    return max(1, min(round(1 / share), TILED // max(documents, 1)))


def _plan_group(
    windows: Sequence[WindowDocuments],
    configs: Sequence[BuildConfig],
    tokenizer: Tokenizer,
    carried: Sequence[Column] = (),
) -> Iterator[Row]:
    """Rows of configs that share their segments.

    These are kept between them where there is one window.
    """
    kept: CutWindow | None = None
    for config in configs:
        if config.strategy == "balanced" and len(windows) > len(
            {window.split for window in windows}
        ):
            yield Row(
                **_named(config),
                problem=f"balanced packs one window and the input makes {len(windows)}",
            )
            continue
        sums, divided = Sums(), 0
        started = time.perf_counter()
        try:
            changes = _changes(windows, config, tokenizer)
            for window, change in zip(windows, changes, strict=True):
                cut = kept or CutWindow(*cut_documents(window.documents, tokenizer, config))
                plan = cut.plan(window, config)
                if len(windows) == 1:
                    kept = replace(cut, bound=None if config.strategy == "wrapped" else plan.bound)
                sums += plan.sums(config, change)
                divided += plan.cut
        except TooLongError as error:
            yield Row(**_named(config), problem=f"a document has {error.tokens:,} tokens")
            continue
        except ConfigError as error:
            yield Row(**_named(config), problem=str(error))
            continue
        columns = ShardLayout.from_config(config, tokenizer, carried).columns
        yield row_of(config, sums, divided, columns, time.perf_counter() - started)


def _named(config: BuildConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("max_length", "strategy", "overflow")}


@dataclass(frozen=True)
class CutWindow:
    """Segments of a window that several strategies share, and their bound once a plan found it."""

    segments: Segments
    account: DocumentAccount
    bound: int | None = None

    def plan(self, window: WindowDocuments, config: BuildConfig) -> "Planned":
        seed = window_seed(config, window.number, int(window.split == "validation"))
        segments, account, plan = plan_segments(
            window.documents, self.segments, self.account, config, seed
        )
        packs = Packs(
            documents=window.documents,
            segments=segments,
            padded=plan.lengths,
            order=plan.order,
            offsets=plan.offsets,
        )
        return Planned(packs, plan, account, plan.bound if self.bound is None else self.bound)


@dataclass(frozen=True)
class Planned:
    """A window planned."""

    packs: Packs
    plan: PackPlan
    account: DocumentAccount
    bound: int

    def sums(self, config: BuildConfig, change: int = 0) -> Sums:
        """Its sums, as a build counts them. change: packs to add or leave out."""
        written, account = resized(self.packs, change, config), self.account
        lengths, padded = written.segments.lengths, written.padded
        real = (
            written.order[written.order >= 0] if change else slice(None)
        )  # without a change all segments are there
        kept, fillers = (
            int(lengths[real].sum(dtype=np.int64)),
            int((written.order < 0).sum()) if change else 0,
        )
        stored = int(padded[real].sum(dtype=np.int64)) + fillers
        dropped = Counter[str](
            {Dropped(reason): _sum(counts) for reason, counts in account.dropped.items()}
        )
        dropped[Dropped.REMAINDER] = _sum(lengths) - kept
        packs, segments = len(written), len(written.order)
        return Sums(
            tokens_in=_sum(written.documents.length),
            overlap=_sum(account.overlap),
            continuation_bos=_sum(account.continuation_bos),
            filler=stored - kept,
            tokens_packed=stored,
            truncated=_sum(account.truncated),
            dropped=dropped,
            segments=segments,
            max_length=config.max_length,
            packs=packs,
            planned=len(self.packs),
            bound=self.bound,
            bias=[self.plan.bias * segments],
            straggler=[self.plan.straggler(config.balance_ranks, config.cost()) * packs],
        )

    @property
    def cut(self) -> int:
        """Documents in several pieces, and those with tokens cut off."""
        segments = self.packs.segments
        cut = self.account.truncated > 0
        cut[segments.document[1:][segments.document[1:] == segments.document[:-1]]] = True
        return int(np.count_nonzero(cut))


def _sum(counts: NDArray[Any]) -> int:
    return int(counts.sum(dtype=np.int64))


def _changes(
    windows: Sequence[WindowDocuments], config: BuildConfig, tokenizer: Tokenizer
) -> list[int]:
    """Packs to add to or leave out of each window, as a build does.

    Where that is asked, all are planned once more.
    """
    changes = [0] * len(windows)
    if config.packs_multiple_of == 1:
        return changes
    for split in dict.fromkeys(window.split for window in windows):
        mine = [place for place, window in enumerate(windows) if window.split == split]
        cuts = [
            CutWindow(*cut_documents(windows[place].documents, tokenizer, config)) for place in mine
        ]
        counts = [
            len(cut.plan(windows[place], config).packs)
            for place, cut in zip(mine, cuts, strict=True)
        ]
        for place, change in zip(mine, remainders(counts, config), strict=True):
            changes[place] = change
    return changes


def row_of(
    config: BuildConfig, sums: Sums, cut: int, columns: Sequence[Column], seconds: float = 0.0
) -> Row:
    """The row of the sums of all windows. cut: see `Planned`. columns: of the shards."""
    return Row(
        **_named(config),
        utilization=sums.utilization,
        tokens_in=sums.tokens_in,
        tokens_packed=sums.tokens_packed,
        tokens_lost=sums.tokens_lost,
        tokens_lost_share=sums.tokens_lost_share,
        cut=cut,
        packs=sums.packs,
        bound=sums.bound,
        gap=sums.gap,
        gap_share=sums.gap_share,
        bias=sums.mean_bias,
        straggler=sums.mean_straggler,
        bytes=column_bytes(columns, sums.tokens_packed, sums.segments, sums.packs),
        seconds=seconds,
    )


def _with_errors(
    row: Row,
    windows: Sequence[WindowDocuments],
    config: BuildConfig,
    tokenizer: Tokenizer,
    share: float,
) -> Row:
    """The row with half a 95% interval of its two shares: a jackknife over ten groups of documents.

    Quenouille and Tukey's delete-a-group jackknife; a sample without replacement is off by sqrt(1 -
    share) of that.
    """
    key = stream(config.seed, Purpose.PLAN_ERROR)
    groups = [mix(key, np.arange(len(window.documents))) % np.uint64(_GROUPS) for window in windows]
    found = []
    for group in range(_GROUPS):
        rest = [window.take(of != group) for window, of in zip(windows, groups, strict=True)]
        [part] = _plan_group(rest, [config], tokenizer)
        found.append((part.utilization, part.tokens_lost_share))
    spread = np.sqrt((_GROUPS - 1) * np.var(np.array(found), axis=0) * (1 - share))
    return replace(row, utilization_error=float(_T * spread[0]), loss_error=float(_T * spread[1]))


def _scaled(row: Row, scale: float) -> Row:
    if scale == 1:
        return row
    counts = ("tokens_in", "tokens_packed", "tokens_lost", "cut", "packs", "bound", "gap", "bytes")
    return replace(
        row,
        **{name: round(getattr(row, name) * scale) for name in counts},
        seconds=row.seconds * scale,
    )


_MEASURES: dict[str, Callable[[Row], float]] = {
    "padding": lambda row: -row.utilization,
    "loss": lambda row: row.tokens_lost,
    "cuts": lambda row: row.cut,
    "bias": lambda row: abs(row.bias),
    "straggler": lambda row: row.straggler,
    "bytes": lambda row: row.bytes / max(1, row.tokens_in - row.tokens_lost),
}
"""The figure that is least in the best row, by goal."""


def best(rows: Sequence[Row]) -> dict[str, int]:
    """The number of the best row for each goal.

    Of equal rows the one that loses, pads and cuts less. {} without rows.

    A row that loses more than 1% of the tokens is best for nothing, unless all do: a plan can be
    made to look good in every other column by throwing documents away. padding: highest
    utilization; loss: fewest tokens lost; cuts: fewest documents not in one piece; bias: lengths
    mix most; straggler: most even steps; bytes: smallest on disk for what is kept of the tokens.
    """
    planned = _comparable(rows)

    def after(row: Row) -> tuple[float, ...]:
        return row.tokens_lost, -row.utilization, row.cut, abs(row.bias), row.straggler

    return {
        goal: min(planned, key=lambda number: (measure(rows[number]), *after(rows[number])))
        for goal, measure in _MEASURES.items()
        if planned
    }


def ties(rows: Sequence[Row]) -> list[str]:
    """Goals for which several rows are best, exactly equal.

    `best` names one of them by their other figures.
    """
    planned = [rows[number] for number in _comparable(rows)]
    values = {goal: sorted(map(measure, planned)) for goal, measure in _MEASURES.items()}
    return [goal for goal, least in values.items() if len(least) > 1 and least[0] == least[1]]


def _comparable(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows that can be best for something."""
    planned = [number for number, row in enumerate(rows) if not row.problem]
    return [number for number in planned if rows[number].tokens_lost_share <= _MUCH] or planned
