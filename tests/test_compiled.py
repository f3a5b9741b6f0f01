"""Kernels give the same as plain Python or numpy, and are compiled once for all processes."""

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import pack_lengths
from packprep.packing.kernels.common import Kernel, Out
from packprep.packing.kernels.deal import ORDERS
from packprep.packing.strategies import STRATEGIES
from packprep.schemas.arrays import Int32
from packprep.schemas.cost import ATTENTION_COST
from packprep.schemas.gather import Runs, copy_runs
from packprep.schemas.tokens import Pointers

SIZES = [(0, 64), (1, 64), (90, 64), (200, 2048)]
MANY = [("best_fit", "shuffle"), ("first_fit", "balanced"), ("knapsack", "input")]
"""These need no compiler for 10,000 documents either."""


def plans_of(cases: Sequence[tuple[Any, ...]]) -> Iterator[list[bytes]]:
    for documents, longest, strategy, order, most in cases:
        lengths = np.random.default_rng(documents).integers(1, longest + 1, documents)
        plan = pack_lengths(lengths, longest, strategy, 7, order=order, max_segments_per_pack=most)
        figures = repr((plan.straggler(2, ATTENTION_COST), plan.bias)).encode()
        yield [plan.order.tobytes(), plan.offsets.tobytes(), figures]


def main() -> None:
    """Plan in a new process, which has compiled nothing; then again, compiled."""
    few: list[tuple[Any, ...]] = [
        (documents, *size, strategy, order, most)
        for (documents, *size), strategy, order in itertools.product(SIZES, STRATEGIES, ORDERS)
        for most in (None, 3)
        if order == "shuffle" or documents != 200
    ]
    cases = few + [(10_000, 2048, *each, None) for each in MANY]
    plain = [*plans_of(cases)]
    assert "numba" not in sys.modules
    long = [(300, 40_000, *case[2:]) for case in few]  # packs of which plain Python makes none
    assert len([*plans_of(long)]) == len(few)
    assert "numba" in sys.modules
    assert [*plans_of(cases)] == plain


def test_plans_of_plain_python_are_those_of_compiled_kernels() -> None:
    code = f"from {__name__} import main; main()"
    subprocess.run([sys.executable, "-c", code], check=True)


RUNS = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(0, 4), st.booleans(), st.integers(0, 3), st.integers(0, 9)
    ),
    max_size=12,
)
"""First value, values, whether a BOS goes before, padding, and values without a label."""


@pytest.mark.parametrize(
    ("stored", "written"),
    [("uint16", "int32"), ("int32", "int64"), ("uint16", "uint16"), ("float32", "float32")],
)
@given(drawn=RUNS, masked=st.booleans(), headed=st.booleans(), seed=st.integers(0, 9))
def test_runs_that_are_copied_compiled_are_those_of_numpy(
    stored: str, written: str, drawn: list[Any], masked: bool, headed: bool, seed: int
) -> None:
    from packprep.packing.kernels.gather import copy_compiled

    random = np.random.default_rng(seed)
    begin, count, bos, padding, head = (np.array([run[n] for run in drawn]) for n in range(5))
    begin, count, bos = begin.astype(np.int64), count.astype(np.int64), bos.astype(bool)
    padded = (count + bos + padding).astype(np.int64)
    values, mask = random.integers(1, 1 << 15, 14).astype(stored), random.integers(0, 2, 14)
    runs = Runs(
        Pointers.into(values, begin),
        count,
        bos,
        padded,
        Pointers.into(mask.astype(np.int8), begin) if masked else None,
        np.minimum(head, padded).astype(np.int64) if headed else None,
    )
    made = [np.full(padded.sum(), 7, written) for _ in range(2)]
    for copied, out in zip((copy_runs, copy_compiled), made, strict=True):
        copied(runs, 3, 5, out)
    assert made[0].tolist() == made[1].tolist()


def add(values: Int32, number: int, out: Out[Int32]) -> None:
    for i in range(values.size):
        out[i] = values[i] + number


def test_a_kernel_is_compiled_once_for_all_arrays_that_are_read_and_all_integers() -> None:
    kernel, out = Kernel(add), np.zeros(2, np.int32)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: kernel.load(), range(2))
    assert one is other
    values = np.array([1, 2], np.int32)
    values.setflags(write=False)
    for given_values in (values, np.array([1, 2]), np.array([1, 0, 2], np.int32)[::2]):
        kernel(given_values, np.int32(1), out)
        assert out.tolist() == [2, 3]
    assert len(one.signatures) == 1
    for wrong in (np.zeros(2, np.int64), np.zeros(4, np.int32)[::2]):  # would be written in vain
        with pytest.raises(TypeError, match="No matching definition"):
            kernel(values, 1, wrong)


def test_a_compiled_kernel_is_kept_where_a_folder_can_be_written_and_read_from_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from packprep.packing.kernels import disk_cache

    (tmp_path / "file").write_text("")
    folders = [tmp_path / "file" / "kernels", tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(disk_cache, "cache_folders", lambda source: folders)
    saved = list[int]()
    save = disk_cache.KernelCache.save_overload

    def counted(*each: Any) -> None:
        saved.append(1)
        save(*each)

    monkeypatch.setattr(disk_cache.KernelCache, "save_overload", counted)

    def compiles() -> bool:
        out = np.zeros(2, np.int32)
        Kernel(add)(np.array([1, 2], np.int32), 1, out)
        assert out.tolist() == [2, 3]
        return bool(saved) and bool(saved.pop())

    assert [compiles(), compiles()] == [True, False]
    (kept,) = folders[1].iterdir()
    folders[1].rename(folders[2])
    assert not compiles()
    kept = folders[2] / kept.name
    kept.write_bytes(kept.read_bytes()[:-1])  # cut short
    assert [compiles(), compiles()] == [True, False]
    monkeypatch.setattr(disk_cache, "_stamp", lambda source: b"another version")
    assert [compiles(), compiles()] == [True, False]
    folders[1:] = []
    assert [compiles(), compiles()] == [True, True]
