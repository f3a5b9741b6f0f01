"""Lower bounds: how many packs any plan needs at least."""

import numpy as np
from numpy.typing import NDArray

from packprep.kernels import Int32s


def lower_bound(
    lengths: Int32s,
    max_length: int,
    max_segments_per_pack: int | None = None,
    groups: NDArray[np.integer] | None = None,
    atoms: NDArray[np.integer] | None = None,
) -> int:
    """The largest number of packs that is proven necessary."""
    return -(-int(lengths.sum(dtype=np.int64)) // max_length)
