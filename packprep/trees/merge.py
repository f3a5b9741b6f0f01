"""Rows of a group in depth-first order, and the prefix that each shares with the row before.

These two arrays describe a whole trie: rows that begin alike are neighbours, and two rows share the
smallest number between them. Rows are inserted one by one into a compressed trie (Morrison:
"PATRICIA", 1968); children are found by a hash of their parent and first token. Rows that end at a
node come before its children, and children are in the order of their first rows.

Example: rows [1, 2, 3], [1, 2], [1, 4] -> order [1, 0, 2], shared [0, 2, 1].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from packprep.packing.kernels.common import smaller
from packprep.packing.kernels.compiled import Out, inlined, kernel
from packprep.schemas.index.copy_loop import pointer
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Int32, Int64

_BLOCK = 16  # values that are compared without a branch
_HASH = 0x9E3779B97F4A7C15  # 2^64 / golden ratio (Knuth, The Art of Computer Programming, 6.4)

_NONE = -1


def merge_prefixes(
    tokens: Pointers, lengths: Int32, groups: Int64, columns: Sequence[Pointers] = ()
) -> tuple[Int64, Int64]:
    """Depth-first order of the rows, and the tokens that each shares with the row before it.

    tokens: [rows], the first token of each. lengths: [rows], 1 or more. groups: [groups + 1], the
    first row of each group; only rows of one group share. columns: other columns with a value per
    token; tokens are shared only where the bytes of all columns are equal too. Both results are
    int64 [rows].
    """
    rows = len(lengths)
    order, shared = np.empty(rows, np.int64), np.zeros(rows, np.int64)
    most = int(np.diff(groups).max(initial=0))
    slots = 1 << (4 * most).bit_length()
    _merge(
        tokens.address,
        np.empty(0, tokens.dtype),
        lengths.astype(np.int64),
        groups.astype(np.int64),
        np.concatenate([np.empty(0, np.int64), *(column.address for column in columns)]),
        np.array([column.dtype.itemsize for column in columns], np.int64),
        np.empty(slots, np.int32),
        np.empty(_FIELDS * (2 * most + 1), np.int32),
        np.empty(max(most, 1), np.int32),
        order,
        shared,
    )
    return order, shared


_FIELDS = 10  # of a node: row, start, end, parent, first and last child, next and previous, ends


@inlined
def _equal_values(first: NDArray[Any], second: NDArray[Any], most: int) -> int:
    """Number of equal values at the beginning of two arrays, at most `most`."""
    place = 0
    while place + _BLOCK <= most:
        differ = 0
        for lane in range(_BLOCK):
            differ |= first[place + lane] ^ second[place + lane]
        if differ != 0:
            break
        place += _BLOCK
    while place < most and first[place] == second[place]:
        place += 1
    return place


@kernel
def _merge(
    address: Int64,
    like: NDArray[Any],
    lengths: Int64,
    groups: Int64,
    columns: Int64,
    widths: Int64,
    table: Out[Int32],
    nodes: Out[Int32],
    next_end: Out[Int32],
    order: Out[Int64],
    shared: Out[Int64],
) -> None:
    """Fill order and shared; see `merge_prefixes`.

    columns: [columns x rows], addresses. widths: [columns], bytes of a value. table: scratch, a
    power of two of slots. nodes: scratch, fields of nodes. next_end: scratch, the next row that
    ends at the same node.
    """
    rows = len(lengths)
    for group in range(len(groups) - 1):
        first, last = groups[group], groups[group + 1]
        count = last - first
        if count == 1:
            order[first], shared[first] = first, 0
        if count <= 1:
            continue
        slots = 4
        while slots < 4 * count:
            slots *= 2
        for slot in range(slots):
            table[slot] = _NONE
        size = 2 * count + 1
        row_of, start = nodes[:size], nodes[size : 2 * size]
        end, parent = nodes[2 * size : 3 * size], nodes[3 * size : 4 * size]
        child, youngest = nodes[4 * size : 5 * size], nodes[5 * size : 6 * size]
        after, before = nodes[6 * size : 7 * size], nodes[7 * size : 8 * size]
        ending, last_ending = nodes[8 * size : 9 * size], nodes[9 * size : 10 * size]
        row_of[0], start[0], end[0], parent[0] = 0, 0, 0, _NONE
        child[0], youngest[0], ending[0], last_ending[0] = _NONE, _NONE, _NONE, _NONE
        after[0], before[0] = _NONE, _NONE
        made = 1
        for number in range(count):
            row = first + number
            length = lengths[row]
            values = carray(pointer(address[row]), length, like.dtype)
            node, depth = 0, 0
            while depth < length:
                token = int(values[depth])
                slot = _slot(node, token, slots)
                same = 0
                while table[slot] != _NONE:
                    other = table[slot]
                    if parent[other] == node:
                        other_row = first + row_of[other]
                        reach = smaller(end[other], length)
                        prefix = carray(pointer(address[other_row]), reach, like.dtype)
                        if int(prefix[depth]) == token:
                            same = _equal_values(
                                values[depth:reach], prefix[depth:reach], reach - depth
                            )
                            for column in range(len(widths)):
                                width = widths[column]
                                one = columns[column * rows + row] + width * depth
                                two = columns[column * rows + other_row] + width * depth
                                equal = _equal_values(
                                    carray(pointer(one), width * same, np.uint8),
                                    carray(pointer(two), width * same, np.uint8),
                                    width * same,
                                )
                                same = smaller(same, equal // width)
                            if same > 0:
                                break
                    slot = (slot + 1) & (slots - 1)
                if same == 0:  # a new leaf
                    table[slot] = made
                    row_of[made], start[made], end[made] = number, depth, length
                    parent[made], child[made], youngest[made] = node, _NONE, _NONE
                    ending[made], last_ending[made] = _NONE, _NONE
                    after[made], before[made] = _NONE, youngest[node]
                    if youngest[node] == _NONE:
                        child[node] = made
                    else:
                        after[youngest[node]] = made
                    youngest[node] = made
                    node, depth = made, length
                    made += 1
                    continue
                lower = table[slot]
                depth += same
                if depth < end[lower]:  # a new node takes the upper part of the run
                    upper = made
                    made += 1
                    table[slot] = upper
                    row_of[upper], start[upper], end[upper] = row_of[lower], start[lower], depth
                    parent[upper], child[upper], youngest[upper] = node, lower, lower
                    ending[upper], last_ending[upper] = _NONE, _NONE
                    after[upper], before[upper] = after[lower], before[lower]
                    if before[upper] == _NONE:
                        child[node] = upper
                    else:
                        after[before[upper]] = upper
                    if after[upper] == _NONE:
                        youngest[node] = upper
                    else:
                        before[after[upper]] = upper
                    parent[lower], start[lower] = upper, depth
                    after[lower], before[lower] = _NONE, _NONE
                    longer = carray(pointer(address[first + row_of[lower]]), depth + 1, like.dtype)
                    slot = _slot(upper, int(longer[depth]), slots)
                    while table[slot] != _NONE:
                        slot = (slot + 1) & (slots - 1)
                    table[slot] = lower
                    node = upper
                else:
                    node = lower
            next_end[number] = _NONE
            if ending[node] == _NONE:
                ending[node] = number
            else:
                next_end[last_ending[node]] = number
            last_ending[node] = number
        node, place, common = 0, first, 0
        while node != _NONE:
            number = ending[node]
            while number != _NONE:
                order[place], shared[place] = first + number, common
                common = end[node]
                place += 1
                number = next_end[number]
            if child[node] != _NONE:
                node = child[node]
                continue
            while node != _NONE and after[node] == _NONE:
                node = parent[node]
            if node != _NONE:
                common = end[parent[node]]
                node = after[node]


@inlined
def _slot(node: int, token: int, slots: int) -> int:
    """First slot of the table to search for a child of `node` that begins with `token`."""
    mixed = (np.uint64(node) << np.uint64(32) | np.uint64(token & 0xFFFFFFFF)) * np.uint64(_HASH)
    return int(np.int64(mixed >> np.uint64(33))) & (slots - 1)
