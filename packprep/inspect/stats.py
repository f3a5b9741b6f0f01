"""Figures of `packprep stats` next to the report: exact counts, and the steps of an epoch."""

from collections.abc import Mapping

import numpy as np

from packprep.inspect.histograms import Measured, read_windows
from packprep.output.report import shown_names
from packprep.packing.account import Sums
from packprep.schemas.manifest import Manifest, Output
from packprep.schemas.plans.cost import Cost
from packprep.schemas.report import Report
from packprep.support.errors import ConfigError


def summaries(measured: Measured) -> dict[str, dict[str, object]]:
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
    cost: Cost | None = None,
) -> dict[str, object]:
    """Facts for a trainer, of the split "train" if there is one, else of the first split.

    They are of one epoch: the first, if documents are packed for several.

    global_batch_size: packs of one optimizer step over all ranks; None omits facts that depend on
    it. world_size: ranks. Tokens exclude filler. Loss tokens are given only if there are labels.
    cost: FLOPs of a segment in the forward pass; None omits those of the epoch, three times as
    many, because the backward pass has twice those of the forward pass. Raises ConfigError.
    """
    if cost is not None and manifest.has_trees:
        raise ConfigError(
            f"{output} has trees, and --cost-of counts segments that continue no other; "
            "leave it out, and use batch.flops of PackedLoader"
        )
    split = "train" if "train" in manifest.splits else next(iter(manifest.splits))
    packs = sum(entry.packs or 0 for entry in manifest.shards(split, epoch=0))
    segments = real = loss = 0
    flops = 0.0
    for window in read_windows(output, manifest):
        if window.split == split:
            segments += int(np.count_nonzero(window.real))
            real += int(window.real.sum())
            loss += window.loss_tokens
            flops += 0 if cost is None else 3 * float(cost.flops(window.real).sum())
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
    facts: dict[str, object] = {"split": split, "packs": packs, "documents": segments}
    facts |= {"tokens": real, "token_utilization": sums.utilization}
    facts |= {} if cost is None else {"flops": flops}
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


def training_rows(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    """Rows of the table of these facts."""
    in_places = "{:,} ({:.3%} of all places)".format
    rows = [
        (f"packs of {facts['split']}", f"{facts['packs']:,}"),
        ("documents and pieces", f"{facts['documents']:,}"),
        ("tokens", in_places(facts["tokens"], facts["token_utilization"])),
    ]
    if "loss_tokens" in facts:
        rows.append(("loss tokens", in_places(facts["loss_tokens"], facts["loss_utilization"])))
    if "flops" in facts:
        rows.append(("FLOPs of an epoch", f"{facts['flops']:.4g}, forward and backward"))
    if not isinstance(steps := facts.get("steps_per_epoch"), int):
        return rows
    left = facts["packs_left_over"]
    more = f", {steps + 1:,} if the {left:,} packs left over are a step too" if left else ""
    if isinstance(by_phase := facts.get("steps_by_phase"), list):
        more = f" ({' + '.join(f'{count:,}' for count in by_phase)} in the phases)"
    rows.append(("steps per epoch", f"{steps:,}{more}"))
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
