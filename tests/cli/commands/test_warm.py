"""`packprep warm` compiles kernels, or says that they cannot be kept."""

from pathlib import Path

import pytest
from numba.core import config

from packprep.packing.kernels.compiled import Kernel, Out
from packprep.support.arrays import Int32
from tests.helpers.command import run


def first(values: Int32, out: Out[Int32]) -> None:
    out[0] = values[0]


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one kernel in a fresh process, in place of all."""
    monkeypatch.setattr(
        "packprep.packing.warm.all_variants", lambda modules: [(Kernel(first, ()), ())]
    )


def test_kernels_are_compiled_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert run("warm").out == "1 kernels are ready\n"
        assert len(list(tmp_path.iterdir())) == 1


def test_kernels_that_cannot_be_kept_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "kernels"))
    result = run("warm", "-q")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "packprep: no folder to keep kernels can be written; set NUMBA_CACHE_DIR\n"
    )
