"""Copy tokens: engines' ids into token files, and values of token files into columns of packs."""

from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packprep.packing.kernels.compiled import Kernel, Out, inlined, kernel
from packprep.schemas.index.copy_loop import copy_loop
from packprep.schemas.index.runs import Pointers, Runs, copy_by
from packprep.support.arrays import Int32, Int64


@inlined
def _copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values to out, which has the same length."""
    for place in range(len(out)):
        out[place] = values[place]


def with_ends(offsets: Int64, ends: int) -> Int64:
    """Offsets of documents after `ends` tokens are added to each, [documents + 1].

    Documents without tokens get none.
    """
    lengths = np.diff(offsets)
    return np.append(0, np.cumsum(lengths + ends * (lengths > 0)))


@kernel
def add_ends(
    ids: Int32, offsets: Int64, wider: Int64, bos: int, eos: int, out: Out[NDArray[Any]]
) -> None:
    """Copy documents with BOS before and EOS after each; documents without ids get none.

    ids: [tokens]. bos, eos: id, or -1 for none. offsets, wider: [documents + 1], where documents
    begin in ids and in out.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        if first == last:
            continue
        cursor = wider[document]
        if bos >= 0:
            out[cursor] = bos
            cursor += 1
        _copy(ids[first:last], out[cursor : cursor + last - first])
        if eos >= 0:
            out[wider[document + 1] - 1] = eos


@kernel
def make_room(
    values: NDArray[Any], offsets: Int64, wider: Int64, before: int, out: Out[NDArray[Any]]
) -> None:
    """Copy values of documents to the places of their tokens after `add_ends`.

    before: places at the beginning of each document that are for BOS. offsets, wider: [documents +
    1], where documents begin in values and in out. Other places in out are unchanged.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        start = wider[document] + before
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
