"""Account of several outputs together.

CountTable are added, shares are computed from the sums, averages are weighted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from packprep.output.report import summed
from packprep.output.sign_off import figures_of_files
from packprep.packing.account import Sums
from packprep.packing.figures import FIGURES, epoch_figures, figures_of, terms
from packprep.schemas.manifest import FileEntry
from packprep.schemas.report import CountTable, Report, ReportEpoch, ReportNotRead

_ADDED = ("documents", "tokens", "splits", "seconds")


def summed_report(
    reports: Sequence[Report],
    documents_per_pack: CountTable,
    entries: Sequence[FileEntry],
) -> Report:
    """Merge the report.json of several outputs, in order.

    entries: entries of the merged files in the manifest.
    """
    tables: Sequence[Mapping[str, Any]] = reports
    windows = [window for table in tables for window in table["windows"]]
    windows.sort(key=lambda window: window.get("epoch", 0))  # as the packs are
    sums = Sums.total(map(sums_of, reports))
    # Older reports lack some figures; they are in no sum.
    computed = [row.name for row in FIGURES if row.is_computed]
    missing = {name for name in computed if not all(name in table for table in tables)}
    figures = {key: value for key, value in figures_of(sums).items() if key not in missing}
    added = summed([{key: table[key] for key in _ADDED} for table in tables])
    # What was asked of one mix says nothing of several outputs together, nor do groups of rows.
    left_out = missing if len(reports) == 1 else {*missing, "mix", "groups_apart"}
    report = {
        **{key: value for key, value in tables[0].items() if key not in left_out},
        **figures,
        **added,
        "documents_per_pack": documents_per_pack,
        "windows": [window | {"window": number} for number, window in enumerate(windows)],
        **_epochs(reports),
        **_not_read(reports),
        "sources": [source for table in tables for source in table["sources"]],
        **figures_of_files(entries),
        "tokens_per_second": sums.tokens_per_second(added["seconds"]),
        "peak_memory_bytes": max(table["peak_memory_bytes"] for table in tables),
    }
    return cast("Report", report)


def _not_read(reports: Sequence[Report]) -> dict[str, ReportNotRead]:
    """Columns and keys that are not read, of all outputs."""
    unread = [report["not_read"] for report in reports if "not_read" in report]
    return {"not_read": summed(unread)} if unread else {}


def _epochs(reports: Sequence[Report]) -> dict[str, list[ReportEpoch]]:
    """Figures of each epoch, if documents were packed for several."""
    parts = [report["epochs"] for report in reports if "epochs" in report]
    max_length = reports[0]["max_length"]
    sums = [
        Sums.total(_packed(figures, max_length) for figures in of_epoch)
        for of_epoch in zip(*parts, strict=True)
    ]
    epochs = [epoch_figures(each, epoch) for epoch, each in enumerate(sums)]
    return {"epochs": epochs} if epochs else {}


def sums_of(report: Report) -> Sums:
    """The sums that a report.json was computed from."""
    documents = report["documents"]
    without_tokens = documents["empty"] + sum(documents["skipped"].values())
    with_tokens = documents["in"] - without_tokens
    # A rate is a number of documents over theirs, so their product is that number but for rounding.
    with_bos = round(report.get("bos_rate", 0) * with_tokens)
    with_eos = round(report.get("eos_rate", 0) * with_tokens)
    return _packed(report, report["max_length"]) + Sums(
        documents=documents["in"],
        empty=without_tokens,
        dropped_documents=Counter(documents["dropped"]),
        bos_found=with_bos,
        eos_found=with_eos,
    )


def _packed(figures: Report | ReportEpoch, max_length: int) -> Sums:
    """The sums of tokens and packs that figures were computed from."""
    sums = Sums.of_ledger(figures["tokens"]) + Sums(
        segments=figures["segments"],
        loss_tokens=figures.get("loss_tokens"),
        max_length=max_length,
        packs=figures["packs"],
        planned=figures["bound"] + figures["gap"],
        bound=figures["bound"],
    )
    return replace(sums, measured=terms(figures, sums))
