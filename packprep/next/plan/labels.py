"""Trained tokens of documents: counted, and the turn in which a row is cut.

A row has labels (int32, -100 where there is no loss) or a mask (int8, 1 where there is one);
without either, every token is trained. These tokens never have a label: the first of a segment
(nothing before it predicts it), an added BOS, padding, and those that an earlier piece trains.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..packing.kernels.common import Out, array_at, kernel, larger
from ..schemas.arrays import Bools, Int32, Int64
from ..schemas.columns import NO_LOSS
from ..schemas.tokens import Documents, Pointers


def labels_of(documents: Documents) -> Pointers | None:
    """Labels or masks of documents; None if every token is trained."""
    return documents.aligned.get("labels", documents.aligned.get("mask"))


def count_trained(labels: Pointers, document: Int32, first: Int32, tokens: Int32) -> Int32:
    """Trained tokens among document[first : first + tokens], [runs]; 0 if tokens < 1."""
    counts = np.zeros(len(tokens), np.int32)
    address = labels.take(document).shifted(first).address
    _count(address, tokens, _untrained(labels), np.empty(0, labels.dtype), counts)
    return counts


def trained_once(
    labels: Pointers, document: Int32, start: Int32, count: Int32, bos: Bools
) -> tuple[Int32, Int32]:
    """Trained tokens of pieces, and tokens repeated from an earlier one, [pieces] each.

    Pieces of a document are in order. Tokens that pieces share are trained in the first of these
    pieces that has a trained token.
    """
    trained, repeated = np.zeros(len(document), np.int32), np.zeros(len(document), np.int32)
    like = np.empty(0, labels.dtype)
    pieces = (document, start, count, bos)
    _once(labels.address, *pieces, _untrained(labels), like, trained, repeated)
    return trained, repeated


def turns_at(labels: Pointers, lengths: Int32, most: int) -> tuple[Int32, Int32, Int32]:
    """First token, first trained token and end of the turn that holds token `most`, [documents].

    A turn is a run of tokens without loss, such as a question, and the trained tokens after it. For
    a document of at most `most` tokens it is the last turn.
    """
    begin, answer, end = (np.zeros(len(lengths), np.int32) for _ in range(3))
    like = np.empty(0, labels.dtype)
    _turns_at(labels.address, lengths, most, _untrained(labels), like, begin, answer, end)
    return begin, answer, end


def _untrained(labels: Pointers) -> int:
    return 0 if labels.dtype == np.int8 else NO_LOSS


@kernel
def _count(
    address: Int64, tokens: Int32, untrained: int, like: NDArray[Any], counts: Out[Int32]
) -> None:
    """See `count_trained`. like: an array of the type of the values."""
    for run in range(len(address)):
        if tokens[run] > 0:
            for value in array_at(address[run], tokens[run], like):
                counts[run] += value != untrained


@kernel
def _once(
    address: Int64,
    document: Int32,
    start: Int32,
    count: Int32,
    bos: Bools,
    untrained: int,
    like: NDArray[Any],
    trained: Out[Int32],
    repeated: Out[Int32],
) -> None:
    """See `trained_once`."""
    reached, last = 0, -1  # end of the last piece that trains, and its document
    for piece in range(len(document)):
        if document[piece] == last:
            repeated[piece] = larger(reached - start[piece], 0)
        head = larger(0 if bos[piece] else 1, repeated[piece])
        if count[piece] > head:
            first = address[document[piece]] + like.itemsize * (start[piece] + head)
            for value in array_at(first, count[piece] - head, like):
                trained[piece] += value != untrained
        if trained[piece] > 0:
            reached, last = start[piece] + count[piece], document[piece]


@kernel
def _turns_at(
    address: Int64,
    lengths: Int32,
    most: int,
    untrained: int,
    like: NDArray[Any],
    begin: Out[Int32],
    answer: Out[Int32],
    end: Out[Int32],
) -> None:
    """See `turns_at`."""
    for document in range(len(address)):
        length = lengths[document]
        if length == 0:
            continue
        values, place = array_at(address[document], length, like), 0
        while place <= most and place < length:
            begin[document] = place
            while place < length and values[place] == untrained:
                place += 1
            answer[document] = place
            while place < length and values[place] != untrained:
                place += 1
        end[document] = place
