"""Random numbers and bitmaps of kernels."""

import numpy as np

from packprep.packing.kernels.common import shuffle, shuffle_ranges


def test_a_range_is_shuffled_like_the_same_range_of_a_longer_array() -> None:
    both, one = np.arange(700, dtype=np.int32), np.arange(700, dtype=np.int32)
    shuffle_ranges(both, np.array([0, 600, 600, 700]), np.uint64(7))
    shuffle(one, 600, 700, np.uint64(7))
    assert both[600:].tolist() == one[600:].tolist() != list(range(600, 700))
    assert sorted(both[:600]) == list(range(600))
