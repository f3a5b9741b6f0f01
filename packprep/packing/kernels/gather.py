"""Copy tokens: engines' ids into token files, and values of token files into columns of packs."""

from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packprep.packing.kernels.compiled import Kernel, Out, inlined, kernel
from packprep.schemas.index.copy_loop import copy_loop
from packprep.schemas.index.runs import Pointers, Runs, copy_by
from packprep.support.arrays import Bools, Int32, Int64


@inlined
def _copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values to out, which has the same length."""
    for place in range(len(out)):
        out[place] = values[place]


def missing_ends(
    ids: Int32, offsets: Int64, bos: int, eos: int, *, may_have: bool
) -> tuple[Bools, Bools]:
    """True for the documents that get BOS, and those that get EOS, [documents] each.

    Documents without ids get none. bos, eos: id, or -1 for none. may_have: True if the ids may
    begin with BOS and end with EOS, which is then not added; a single id is one of them.
    Example: [1, 7], [7, 2], [1] with BOS 1 and EOS 2 get EOS, BOS, EOS
    """
    full = np.diff(offsets) > 0
    before, after = full & (bos >= 0), full & (eos >= 0)
    if may_have:
        begins, ends = offsets[:-1][full], offsets[1:][full] - 1
        has_bos = ids[begins] == bos
        before[full] &= ~has_bos
        after[full] &= (ids[ends] != eos) | (has_bos & (begins == ends))
    return before, after


def with_ends(offsets: Int64, before: Bools, after: Bools) -> Int64:
    """Offsets of documents after BOS and EOS are added, see `missing_ends`, [documents + 1]."""
    return np.append(0, np.cumsum(np.diff(offsets) + before + after))


@kernel
def add_ends(
    ids: Int32,
    offsets: Int64,
    wider: Int64,
    before: Bools,
    bos: int,
    eos: int,
    out: Out[NDArray[Any]],
) -> None:
    """Copy documents, with BOS before those of `before`, and EOS where `wider` has room for it.

    ids: [tokens]. offsets, wider: [documents + 1], where documents begin in ids and in out.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        cursor = wider[document]
        if before[document]:
            out[cursor] = bos
            cursor += 1
        _copy(ids[first:last], out[cursor : cursor + last - first])
        if cursor + last - first < wider[document + 1]:
            out[wider[document + 1] - 1] = eos


@kernel
def make_room(
    values: NDArray[Any], offsets: Int64, wider: Int64, before: Bools, out: Out[NDArray[Any]]
) -> None:
    """Copy values of documents to the places of their tokens after `add_ends`.

    offsets, wider: [documents + 1], where documents begin in values and in out. Other places in out
    are unchanged.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        start = wider[document] + before[document]
        _copy(values[first:last], out[start : start + last - first])


_copy_runs = kernel(copy_loop)
copy_compiled = copy_by(_copy_runs)
"""`copy_runs`, compiled."""


def load_gather(ids: DTypeLike, tokens: DTypeLike, positions: DTypeLike) -> None:
    """Load the kernels that copy ids of this type into token files, and into columns of shards."""
    kind, position = np.dtype(ids), np.dtype(positions)
    for compiled, variants in (
        (add_ends, [(kind,)]),
        (_copy_runs, [(kind, np.dtype(tokens)), (position, position)]),
    ):
        for variant in variants:
            cast("Kernel", compiled).load(variant)


def tokens_at(tokens: Pointers) -> Int32:
    """The token at each pointer, [pointers]."""
    ids, ones = np.empty(len(tokens), np.int32), np.ones(len(tokens), np.int64)
    runs = Runs(tokens, ones, np.zeros(len(tokens), np.bool_), ones)
    copy_compiled(runs, 0, len(tokens), 0, 0, ids)
    return ids
