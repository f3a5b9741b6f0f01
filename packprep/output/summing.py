"""Account of several outputs together.

Counts are added, shares are computed from the sums, averages are weighted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from packprep.packing.account import Sums
from packprep.schemas.canonical import digest_of

_RATES = ("bos_rate", "eos_rate")
_ADDED = ("documents", "tokens", "splits", "seconds")


def summed_report(
    reports: Sequence[Mapping[str, Any]],
    documents_per_pack: Mapping[str, int],
    entries: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """report.json of merged outputs, in order.

    entries: entries of the merged files in the manifest.
    """
    windows = [window for report in reports for window in report["windows"]]
    sums = Sums.total(map(sums_of, reports))
    figures = sums.figures()
    if not all(key in report for key in _RATES for report in reports):  # older reports lack them
        figures = {key: value for key, value in figures.items() if key not in _RATES}
    added = summed([{key: report[key] for key in _ADDED} for report in reports])
    shards = [entry for entry in entries if "packs" in entry]
    # The requested shares of one mix do not describe several outputs.
    first = {key: value for key, value in reports[0].items() if key != "mix" or len(reports) == 1}
    return {
        **{key: value for key, value in first.items() if key not in _RATES},
        **figures,
        **added,
        "documents_per_pack": documents_per_pack,
        "windows": [window | {"window": number} for number, window in enumerate(windows)],
        "sources": [source for report in reports for source in report["sources"]],
        "shards": len(shards),
        "bytes": sum(shard["bytes"] for shard in shards),
        "tokens_per_second": sums.tokens_per_second(added["seconds"]["total"]),
        "peak_memory_bytes": max(report["peak_memory_bytes"] for report in reports),
        "sha256": digest_of([entry["sha256"] for entry in entries]),
    }


def sums_of(report: Mapping[str, Any]) -> Sums:
    """Sums from which a report.json was computed."""
    documents = report["documents"]
    without_tokens = documents["empty"] + sum(documents["skipped"].values())
    with_tokens = documents["in"] - without_tokens
    # A rate is a count divided by these documents, so the rounded product is the count again.
    with_bos, with_eos = (round(report.get(key, 0) * with_tokens) for key in _RATES)
    return Sums.of_ledger(report["tokens"]) + Sums(
        documents=documents["in"],
        empty=without_tokens,
        dropped_documents=Counter(documents["dropped"]),
        bos_found=with_bos,
        eos_found=with_eos,
        segments=report["segments"],
        loss_tokens=report.get("loss_tokens"),
        max_length=report["max_length"],
        packs=report["packs"],
        planned=report["bound"] + report["gap"],
        bound=report["bound"],
        bias=[report["bias"] * report["segments"]],
        straggler=[report["straggler"] * report["packs"]],
    )


def summed(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum of numbers key by key, in nested tables too; a missing key counts as nothing.

    Example: [{"a": 1, "b": {"c": 2}}, {"a": 3}] -> {"a": 4, "b": {"c": 2}}
    """
    total: dict[str, Any] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table[key] for table in tables if key in table]
        total[key] = summed(values) if isinstance(values[0], Mapping) else sum(values)
    return total
