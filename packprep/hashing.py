"""Random-looking bits, a function of a seed and a number: the same on every machine, in any order, for any worker.

splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

Bits = TypeVar("Bits", np.uint64, NDArray[np.uint64])


def mix(seed: int, values: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """64 bits for each value; different values of a seed never share them."""
    with np.errstate(over="ignore"):
        bits = finish((np.asarray(values).astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return finish(bits + np.uint64(seed % 2**64) * _MIX_1 + GOLDEN)


def drawn(seed: int, values: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Which values fall into a share, 0 to 1, that the seed draws."""
    if share >= 1:
        return np.ones(len(values), np.bool_)
    return mix(seed, values) < np.uint64(int(share * 2.0**64))


def finish(bits: Bits) -> Bits:
    """splitmix64 after its counter: an array here, a number in compiled kernels."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
