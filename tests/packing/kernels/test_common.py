"""The message about compiling kernels."""

import numpy as np
from numba import njit

from packprep.packing.kernels.common import compiling, hash64


def test_compiling_kernels_is_reported_once_and_only_if_any_is_compiled() -> None:
    hash64(np.uint64(1), np.uint64(2))
    lines: list[str] = []
    with compiling(lines.append):
        hash64(np.uint64(3), np.uint64(4))
        assert lines == []
        compiled = njit(lambda number: number + 1)
        assert (compiled(1), compiled(1.0)) == (2, 2.0)
    assert lines == ["compiling kernels; this takes some seconds, once after an installation"]
    njit(lambda number: number + 2)(1)
    assert len(lines) == 1
