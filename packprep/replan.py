"""What other strategies would have made of the documents of a finished output: planned again, nothing written.

Lengths come back from the shards, so documents that the build dropped are not there and cut ones are as long as they
were kept. Planning a million documents takes some tenths of a second for all strategies together; memory is a window's.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from packprep.config import BuildConfig
from packprep.errors import ConfigError
from packprep.histograms import WindowPacks, read_windows
from packprep.planning import plan_segments, window_seed
from packprep.progress import Progress, Silent
from packprep.schemas import read_manifest
from packprep.segments import cut_segments

_MOST_EVENED = 250_000  # segments

STRATEGIES: tuple[str, ...] = get_args(get_type_hints(BuildConfig)["strategy"])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One strategy over all windows, in the words of report.json. cut: documents that are in more than one piece."""

    strategy: str
    packs: int
    bound: int
    utilization: float
    bias: float
    straggler: float
    cut: int

    @property
    def gap(self) -> int:
        return self.packs - self.bound


def replan(output: Path, strategies: tuple[str, ...] = STRATEGIES, progress: Progress | None = None) -> list[Outcome]:
    """The documents of `output` under each strategy, with the other options of its build but groups.

    Left out: a strategy that cannot keep them (wrapped and padded segments, balanced and several windows), and balanced
    for more than 250,000 segments, where evening out may take minutes, unless it is what was built.
    """
    manifest = read_manifest(output)
    options = manifest.data["inputs"]["options"]
    configs = {name: config for name in strategies if (config := _config(options, manifest.max_length, name))}
    plans: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    progress = progress or Silent()
    done = 0
    for window in read_windows(output, manifest):
        done += window.packs
        if window.window or (len(window.lengths) > _MOST_EVENED and options.get("strategy") != "balanced"):
            configs.pop("balanced", None)
            plans.pop("balanced", None)
        for name, config in configs.items():
            plans[name].append(_planned(window, config))
        progress.advance("plan", done, manifest.num_packs, "packs")
    return [_outcome(name, found, manifest.max_length) for name, found in plans.items()]


def _config(options: dict[str, Any], max_length: int, strategy: str) -> BuildConfig | None:
    """The options of the build with another strategy; None where the two do not go together."""
    kept = {
        key: options[key]
        for key in (
            "overflow", "stride", "continuation_bos", "max_segments_per_pack", "pad_segment_to_multiple",
            "shuffle_documents", "order", "seed", "balance_ranks", "attention_cost",
        )
        if key in options
    }  # fmt: skip
    if strategy == "wrapped":  # cuts where packs end, so pieces neither overlap nor begin anew
        kept = {key: value for key, value in kept.items() if key not in ("stride", "continuation_bos")}
    try:
        return BuildConfig(**kept, max_length=max_length, strategy=strategy)  # type: ignore[arg-type]
    except ConfigError:
        return None


def _planned(window: WindowPacks, config: BuildConfig) -> dict[str, float]:
    lengths = window.document_lengths().astype(np.int32)
    segments, _ = cut_segments(lengths, 0, config, has_bos=True)
    seed = window_seed(config, window.window, int(window.split == "validation"))
    segments, plan = plan_segments(segments, config, seed)
    return {
        "packs": plan.num_packs,
        "bound": plan.bound,
        "tokens": int(segments.lengths.sum(dtype=np.int64)),
        "segments": len(segments),
        "bias": plan.bias,
        "straggler": plan.straggler(config.balance_ranks, config.cost()),
        "cut": int((np.bincount(segments.document) > 1).sum()),
    }


def _outcome(strategy: str, plans: list[dict[str, float]], max_length: int) -> Outcome:
    def total(key: str) -> int:
        return int(sum(plan[key] for plan in plans))

    def mean(key: str, weight: str) -> float:
        return sum(plan[key] * plan[weight] for plan in plans) / max(1, total(weight))

    packs = total("packs")
    return Outcome(
        strategy=strategy,
        packs=packs,
        bound=total("bound"),
        utilization=total("tokens") / (packs * max_length) if packs else 1.0,
        bias=mean("bias", "segments"),
        straggler=mean("straggler", "packs"),
        cut=total("cut"),
    )
