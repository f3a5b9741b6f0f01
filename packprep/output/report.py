"""Account of a build, as report.json has it.

Every token is counted exactly once. The keys of report.json are stable; `packprep.schemas` has
their JSON Schema.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from packprep.chat.turn_counts import TurnCounts
from packprep.config.stages import Parsing, Reading
from packprep.packing.account import Sums
from packprep.packing.figures import epoch_figures, figures_of, terms
from packprep.schemas.report import (
    CountTable,
    DocumentCounts,
    InputReport,
    MixedSource,
    PhaseSource,
    ReportEpoch,
    ReportLeftOut,
    ReportMix,
    ReportNotRead,
    ReportPhase,
    ReportSource,
    ReportWindow,
    SourceAccount,
)
from packprep.support.errors import brief
from packprep.support.from_json import from_json

if TYPE_CHECKING:  # commands that only read a report need not load the compiler
    from packprep.sources.source import Source
    from packprep.sources.units import Part
    from packprep.tokens.store import LeftOutCount, TokenFile
    from packprep.windows.mix import Mix, RequestedMix, RequestedPhase, RequestedSource
    from packprep.windows.placement import Packs
    from packprep.windows.planner import WindowPlan


Table = TypeVar("Table", bound=Mapping[str, object])


@dataclass
class Account:
    """Sums of a build by source, and facts of each window; added up window by window.

    sources: sums by source; the last counts filler packs, which have no source. runs: the account
    of each epoch, if there are several, or phase. asked: of each phase, see `Mix.phases_asked`.
    """

    sources: list[Sums]
    runs: "list[Account]" = field(default_factory=list)
    windows: list[ReportWindow] = field(default_factory=list)
    segments_per_pack: Counter[int] = field(default_factory=Counter)
    mix: "RequestedMix | None" = None  # the requested shares of a mix
    asked: "Sequence[RequestedPhase]" = ()
    groups_apart: tuple[int, int] | None = None  # groups of `group_prefix`, and their rows

    @staticmethod
    def empty(sources: int, runs: int = 0) -> "Account":
        own = [Sums() for _ in range(sources + 1)]
        return Account(own, [Account.empty(sources) for _ in range(runs)])

    @staticmethod
    def from_dict(facts: Mapping[str, Any]) -> "Account":
        """Account from the values that `as_dict` gave."""
        counts = {int(size): count for size, count in facts["segments_per_pack"].items()}
        return Account(
            [from_json(Sums, sums) for sums in facts["sources"]],
            windows=facts["windows"],
            segments_per_pack=Counter(counts),
        )

    def as_dict(self) -> dict[str, object]:
        """The account as plain JSON values."""
        counts = {str(size): count for size, count in sorted(self.segments_per_pack.items())}
        sources = [vars(source) for source in self.sources]
        return {"sources": sources, "windows": self.windows, "segments_per_pack": counts}

    def merge(self, other: "Account", run: int = 0) -> None:
        """Add the account of a window of a run, of the same sources."""
        self._add(other.sources)
        self.segments_per_pack.update(other.segments_per_pack)
        self.windows += [self._of_run(window, run) for window in other.windows]
        for account in self.runs[run : run + 1]:
            account.merge(other)

    def _of_run(self, window: ReportWindow, run: int) -> ReportWindow:
        if self.asked:
            return window | {"phase": run, "max_length": self.asked[run]["max_length"]}
        return window | {"epoch": run} if self.runs else window

    def add_mix(self, mix: "Mix", left_out: Sequence[Sums]) -> None:
        """Count the documents that a mix does not draw: in each epoch, and in no phase."""
        self.mix, self.asked = mix.as_dict(), mix.phases_asked()
        epochs = () if self.asked else self.runs
        for account in (*epochs, *[self] * max(1, len(epochs))):
            account._add([*left_out, Sums()])

    def add(
        self,
        window: int,
        split: str,
        plan: "WindowPlan",
        written: "Packs",
        by_source: Sequence[Sums],
    ) -> None:
        """Count a window. written: its packs after packs were added or left out."""
        trained = split == "train"
        self._add(
            [replace(source, trained_tokens=source.tokens_kept * trained) for source in by_source]
        )
        sizes, counts = np.unique(np.diff(written.offsets), return_counts=True)
        self.segments_per_pack.update(dict(zip(sizes.tolist(), counts.tolist(), strict=True)))
        self.windows.append(
            {
                "window": window,
                "split": split,
                "packs": len(written),
                "segments": len(written.order),
                "tokens": int(written.lengths.sum()),
                "bound": plan.bound,
                "gap": Sums(planned=plan.planned, bound=plan.bound).gap,
                **plan.measured,  # type: ignore[typeddict-item]  # new figures have no types
            }
        )

    def total(self, max_length: int) -> Sums:
        """Sums of the whole build. max_length: of its packs."""
        return Sums.total(
            [*self.sources, *(_packs_of(window, max_length) for window in self.windows)]
        )

    def by_epoch(self, max_length: int) -> list[ReportEpoch]:
        """Figures of each epoch."""
        sums = [run.total(max_length) for run in self.runs]
        return [epoch_figures(each, epoch) for epoch, each in enumerate(sums)]

    def once(self, numbers: Iterable[int]) -> Sums:
        """Sums of some sources in which each document counts once: those of the first epoch."""
        first = self.runs[0] if self.runs and not self.asked else self
        return Sums.total(first.sources[number] for number in numbers)

    def _add(self, sources: Sequence[Sums]) -> None:
        self.sources = [total + more for total, more in zip(self.sources, sources, strict=True)]


def _packs_of(window: ReportWindow, max_length: int) -> Sums:
    """Sums of the packs of a window, from its facts in report.json."""
    weights = Sums(
        segments=window["segments"], packs=window["packs"], tokens_packed=window["tokens"]
    )
    return Sums(
        max_length=max_length,
        shorter=window["packs"] * (max_length - window.get("max_length", max_length)),
        packs=window["packs"],
        planned=window["bound"] + window["gap"],
        bound=window["bound"],
        measured=terms(window, weights),
    )


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Everything that a build has packed: its sources, their token files, the account of both."""

    sources: "Sequence[Source]"
    files: "Sequence[TokenFile]"
    account: Account


def make_report(
    packed: Packed, reading: Reading, parsing: Parsing, max_length: int, ranks: int
) -> InputReport:
    """Part of report.json that follows from the inputs; `write_report` adds the other keys.

    ranks: that share a step, for the straggler.
    """
    sources, files, account = packed.sources, packed.files, packed.account
    by_source = [_of_source([number], files, account, parsing) for number in range(len(sources))]
    labels = {
        number: {"label": entry.label}
        for number, entry in enumerate(reading.entries())
        if "label" in _table(reading.sources[number])
    }
    report: InputReport = {
        "report_version": 1,
        "documents": summed([table["documents"] for table in by_source]),
        **figures_of(account.total(max_length)),  # type: ignore[typeddict-item]  # no mix
        "straggler_ranks": ranks,
        "documents_per_pack": percentiles(account.segments_per_pack),
        "splits": _splits(account.windows),
        "windows": account.windows,
        "sources": [
            {"name": source.name, **labels.get(source.entry, {}), **table}  # type: ignore[typeddict-item]
            for source, table in zip(sources, by_source, strict=True)
        ],
    }
    if account.mix is not None:
        report["mix"] = _of_mix(account.mix, files, account, parsing)
        if account.asked:
            of_mix, phases = account.mix["sources"], zip(account.runs, account.asked, strict=True)
            report["phases"] = [_of_phase(*phase, of_mix) for phase in phases]
    if account.runs and not account.asked:
        report["epochs"] = account.by_epoch(max_length)
    if any(unread := unread_in(part for file in files for part in file.parts)):
        report["not_read"] = unread
    if account.groups_apart is not None:
        groups, rows = account.groups_apart
        report["groups_apart"] = {"groups": groups, "rows": rows}
    if parsing.splits_rows:
        rows = sum(part.rows for file in files for part in file.parts)
        report["turns"] = _turns(rows, [each for file in files for each in file.turns.values()])
    if parsing.chats:
        counts = [count for file in files for count in file.left_out.items()]
        report["left_out"] = _left_out([count for _, count in counts])
        if counts:
            number, (_, _, (row, message, field), _) = counts[0]
            key = field if field.isidentifier() else brief(field)
            report["left_out_example"] = (
                f"{sources[int(number)].name} row {row:,} message {message} ({key})"
            )
            report["left_out_in_turns"] = sum(count.in_turns for _, count in counts)
    return report


def unread_in(parts: "Iterable[Part]") -> ReportNotRead:
    """Columns, by the number of sources that have them, and keys, by the number of messages."""
    counts: dict[str, Counter[str]] = {"columns": Counter(), "keys": Counter()}
    seen = set()
    for part in parts:
        for entry, count in part.unread.items():
            kind, _, name = entry.partition(" ")
            if kind == "key":
                counts["keys"][name] += count
            elif (part.source, name) not in seen:
                seen.add((part.source, name))
                counts["columns"][name] += 1
    named = {kind: dict(sorted(names.items())) for kind, names in counts.items() if names}
    return cast("ReportNotRead", named)


def _table(source: object) -> Mapping[str, object]:
    """An entry of `sources` with options of its own; empty for a name."""
    return source if isinstance(source, Mapping) else {}


def shown_names(sources: Sequence[ReportSource], files: Sequence[str]) -> list[str]:
    """Return the names of sources of a report for people: labels, where they have some.

    files: their file names, which are shown too where several files have one label.
    """
    labels = [source.get("label") for source in sources]
    files_of = Counter(labels)
    return [
        file if label is None else label if files_of[label] == 1 else f"{label} ({file})"
        for label, file in zip(labels, files, strict=True)
    ]


def _of_source(
    numbers: Sequence[int],
    files: "Sequence[TokenFile]",
    counted: Account,
    parsing: Parsing,
) -> SourceAccount:
    """Account of one input file, or of several together. counted: sums by input file."""
    sums = Sums.total(counted.sources[number] for number in numbers)
    once = counted.once(numbers)
    parts = [part for file in files for part in file.parts if part.source in numbers]
    cuts = [file.cut[key] for file in files for key in map(str, numbers) if key in file.cut]
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    turns = [file.turns[key] for file in files for key in map(str, numbers) if key in file.turns]
    rows = sum(part.rows for part in parts)
    documents: DocumentCounts = {
        "in": sum(count.documents for count in turns) if turns else rows,
        "empty": once.empty - sum(skipped.values()),
        "skipped": dict(sorted(skipped.items())),
        "dropped": dict(sorted(once.dropped_documents.items())),
        "cut": sum(documents for documents, _ in cuts),
        "cut_characters": sum(characters for _, characters in cuts),
    }
    account: SourceAccount = {
        "documents": documents,
        "tokens": sums.ledger,
        "segments": sums.segments,
        "bos_rate": sums.bos_rate,
        "eos_rate": sums.eos_rate,
    }
    if parsing.chats:
        keys = set(map(str, numbers))
        account["left_out"] = _left_out(
            [count for file in files for key, count in file.left_out.items() if key in keys]
        )
    if parsing.splits_rows:
        account["turns"] = _turns(rows, turns)
    return account


def _turns(rows: int, counts: "Sequence[TurnCounts]") -> CountTable:
    """Rows and the documents of their turns."""
    return {"rows": rows, **vars(sum(counts, TurnCounts()))}


def _left_out(counts: "Sequence[LeftOutCount]") -> ReportLeftOut:
    """Text of messages that the chat template does not write."""
    fields: dict[str, CountTable] = {}
    for count in counts:
        for name, (characters, tokens) in count.fields.items():
            text = {"characters": characters, "tokens": tokens}
            fields[name] = summed([text, fields.get(name, {})])
    return {
        "documents": sum(count.documents for count in counts),
        "characters": sum(text["characters"] for text in fields.values()),
        "tokens": sum(text["tokens"] for text in fields.values()),
        "fields": dict(sorted(fields.items())),
    }


def _of_mix(
    requested: "RequestedMix",
    files: "Sequence[TokenFile]",
    counted: Account,
    parsing: Parsing,
) -> ReportMix:
    """Requested and achieved shares of each source of a mix.

    Shares are those of the training split; the account of a source covers both splits.
    """
    sums = [
        Sums.total(counted.sources[number] for number in source["files"])
        for source in requested["sources"]
    ]
    total_tokens = sum(source.trained_tokens for source in sums) or 1
    sources: list[MixedSource] = []
    for source, source_sums in zip(requested["sources"], sums, strict=True):
        tokens = source_sums.trained_tokens
        sources.append(
            {
                "name": source["name"],
                "asked": source["asked"],
                "asked_share": source["asked_share"],
                "share": tokens / total_tokens,
                "trained_tokens": tokens,
                "epochs": tokens / (source["available"] or 1),
                "repeated": {
                    "documents": source_sums.repeated_documents,
                    "tokens": source_sums.repeated_tokens,
                },
                "account": _of_source(source["files"], files, counted, parsing),
            }
        )
    return {"limited_by": requested["limited_by"], "sources": sources}


def _of_phase(
    account: Account, asked: "RequestedPhase", sources: "Sequence[RequestedSource]"
) -> ReportPhase:
    """Account of one phase; shares are those of the training split. sources: of the mix."""
    sums = account.total(asked["max_length"])
    tokens = [
        Sums.total(account.sources[number] for number in source["files"]).trained_tokens
        for source in sources
    ]
    shares: list[PhaseSource] = [
        {
            "name": source["name"],
            "asked_share": share,
            "share": trained / (sum(tokens) or 1),
            "trained_tokens": trained,
        }
        for source, share, trained in zip(sources, asked["shares"], tokens, strict=True)
    ]
    return {
        "asked_tokens": asked["tokens"],
        "max_length": asked["max_length"],
        "min_len": asked["min_len"],
        "max_len": asked["max_len"],
        "splits": _splits(account.windows),
        "packs": sums.packs,
        "utilization": sums.utilization,
        "tokens": sums.ledger,
        "sources": shares,
    }


def summed(tables: Sequence[Table]) -> Table:
    """Sum of numbers key by key, in nested tables too, sorted; a missing key counts as nothing.

    Example: [{"a": 1, "b": {"c": 2}}, {"a": 3}] -> {"a": 4, "b": {"c": 2}}
    """
    total: dict[str, object] = {}
    for key in sorted({key for table in tables for key in table}):
        values: list[Any] = [table[key] for table in tables if key in table]
        total[key] = summed(values) if isinstance(values[0], Mapping) else sum(values)
    return cast("Table", total)


def percentiles(counts: Counter[int]) -> CountTable:
    """p50, p95 and max of segments per pack, from how often each number occurs."""
    if not counts:
        return {"p50": 0, "p95": 0, "max": 0}
    values = np.array(sorted(counts))
    ranks = np.cumsum([counts[value] for value in values])
    p50, p95 = (int(values[np.searchsorted(ranks, share * ranks[-1])]) for share in (0.5, 0.95))
    return {"p50": p50, "p95": p95, "max": int(values[-1])}


def _splits(windows: Sequence[ReportWindow]) -> dict[str, CountTable]:
    """Sums of the windows of each split."""
    return {
        split: {
            key: sum(window[key] for window in windows if window["split"] == split)
            for key in ("packs", "segments", "tokens")
        }
        for split in dict.fromkeys(window["split"] for window in windows)
    }
