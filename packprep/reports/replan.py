"""Plans of a finished output with other strategies; nothing is written.

Lengths are read from the shards, so dropped documents are missing, and truncated documents have
the length that was kept. A million documents take some tenths of a second for all strategies
together, and the memory of one window.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from packprep.config.aliases import from_recorded, recorded_in
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.config.grammar.spellings import recorded_name
from packprep.config.stages import Cutting, Ordering, Packing
from packprep.inspect.histograms import read_windows
from packprep.output.shard_writer import column_bytes
from packprep.packing.account import DROPPING, Sums
from packprep.packing.strategies import ONE_BY_ONE
from packprep.preview.sweep import Row, row_of
from packprep.preview.window_plan import documents_cut, of_lengths, window_sums
from packprep.schemas.manifest import Output, read_manifest
from packprep.support.errors import ConfigError
from packprep.support.progress import Progress, Silent
from packprep.windows.cut import cut_segments
from packprep.windows.planner import plan_cut

_MOST_EVENED = 250_000  # segments
# Options that another plan repeats. Filters, and cuts of text, were applied by the build, and
# num_packs belongs to one strategy.
_KEPT = (
    recorded_in(Cutting, Packing, Ordering)
    - {*map(recorded_name, DROPPING)}
    - {"strategy", "train_overlap", "truncation_side", "num_packs"}
)


def replan(
    output: Output, strategies: tuple[str, ...] = STRATEGY_NAMES, progress: Progress | None = None
) -> list[Row]:
    """Plan the documents of `output` with each strategy and the other options of the build.

    Groups are ignored. Omitted: a strategy that these options exclude (wrapped with padded
    segments, balanced with several windows), and balanced for more than 250,000 segments, which
    may take minutes, unless the build used it. An output with trees has no rows: the lengths of
    its segments do not say what rows share.
    """
    manifest = read_manifest(output)
    options = manifest.data["inputs"]["options"]
    if manifest.has_trees:
        return []
    configs = {
        name: config
        for name in strategies
        if (config := _config(options, manifest.max_length, name))
    }
    in_phase: dict[tuple[str, int], BuildConfig | None] = {}
    sums: defaultdict[str, Sums] = defaultdict(Sums)
    divided: Counter[str] = Counter()
    progress = progress or Silent()
    done = 0
    for packs in read_windows(output, manifest):
        done += packs.packs
        if packs.window or (
            len(packs.lengths) > _MOST_EVENED and options.get("strategy") != "balanced"
        ):
            configs.pop("balanced", None)
            sums.pop("balanced", None)
        lengths = packs.document_lengths().astype(np.int32)
        if (
            options.get("overflow") == "truncate"
        ):  # with its middle cut out, a document looks longer
            lengths = np.minimum(lengths, packs.longest)
        window = of_lengths(packs.split, packs.window, lengths)
        for name in configs:
            key = (name, packs.longest)
            if key not in in_phase:
                in_phase[key] = _config(options, packs.longest, name)
            if (config := in_phase[key]) is None:
                continue
            # 0 ends: they matter only for min_document_tokens, and too short documents are gone.
            cut = cut_segments(lengths[None], 0, config.cutting, has_bos=True)
            plan = plan_cut(window.documents, cut, config.pack_rules(), window.seed(config.seed))
            shorter = len(plan.packs) * (manifest.max_length - packs.longest)
            planned = window_sums(plan, plan.packs, manifest.max_length)
            sums[name] += replace(planned, shorter=shorter)
            divided[name] += documents_cut(plan)
        progress.advance("plan", done, manifest.num_packs, "packs")
    return [
        row_of(
            configs[name].cutting,
            total,
            divided[name],
            column_bytes(manifest.columns, total.tokens_packed, total.segments, total.packs),
        )
        for name, total in sums.items()
    ]


def _config(options: Mapping[str, object], max_length: int, strategy: str) -> BuildConfig | None:
    """The options of the build with another strategy; None if they exclude each other."""
    kept = {key: options[key] for key in _KEPT if key in options}
    if strategy == "wrapped":  # it cuts at the ends of packs, so pieces do not overlap
        kept = {
            key: value for key, value in kept.items() if key not in ("stride", "continuation_bos")
        }
    if strategy not in ONE_BY_ONE:
        kept["shuffle_documents"] = False
    try:
        return BuildConfig(**from_recorded(kept), max_length=max_length, strategy=strategy)
    except ConfigError:
        return None
