"""Kernels are compiled once each, for types known in advance."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from packprep.packing.kernels.compiled import Kernel, Out, compiling
from packprep.support.arrays import Int32


def add(values: Int32, number: int, out: Out[Int32]) -> None:
    for i in range(values.size):
        out[i] = values[i] + number


def copy(values: NDArray[Any], out: Out[NDArray[Any]]) -> None:
    for i in range(values.size):
        out[i] = values[i]


def test_compiling_kernels_is_reported_once_and_only_if_any_is_compiled() -> None:
    lines: list[str] = []
    with compiling(lines.append):
        assert lines == []
        compiled = njit(lambda number: number + 1)
        assert (compiled(1), compiled(1.0)) == (2, 2.0)
    assert lines == ["compiling kernels (first run)"]
    njit(lambda number: number + 2)(1)
    assert len(lines) == 1


def test_a_kernel_is_compiled_once_for_read_only_arrays_and_numbers_of_any_width() -> None:
    kernel, out = Kernel(add), np.zeros(2, np.int32)
    values = np.array([1, 2], np.int32)
    compiled = kernel.load()
    kernel(values, 1, out)
    values.setflags(write=False)
    kernel(values, np.int32(1), out)
    assert out.tolist() == [2, 3]
    assert len(compiled.signatures) == 1


@pytest.mark.parametrize("values", [np.array([1, 2]), np.array([1, 0, 2], np.int32)[::2]])
def test_an_array_of_other_elements_or_with_gaps_is_copied_to_be_read_only(values: Any) -> None:
    kernel, out = Kernel(add), np.zeros(2, np.int32)
    kernel(values, 1, out)
    assert out.tolist() == [2, 3]
    for wrong in (np.zeros(2, np.int64), np.zeros(4, np.int32)[::2]):
        with pytest.raises(TypeError, match="No matching definition"):
            kernel(values, 1, wrong)


def test_a_kernel_of_any_elements_has_a_variant_for_each_type() -> None:
    kernel, out = Kernel(copy), np.zeros(1, np.int64)
    kernel(np.array([3], np.int8), out)
    assert out.tolist() == [3]
    kernel(np.array([4.0]), out)
    assert out.tolist() == [4]


def test_two_threads_that_need_a_kernel_compile_it_once() -> None:
    kernel = Kernel(add)
    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(lambda _: kernel.load(), range(2))]
    assert results[0] is results[1]


_TWO_KERNELS = """
import sys
import numpy as np
from packprep.packing.kernels.gather import fill_positions
from packprep.packing.kernels.deal import queue_by_key
out, queue = np.empty(3, np.int32), np.empty(2, np.int32)
fill_positions(np.array([1, 2]), out)
print(out.tolist(), "numba.np.arrayobj" in sys.modules)
queue_by_key(np.array([1, 0], np.int32), np.array([0, 1], np.uint32), queue)
print(queue.tolist())
"""


@pytest.mark.long
def test_a_kernel_in_the_cache_is_loaded_without_the_compiler_and_others_compile(
    tmp_path: Path,
) -> None:
    def run() -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", _TWO_KERNELS]
        return subprocess.check_output(command, env=environment, text=True).splitlines()

    assert run() == ["[0, 0, 1] True", "[1, 0]"]
    for file in tmp_path.rglob("deal.queue_by_key*"):
        file.unlink()
    assert run() == ["[0, 0, 1] False", "[1, 0]"]
    assert run() == ["[0, 0, 1] False", "[1, 0]"]
