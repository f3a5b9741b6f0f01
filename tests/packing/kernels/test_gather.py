import ast
import copy
import gc
import pickle
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.packing.kernels import gather
from packprep.schemas.index.runs import Copy, Pointers, Runs, copy_runs


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_pointers_alone_keep_the_memory_that_they_point_into() -> None:
    def make_pointers() -> tuple[Pointers, list[weakref.ref[np.ndarray]]]:
        arrays = [np.arange(first, first + 100_000, dtype=np.int32) for first in (0, 100_000)]
        parts = [Pointers.into(values, int64(0, 50_000, 99_999)) for values in arrays]
        joined = Pointers.joined([part.take(int64(2, 1)) for part in parts])
        return joined.take(np.array([True, False, True, True])).take(slice(1, None)).shifted(
            int64(0, 1), int64(-1, 2)
        ), [weakref.ref(values) for values in arrays]

    pointers, memory = make_pointers()
    gc.collect()
    # would overwrite memory that was freed
    _reused = [np.full(100_000, 7, np.int32) for _ in range(8)]
    assert [values() is not None for values in memory] == [True, True]
    assert len(pointers) == 2
    assert gather.tokens_at(pointers).tolist() == [199_998, 150_002]
    out = np.zeros(5, np.int32)
    runs = Runs(pointers, int64(1, 2), np.array([False, True]), int64(2, 3))
    gather.copy_compiled(runs, 0, 2, 1, 3, out)
    assert out.tolist() == [199_998, 3, 1, 150_002, 150_003]
    del pointers, runs
    assert [values() for values in memory] == [None, None], (
        "the memory is freed with the last pointers"
    )


@pytest.mark.parametrize("copied", [copy_runs, gather.copy_compiled])
@pytest.mark.parametrize(("stored", "written"), [(np.int32, np.int32), (np.uint16, np.int64)])
def test_a_mask_and_the_head_of_a_run_leave_padding_in_place_of_values(
    copied: Copy, stored: Any, written: Any
) -> None:
    values = Pointers.into(np.arange(50_000, 50_010).astype(stored), int64(0, 4, 4))
    mask = Pointers.into(np.array([1, 1, 0, 1, 0, 2, -1, 1], np.int8), int64(0, 4, 4))
    bos = np.array([False, True, False])
    out = np.zeros(10, written)
    runs = Runs(values, int64(4, 3, 0), bos, int64(5, 4, 1), mask, int64(1, 1, 0))
    copied(runs, 0, 3, 9, -100, out)
    assert out.tolist() == [-100, 50_001, -100, 50_003, -100, -100, -100, 50_005, 50_006, -100]
    copied(replace(runs, mask=None), 1, 3, 9, -100, out[:5])
    assert out[:5].tolist() == [-100, 50_004, 50_005, 50_006, -100]
    copied(replace(runs, head=None), 1, 3, 9, -100, out[:5])
    assert out[:5].tolist() == [9, -100, 50_005, 50_006, -100]


def test_pointers_of_two_types_are_never_joined() -> None:
    narrow, wide = (Pointers.into(np.zeros(1, dtype), int64(0)) for dtype in (np.uint16, np.int32))
    with pytest.raises(ValueError, match="pointers to int32, uint16 cannot be joined"):
        Pointers.joined([narrow, wide])
    assert Pointers.joined([Pointers.null(0), narrow]).dtype == np.uint16, (
        "an empty part has no type"
    )


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_addresses_are_never_sent_to_another_process(send: Any) -> None:
    with pytest.raises(
        TypeError, match="addresses are not valid in another process; send the values"
    ):
        send(Pointers.into(np.zeros(1, np.int32), int64(0)))


# Of kernels, of mapped files, and of what an index looks up.
ADDRESSES = "labels.py memory.py merge.py runs.py token_file.py trees.py weights.py"


def test_only_pointers_create_addresses_and_only_kernels_receive_them() -> None:
    root = Path(__file__).parents[3]
    uses = {
        (path.name, node.attr)
        for folder in ("packprep", "schemas", "loaders")
        for path in (root / folder).rglob("*.py")
        if root / "packprep" / "next" not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        if node.attr in ("address", "__array_interface__") or ast.unparse(node).endswith(".ctypes")
    }
    begins = {
        ("runs.py", "ctypes"),
        ("runs.py", "__array_interface__"),
        ("token_file.py", "ctypes"),
    }
    assert uses == {(name, "address") for name in ADDRESSES.split()} | begins
