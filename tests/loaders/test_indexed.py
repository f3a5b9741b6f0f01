"""The compiled copy of token runs, which the loader of an index makes for itself."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packprep.loaders.indexed import compiled_copy
from packprep.schemas.index.runs import Pointers, Runs


def copied() -> list[int]:
    """Three values from the third on, and one of padding."""
    copy, values = compiled_copy(), np.arange(10, dtype=np.int32)
    assert copy is not None
    begin = Pointers.into(values, np.array([2]))
    runs = Runs(begin, np.array([3]), np.array([False]), np.array([4]))
    out = np.zeros(4, np.int64)
    copy(runs, 0, 1, 7, 9, out)
    return out.tolist()


@pytest.mark.long
def test_another_process_uses_what_the_first_has_compiled(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    code = "from tests.loaders.test_indexed import copied; assert copied() == [2, 3, 4, 9]"
    kept = []
    for _ in range(2):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        kept.append({file.name for file in tmp_path.rglob("*.nb?")})
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2
