"""Compile kernels before they are needed, or load them from the cache on disk."""

from numpy.typing import DTypeLike

from packprep.packing.api import pack_lengths
from packprep.packing.kernels.gather import load_gather
from packprep.packing.strategies import STRATEGIES


def load_build(
    ids: DTypeLike,
    shards: tuple[DTypeLike, DTypeLike],
    strategy: str | None,
    order: str,
    slots: int | None,
) -> None:
    """Load the kernels of a build, those for tokens first.

    ids: type of the ids in token files. shards: types of tokens and positions in shards. strategy:
    None for a planner of the user's own. order, slots: see `pack_lengths`. Kernels for labels and
    for groups are loaded when they are called.
    """
    load_gather(ids, *shards)
    if strategy in STRATEGIES:
        pack_lengths([1, 1], 2, strategy, order=order, max_segments_per_pack=slots)
