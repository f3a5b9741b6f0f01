"""Preference pairs: both sides of one are in one pack."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpaired(packs: NDArray[Any], ids: NDArray[Any], sides: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the segments, or rows, whose pair has not as many first as second sides in its pack.

    packs, ids, sides: of each. A mix may have several copies of a pair.
    Example: packs=[0, 0, 1, 1], ids=[7, 7, 8, 8], sides=[0, 1, 1, 1] -> [False, False, True, True]
    """
    alone = np.zeros(len(ids), np.bool_)
    if not len(ids):
        return alone
    order = np.lexsort((ids, packs))
    new = (np.diff(ids[order]) != 0) | (np.diff(packs[order]) != 0)
    firsts = np.append(0, np.flatnonzero(new) + 1)
    signs = np.where(sides[order] == 0, 1, -1)
    wrong = np.add.reduceat(signs, firsts) != 0
    alone[order] = np.repeat(wrong, np.diff(np.append(firsts, len(ids))))
    return alone
