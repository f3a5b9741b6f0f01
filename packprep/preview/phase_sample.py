"""Tokens of each phase of a build, predicted from a sample of its documents."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.support.arrays import Int64
from packprep.windows.phase_sizes import largest_total


def phase_tokens(
    sizes: Sequence[Int64],
    entries: Int64,
    scales: NDArray[np.float64],
    config: BuildConfig,
) -> list[int]:
    """Training tokens of each phase.

    sizes: for each phase, tokens in packs of the documents of the sample, [documents]. entries,
    scales: source of each document in `sources`, and documents that it stands for, [documents].
    """
    phases = config.phase_list()
    amounts = [phase.tokens for phase in phases if phase.tokens is not None]
    if len(amounts) == len(phases):
        return amounts
    kinds = sum((size > 0).astype(np.int64) << bit for bit, size in enumerate(sizes))
    table: dict[tuple[int, int], list[int]] = {}
    for key in np.unique(np.stack([entries, kinds]), axis=1).T.tolist():
        members = (entries == key[0]) & (kinds == key[1])
        table[key[0], key[1]] = [round(float((size * scales)[members].sum())) for size in sizes]
    most = [entry.max_epochs for entry in config.entries()]
    total, _ = largest_total(phases, most, table)
    return [int(total * (phase.share or 0)) for phase in phases]
