"""Compile kernels before they are needed, or load them from the cache on disk."""

import importlib
import pkgutil
from collections.abc import Sequence

from numpy.typing import DTypeLike

from packprep.packing import kernels
from packprep.packing.api import pack_lengths
from packprep.packing.kernels.compiled import KERNELS, Kernel, Variant
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


def all_variants(modules: Sequence[str]) -> list[tuple[Kernel, Variant]]:
    """All kernels, with the types that are likely.

    modules: those with kernels outside of this package.
    """
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    for name in modules:
        importlib.import_module(name)
    return [(kernel, variant) for kernel in KERNELS for variant in kernel.variants or [()]]
