"""report.json: the account of an output. Every token is counted once."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..plan.account import Sums, figures_of
from ..plan.draw import Drawn
from ..tokens.store import TokenFile
from .shards import WindowFile

TURNS = (
    *("documents", "split_rows", "same_text_rows", "without_turn"),
    *("at_text", "earlier", "behind_rows", "behind_characters"),
)
"""Counts of rows that may be several documents."""


def make_report(
    sources: Sequence[str],
    files: Sequence[tuple[int, TokenFile]],
    windows: Sequence[WindowFile],
    max_length: int,
    ranks: int,
    others: Mapping[int, Sums],
) -> dict[str, Any]:
    """The report without the facts of the run.

    sources: names, by number. files: token files, with what to add to the numbers of their sources.
    others: account by source of what is in no window, or counted twice.
    """
    by_source = {number: others.get(number, Sums()) for number in range(len(sources))}
    rest = Sums()
    for window in windows:
        for number, sums in window.account.items():
            if number < 0:
                rest += sums
            else:
                by_source[number] += sums
    total = sum(by_source.values(), rest)
    rows = [dict(window.figures) for window in windows]
    tables = [_of_source(number, sums, files) for number, sums in by_source.items()]
    sizes = sum((Counter(dict(window.sizes)) for window in windows), Counter[int]())
    return {
        "report_version": 2,
        "documents": _summed([table["documents"] for table in tables]),
        "tokens": {**total.ledger, "bos_added": total.bos_added, "eos_added": total.eos_added},
        **figures_of(total, max_length, rows),
        "max_length": max_length,
        "straggler_ranks": ranks,
        "documents_per_pack": percentiles(sizes),
        "splits": {
            split: {
                key: sum(row[key] for row in rows if row["split"] == split)
                for key in ("packs", "segments", "tokens")
            }
            for split in dict.fromkeys(row["split"] for row in rows)
        },
        "windows": rows,
        "sources": [{"name": name, **table} for name, table in zip(sources, tables, strict=True)],
        **_of_rows(files),
    }


def _of_rows(files: Sequence[tuple[int, TokenFile]]) -> dict[str, Any]:
    """Columns that are not read, each with its number of sources; and turns of rows."""
    made: dict[str, Any] = {}
    unread = {
        (added + number, name)
        for added, file in files
        for number, names in file.unread.items()
        for name in names
    }
    if unread:
        made["not_read"] = {"columns": dict(sorted(Counter(name for _, name in unread).items()))}
    turns = sum((Counter(dict(file.turns)) for _, file in files), Counter[str]())
    if any(file.turns for _, file in files):
        rows = sum(sum(file.rows.values()) for _, file in files)
        made["turns"] = {"rows": rows, **{name: turns[name] for name in TURNS}}
    lost = sum((Counter(dict(file.left_out)) for _, file in files), Counter[str]())
    if any(file.left_out for _, file in files):
        names = sorted(key.partition(" ")[2] for key in lost if key.startswith("characters "))
        kinds = ("characters", "tokens")
        fields = {name: {kind: lost[f"{kind} {name}"] for kind in kinds} for name in names}
        total = {kind: sum(field[kind] for field in fields.values()) for kind in kinds}
        made["left_out"] = {"documents": lost["documents"], **total, "fields": fields}
    return made


def _of_source(number: int, sums: Sums, files: Sequence[tuple[int, TokenFile]]) -> dict[str, Any]:
    """Account of one source."""
    skipped: Counter[str] = Counter()
    rows = cut = characters = 0
    for added, file in files:
        own = number - added
        rows += file.rows.get(own, 0)
        skipped.update(file.skipped.get(own, {}))
        documents, removed = file.cut.get(own, (0, 0))
        cut, characters = cut + documents, characters + removed
    return {
        "rows": rows,
        "documents": {
            "in": sums.documents,
            "empty": sums.empty - sum(skipped.values()),
            "skipped": dict(sorted(skipped.items())),
            "dropped": dict(sorted(sums.dropped_documents.items())),
            "cut": cut,
            "cut_characters": characters,
        },
        "tokens": sums.ledger,
        "segments": sums.segments,
        "bos_rate": sums.rate("bos"),
        "eos_rate": sums.rate("eos"),
    }


def mix_table(
    streams: Sequence[Drawn], weights: Sequence[Fraction], windows: Sequence[WindowFile]
) -> dict[str, Any]:
    """What was asked for and drawn of each source. passes: those before the build too.

    weights: none if the rows are not a mix.
    """
    trained: Counter[int] = Counter()
    for window in windows:
        trained.update({number: sums["trained_tokens"] for number, sums in window.sums.items()})
    return {
        "sources": [
            {
                "name": each.name,
                "share": float(weight / sum(weights)) if weights else None,
                "trained_tokens": sum(trained[number] for number in each.sources),
                "rows": each.last - each.first,
                "blocks": each.blocks,
                "passes": each.last / max(each.rows, 1),
            }
            for each, weight in itertools.zip_longest(streams, weights)
        ]
    }


def _summed(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum of numbers key by key, in nested tables too: [{"a": 1}, {"a": 2}] -> {"a": 3}."""
    total: dict[str, Any] = {}
    for key in sorted({key for table in tables for key in table}):
        values = [table[key] for table in tables if key in table]
        total[key] = _summed(values) if isinstance(values[0], Mapping) else sum(values)
    return total


def percentiles(counts: Counter[int]) -> dict[str, int]:
    """p50, p95 and max of segments per pack, from how often each number occurs."""
    if not counts:
        return {"p50": 0, "p95": 0, "max": 0}
    values = np.array(sorted(counts))
    ranks = np.cumsum([counts[value] for value in values])
    p50, p95 = (int(values[np.searchsorted(ranks, share * ranks[-1])]) for share in (0.5, 0.95))
    return {"p50": p50, "p95": p95, "max": int(values[-1])}
