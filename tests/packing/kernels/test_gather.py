import ast
import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.packing.kernels import gather
from packprep.packing.kernels.common import shuffle, shuffle_ranges
from packprep.packing.kernels.gather import Pointers


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("bos", "eos", "expected", "offsets"),
    [
        (1, 2, [1, 7, 8, 2, 1, 9, 2], [0, 4, 4, 7]),
        (-1, 2, [7, 8, 2, 9, 2], [0, 3, 3, 5]),
        (1, -1, [1, 7, 8, 1, 9], [0, 3, 3, 5]),
        (-1, -1, [7, 8, 9], [0, 2, 2, 3]),
    ],
)
def test_bos_and_eos_are_added_to_every_document_that_has_ids(
    bos: int, eos: int, expected: list[int], offsets: list[int]
) -> None:
    before = int64(0, 2, 2, 3)
    wider = gather.with_ends(before, (bos >= 0) + (eos >= 0))
    assert wider.tolist() == offsets
    out = np.zeros(wider[-1], np.int32)
    ids = np.array([7, 8, 9], np.int32)
    ids.setflags(write=False)
    gather.add_ends(ids, before, wider, bos, eos, out)
    assert out.tolist() == expected


def test_tokens_come_from_their_addresses_with_bos_before_and_padding_after() -> None:
    first, second = np.array([10, 11, 12], np.int32), np.array([20, 21], np.int32)
    values = Pointers.joined(
        [Pointers.into(second, int64(0)), Pointers.into(first, int64(1)), Pointers.null(1)]
    )
    out = np.zeros(8, np.int32)
    gather.fill_values(
        values, int64(2, 2, 0), int64(2, 4, 2), np.array([False, True, False]), 1, 3, out
    )
    assert out.tolist() == [20, 21, 1, 11, 12, 3, 3, 3]


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
    gather.fill_values(pointers, int64(1, 2), int64(2, 3), np.array([False, True]), 1, 3, out)
    assert out.tolist() == [199_998, 3, 1, 150_002, 150_003]
    del pointers
    assert [values() for values in memory] == [None, None], (
        "the memory is freed with the last pointers"
    )


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


# Of kernels, of mapped files and of the runs of an index.
ADDRESSES = "gather.py labels.py memory.py merge.py trees.py weights.py index_shards.py"


def test_only_pointers_create_addresses_and_only_kernels_receive_them() -> None:
    package = Path(gather.__file__).parents[2]
    uses = {
        (path.name, node.attr)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        if node.attr in ("address", "__array_interface__") or ast.unparse(node).endswith(".ctypes")
    }
    assert uses == {(name, "address") for name in ADDRESSES.split()} | {("gather.py", "ctypes")}


def test_positions_restart_at_every_segment() -> None:
    out = np.zeros(6, np.int32)
    gather.fill_positions(int64(2, 1, 3), out)
    assert out.tolist() == [0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "float32", "float64"])
def test_values_of_every_type_are_copied_like_tokens(dtype: str) -> None:
    tokens = np.array([1, 2, 3], dtype)
    out = np.ones(4, dtype)
    gather.fill_values(
        Pointers.into(tokens, int64(1)), int64(2), int64(4), np.array([True]), 0, 0, out
    )
    assert out.tolist() == [0, 2, 3, 0]


def test_labels_of_a_mask_are_the_tokens_where_it_is_set() -> None:
    out = np.zeros(3, np.int32)
    gather.labels_of_mask(np.array([7, 8, 9], np.int32), np.array([1, 0, 1], np.int8), out)
    assert out.tolist() == [7, -100, 9]


def test_the_first_tokens_and_the_padding_of_a_segment_have_no_label() -> None:
    out = np.array([7, 8, 9, 3, 5], np.int32)
    gather.clear_labels(int64(1, 2, 1), int64(2, 2, 0), int64(2, 2, 1), out)
    assert out.tolist() == [-100, 8, -100, -100, -100]
    out = np.array([7, 8, 9, 3], np.int32)
    gather.clear_labels(int64(1), int64(2), int64(4), out)
    assert out.tolist() == [-100, 8, -100, -100]


def test_cu_seqlens_start_at_zero_in_every_pack() -> None:
    out = np.zeros(5, np.int32)
    gather.fill_cu_seqlens(int64(2, 3, 4), int64(0, 2, 3), out)
    assert out.tolist() == [0, 2, 5, 0, 4]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_the_token_at_each_address(dtype: str) -> None:
    tokens = np.array([7, 8, 65_000], dtype)
    assert gather.tokens_at(Pointers.into(tokens, int64(2, 0))).tolist() == [65_000, 7]


def test_narrow_tokens_are_copied_as_int32() -> None:
    tokens, out = np.array([65_535, 40_000], np.uint16), np.zeros(3, np.int32)
    gather.fill_values(
        Pointers.into(tokens, int64(0)), int64(2), int64(3), np.array([True]), 1, 3, out
    )
    assert out.tolist() == [1, 65_535, 40_000]
    gather.add_ends(np.array([65_535], np.int32), int64(0, 1), int64(0, 2), -1, 40_000, tokens)
    assert tokens.tolist() == [65_535, 40_000]


def test_a_range_is_shuffled_like_the_same_range_of_a_longer_array() -> None:
    both, one = np.arange(700, dtype=np.int32), np.arange(700, dtype=np.int32)
    shuffle_ranges(both, np.array([0, 600, 600, 700]), np.uint64(7))
    shuffle(one, 600, 700, np.uint64(7))
    assert both[600:].tolist() == one[600:].tolist() != list(range(600, 700))
    assert sorted(both[:600]) == list(range(600))
