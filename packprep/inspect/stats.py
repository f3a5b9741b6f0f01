"""Figures of `packprep stats` beside the report: text histograms, and the steps of an epoch."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.histograms import COST_UNIT, Counts, Measured, log_edges, read_windows
from packprep.output.report import shown_names
from packprep.packing.account import Sums
from packprep.schemas.manifest import Manifest, Output
from packprep.schemas.report import Report
from packprep.support.errors import ConfigError

_FILL_SHARES = (
    0,
    0.5,
    0.75,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
    0.999,
    1,
)  # most packs are in the last few
_BAR = 40  # characters of the longest bar


@dataclass(frozen=True)
class BinnedCounts:
    """One quantity in bins. title: the quantity and its unit. labels, counts: of each bin."""

    title: str
    labels: Sequence[str]
    counts: NDArray[np.int64]
    summary: str

    def lines(self) -> list[str]:
        """A line for each bin: label, count, and a bar relative to the largest bin."""
        block = "█" if _shows("█") else "#"
        label = max(map(len, self.labels), default=0)
        number = max((len(f"{count:,}") for count in self.counts.tolist()), default=0)
        most = max(self.counts.tolist(), default=0) or 1
        return [
            f"{name.rjust(label)}  {f'{count:,}'.rjust(number)}  "
            f"{block * -(-count * _BAR // most)}".rstrip()
            for name, count in zip(self.labels, self.counts.tolist(), strict=True)
        ]


def _shows(character: str) -> bool:
    try:
        character.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def histograms(measured: Measured) -> list[BinnedCounts]:
    """Histograms of document length, documents per pack, fill and attention cost.

    Empty bins at both ends are omitted.
    """
    shares = [f"{100 * share:g}%" for share in _FILL_SHARES]
    fills = np.ceil(np.array([*_FILL_SHARES, 2]) * measured.max_length).astype(np.int64)
    fill_labels = [f"{low} to {high}" for low, high in pairwise(shares)] + ["100%"]
    # In short packs, several shares are the same number of tokens.
    fill_labels = [
        label for label, wide in zip(fill_labels, np.diff(fills) > 0, strict=True) if wide
    ]
    cost_edges = np.append(np.arange(0, COST_UNIT, COST_UNIT // 10), COST_UNIT + 1).astype(np.int64)
    return [
        _counted("document length, tokens", measured.documents),
        _counted("documents per pack", measured.documents_per_pack),
        _histogram(
            "fill of a pack",
            measured.fill,
            np.unique(fills),
            fill_labels,
            lambda value: f"{value / measured.max_length:.2%}",
        ),
        _histogram(
            "attention cost of a pack, 1 is one document of max_length",
            measured.cost,
            cost_edges,
            [f"{step / 10:.1f} to {(step + 1) / 10:.1f}" for step in range(10)],
            lambda value: f"{value / COST_UNIT:.3f}",
        ),
    ]


def _counted(title: str, counts: Counts) -> BinnedCounts:
    edges = log_edges(int(counts.values[-1]) if counts.total else 1, 1)
    if counts.total and counts.values[0] == 0:
        edges = np.append(0, edges)
    return _histogram(title, counts, edges, _ranges(edges), lambda value: f"{value:,}")


def _ranges(edges: NDArray[np.int64]) -> list[str]:
    return [
        f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        for low, high in pairwise(edges.tolist())
    ]


def _histogram(
    title: str, counts: Counts, edges: NDArray[np.int64], labels: Sequence[str], show: Any
) -> BinnedCounts:
    by_bin = counts.bins(edges)
    filled = np.flatnonzero(by_bin)
    first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
    figures = {"p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}
    summary = ", ".join(f"{name} {show(counts.quantile(share))}" for name, share in figures.items())
    return BinnedCounts(title, labels[first:last], by_bin[first:last], summary)


def summaries(measured: Measured) -> dict[str, dict[str, Any]]:
    """Mean, quantiles and exact counts of each quantity, as plain JSON values."""
    return {
        name: {
            "total": counts.total,
            "mean": counts.mean,
            **{
                key: counts.quantile(share)
                for key, share in (("p5", 0.05), ("p50", 0.5), ("p95", 0.95), ("max", 1.0))
            },
            "values": counts.values.tolist(),
            "counts": counts.counts.tolist(),
        }
        for name in ("documents", "segments", "documents_per_pack", "fill", "cost")
        for counts in [getattr(measured, name)]
    }


def training(
    output: Output,
    manifest: Manifest,
    measured: Measured,
    global_batch_size: int | None,
    world_size: int,
) -> dict[str, Any]:
    """Facts for a trainer, of the split "train" if there is one, else of the first split.

    They are of one epoch: the first, if documents are packed for several.

    global_batch_size: packs of one optimizer step over all ranks; None omits facts that depend on
    it. world_size: ranks. Tokens exclude filler. Loss tokens are given only if there are labels.
    Raises ConfigError.
    """
    split = "train" if "train" in manifest.splits else next(iter(manifest.splits))
    packs = sum(entry.packs or 0 for entry in manifest.shards(split, epoch=0))
    segments = real = loss = 0
    for window in read_windows(output, manifest):
        if window.split == split:
            segments += int(np.count_nonzero(window.real))
            real += int(window.real.sum())
            loss += window.loss_tokens
    phases = [
        (phase.max_length, phase.splits[split].packs)
        for phase in manifest.phases
        if split in phase.splits
    ] or [(manifest.max_length, packs)]
    shorter = sum((manifest.max_length - length) * count for length, count in phases)
    sums = Sums(
        tokens_packed=real,
        loss_tokens=loss,
        packs=packs,
        max_length=manifest.max_length,
        shorter=shorter,
    )
    facts: dict[str, Any] = {"split": split, "packs": packs, "documents": segments, "tokens": real}
    facts["token_utilization"] = sums.utilization
    if measured.loss_tokens is not None:
        facts |= {"loss_tokens": loss, "loss_utilization": sums.loss_utilization}
    if global_batch_size is None:
        return facts
    if global_batch_size % world_size:
        raise ConfigError(
            f"global batch size {global_batch_size:,} is not a multiple of world size "
            f"{world_size:,}; "
            "each rank takes the same number of packs per step"
        )
    slots = global_batch_size * phases[0][0]
    batches = [slots // length for length, _ in phases]  # the tokens of a batch stay the same
    for number, ((length, _), batch) in enumerate(zip(phases, batches, strict=True), 1):
        if slots % (length * world_size) or not batch:
            raise ConfigError(
                f"a batch of {slots:,} tokens has no whole number of packs of {length:,} on each "
                f"of {world_size:,} ranks in phase {number}; choose another global batch size"
            )
    by_phase = [count // batch for (_, count), batch in zip(phases, batches, strict=True)]
    steps = sum(by_phase)
    used = sum(count * batch for count, batch in zip(by_phase, batches, strict=True))
    facts |= {
        "global_batch_size": global_batch_size,
        "world_size": world_size,
        "packs_per_rank": global_batch_size // world_size,
        "steps_per_epoch": steps,
        "packs_left_over": packs - used,
        "slots_per_step": slots,
    }
    facts |= {"steps_by_phase": by_phase} if manifest.phases else {}
    names = {"documents_per_step": segments, "tokens_per_step": real}
    names |= {"loss_tokens_per_step": loss} if "loss_tokens" in facts else {}
    return facts | {
        name: total * (used / steps if steps else global_batch_size) / packs if packs else 0.0
        for name, total in names.items()
    }


def training_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the table of these facts."""
    rows = [
        (f"packs of {facts['split']}", f"{facts['packs']:,}"),
        ("documents and pieces", f"{facts['documents']:,}"),
    ]
    rows.append(("tokens", f"{facts['tokens']:,} ({facts['token_utilization']:.3%} of all places)"))
    if "loss_tokens" in facts:
        rows.append(
            (
                "loss tokens",
                f"{facts['loss_tokens']:,} ({facts['loss_utilization']:.3%} of all places)",
            )
        )
    if "steps_per_epoch" not in facts:
        return rows
    left = facts["packs_left_over"]
    more = (
        f", {facts['steps_per_epoch'] + 1:,} if the {left:,} packs left over are a step too"
        if left
        else ""
    )
    if by_phase := facts.get("steps_by_phase"):
        more = f" ({' + '.join(f'{count:,}' for count in by_phase)} in the phases)"
    rows.append(("steps per epoch", f"{facts['steps_per_epoch']:,}{more}"))
    ranks = f"{facts['packs_per_rank']:,} on each of {facts['world_size']:,} ranks"
    in_first = ", in phase 1" if by_phase else ""
    rows.append(("packs per step", f"{facts['global_batch_size']:,}, {ranks}{in_first}"))
    rows.append(("documents per step", f"{facts['documents_per_step']:,.1f} on average"))
    rows.append(
        (
            "tokens per step",
            f"{facts['tokens_per_step']:,.0f} of {facts['slots_per_step']:,} places, on average",
        )
    )
    if "loss_tokens_per_step" in facts:
        rows.append(("loss tokens per step", f"{facts['loss_tokens_per_step']:,.0f} on average"))
    return rows


def source_rows(report: Report) -> list[tuple[str, ...]]:
    """Rows of the table of sources.

    Columns: name; documents: all, empty, skipped, dropped; tokens: in, packed, lost, by reason; BOS
    and EOS rates.
    """
    rows = []
    sources = report["sources"]
    names = shown_names(sources, [source["name"] for source in sources])
    for name, source in zip(names, sources, strict=True):
        documents, tokens = source["documents"], source["tokens"]
        lost = {"truncated": tokens["truncated"]} | tokens["dropped"]
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in lost.items() if count)
        counts = (
            documents["in"],
            documents["empty"],
            sum(documents["skipped"].values()),
            sum(documents["dropped"].values()),
            tokens["tokens_in"],
            Sums.of_ledger(tokens).tokens_kept,
        )
        rates = [source.get("bos_rate"), source.get("eos_rate")]
        shown = ("" if rate is None else f"{rate:.2%}" for rate in rates)
        rows.append((name, *(f"{count:,}" for count in counts), by_reason or "0", *shown))
    return rows
