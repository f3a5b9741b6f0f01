"""The account of several outputs together: counts are added, shares follow from them, averages are weighted."""

from collections.abc import Mapping, Sequence
from typing import Any

from packprep.schemas import digest_of

_RATES = ("bos_rate", "eos_rate")
_ADDED = ("documents", "tokens", "tokens_lost", "packs", "segments", "bound", "gap", "splits", "seconds", "loss_tokens")


def summed_report(
    reports: Sequence[Mapping[str, Any]], documents_per_pack: Mapping[str, int], entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """report.json of outputs put together, in order. entries: of the manifest, for the files that come of it."""
    windows = [window for report in reports for window in report["windows"]]
    added = summed([{key: value for key, value in report.items() if key in _ADDED} for report in reports])
    tokens, packs = added["tokens"], added["packs"]
    room = packs * reports[0]["max_length"]
    shards = [entry for entry in entries if "packs" in entry]
    # What was asked of one mix says nothing of several outputs together.
    first = {key: value for key, value in reports[0].items() if key != "mix" or len(reports) == 1}
    return {
        **{key: value for key, value in first.items() if key not in _RATES},
        **added,
        "tokens_lost_share": _share(added["tokens_lost"], tokens["tokens_in"], 0.0),
        "utilization": _share(tokens["tokens_packed"] - tokens["filler"], room, 1.0),
        "gap_share": _share(added["gap"], added["bound"], 0.0),
        **_rates(reports),
        **({"loss_utilization": _share(added["loss_tokens"], room, 1.0)} if "loss_tokens" in added else {}),
        "bias": _mean(reports, "bias", "segments"),
        "straggler": _mean(reports, "straggler", "packs"),
        "documents_per_pack": documents_per_pack,
        "windows": [window | {"window": number} for number, window in enumerate(windows)],
        "sources": [source for report in reports for source in report["sources"]],
        "shards": len(shards),
        "bytes": sum(shard["bytes"] for shard in shards),
        "tokens_per_second": round(tokens["tokens_in"] / max(added["seconds"]["total"], 1e-9), 1),
        "peak_memory_bytes": max(report["peak_memory_bytes"] for report in reports),
        "sha256": digest_of([entry["sha256"] for entry in entries]),
    }


def summed(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers added key by key, tables inside tables too; a key that a table lacks adds nothing.

    Example: [{"a": 1, "b": {"c": 2}}, {"a": 3}] -> {"a": 4, "b": {"c": 2}}
    """
    total: dict[str, Any] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table[key] for table in tables if key in table]
        total[key] = summed(values) if isinstance(values[0], Mapping) else sum(values)
    return total


def _rates(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """bos_rate and eos_rate over all documents with tokens; {} where a report does not have them."""
    if not all(key in report for key in _RATES for report in reports):
        return {}
    tables = [report["documents"] for report in reports]
    held = [table["in"] - table["empty"] - sum(table["skipped"].values()) for table in tables]
    return {
        key: _share(sum(report[key] * count for report, count in zip(reports, held, strict=True)), sum(held), 0.0)
        for key in _RATES
    }


def _share(part: float, whole: int, of_nothing: float) -> float:
    return part / whole if whole else of_nothing


def _mean(reports: Sequence[Mapping[str, Any]], key: str, weight: str) -> float:
    total = sum(report[weight] for report in reports)
    return sum(report[key] * report[weight] for report in reports) / total if total else 0.0
