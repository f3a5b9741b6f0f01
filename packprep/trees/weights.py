"""Weights of the tokens of a tree: the number of rows that train each.

A token that several rows share is trained by each of them that has a label there, so it counts that
often in the loss: the gradient is that of the separate rows.
"""

from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from packprep.packing.kernels.compiled import Out, kernel
from packprep.schemas.index.copy_loop import pointer
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Int32, Int64


@kernel
def fill_weights(
    address: Int64,
    like: NDArray[Any],
    untrained: int,
    head: Int64,
    last: Int64,
    start: Int64,
    length: Int64,
    parent: Int64,
    place: Int64,
    out: Out[Int32],
    trained: Out[Int32],
    begin: Out[Int32],
) -> None:
    """Add to `out` the number of rows that train each token, and describe each row.

    address: [rows], of the label of each row's first token; 0 if all its tokens are trained. like:
    empty, of the labels' type. untrained: label of a token without loss. head: [rows], first tokens
    that are not trained. last: [rows], the node at which the row ends. start, length, parent,
    place: [nodes], tokens before the node on its path, tokens of it, the node before (-1 at a
    root), and where its first token is in `out`. trained, begin: [rows], the tokens that each row
    trains, and the tokens before the first of them.
    """
    for row in range(len(last)):
        node, count = last[row], 0
        earliest = start[node] + length[node]
        while node >= 0:
            first = head[row] - start[node]
            if first < 0:
                first = 0
            tokens = length[node] - first
            if tokens > 0:
                weights = out[place[node] + first : place[node] + first + tokens]
                if address[row] == 0:
                    for token in range(tokens):
                        weights[token] += 1
                    count += tokens
                    earliest = start[node] + first
                else:
                    labels = address[row] + like.itemsize * (start[node] + first)
                    values = carray(pointer(labels), tokens, like.dtype)
                    before = count
                    for token in range(tokens):
                        is_trained = values[token] != untrained
                        weights[token] += is_trained
                        count += is_trained
                    if count > before:
                        token = 0
                        while values[token] == untrained:
                            token += 1
                        earliest = start[node] + first + token
            node = parent[node]
        trained[row], begin[row] = count, earliest


@kernel
def count_from(
    begin: Int32,
    last: Int64,
    start: Int64,
    length: Int64,
    parent: Int64,
    place: Int64,
    weights: Int32,
    counts: Out[Int32],
) -> None:
    """Count the tokens of each row that any row trains, from the row's token `begin` on.

    Arguments as for `fill_weights`; counts: [rows].
    """
    for row in range(len(last)):
        node, count = last[row], 0
        while node >= 0 and start[node] + length[node] > begin[row]:
            first = begin[row] - start[node]
            if first < 0:
                first = 0
            for token in range(place[node] + first, place[node] + length[node]):
                count += weights[token] > 0
            node = parent[node]
        counts[row] = count


def are_tokens(labels: Pointers, tokens: Pointers, lengths: Int64, untrained: int) -> bool:
    """True if each label is that of a token without loss, or the token itself; [runs] each."""
    like = np.empty(0, tokens.dtype)
    return bool(_are_tokens(labels.address, tokens.address, like, lengths, untrained))


@kernel
def _are_tokens(
    labels: Int64, tokens: Int64, like: NDArray[Any], lengths: Int64, untrained: int
) -> bool:
    for run in range(len(lengths)):
        length = lengths[run]
        targets = carray(pointer(labels[run]), length, np.int32)
        values = carray(pointer(tokens[run]), length, like.dtype)
        others = 0
        for place in range(length):
            others += (targets[place] != untrained) & (targets[place] != values[place])
        if others:
            return False
    return True
