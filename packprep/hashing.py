"""Random-looking bits, a function of a seed and a number: the same on every machine, in any order, for any worker.

splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix(seed: int, values: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """64 bits for each value; different values of a seed never share them."""
    with np.errstate(over="ignore"):
        bits = _finish((np.asarray(values).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        return _finish(bits + np.uint64(seed % 2**64) * _MIX_1 + _GOLDEN)


def drawn(seed: int, values: NDArray[np.integer[Any]], share: float) -> NDArray[np.bool_]:
    """Which values fall into a share, 0 to 1, that the seed draws."""
    if share >= 1:
        return np.ones(len(values), np.bool_)
    return mix(seed, values) < np.uint64(int(share * 2.0**64))


def _finish(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
