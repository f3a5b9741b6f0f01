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
from ..schemas.tokens import Pointers, span


def count_trained(
    labels: Pointers, document: Int32, start: Int32, count: Int32, bos: Bools
) -> tuple[Int32, Int32]:
    """Trained tokens of pieces, and tokens repeated from an earlier one, [pieces] each.

    Pieces of a document are in order. Tokens that pieces share are trained in the first of these
    pieces that has a trained token. bos: something goes before the piece in its pack.
    """
    trained, repeated = np.zeros(len(document), np.int32), np.zeros(len(document), np.int32)
    like = np.empty(0, labels.dtype)
    pieces = (document, start, count, bos)
    _count(labels.address, *pieces, _untrained(labels), like, trained, repeated)
    return trained, repeated


def turn_at(labels: Pointers, document: int, length: int, most: int) -> tuple[int, int, int]:
    """First token, first trained token and end of the turn of a document that holds token `most`.

    A turn is a run of tokens without loss, such as a question, and the trained tokens after it.
    """
    values = span(labels.address[document], length, labels.dtype)
    trained = values != _untrained(labels)
    begins = np.append(0, np.flatnonzero(trained[:-1] & ~trained[1:]) + 1)
    turn = int(np.searchsorted(begins, most, side="right"))
    begin, end = int(begins[turn - 1]), int(np.append(begins, length)[turn])
    answers = np.flatnonzero(trained[begin:end])
    return begin, begin + int(answers[0]) if len(answers) else end, end


def _untrained(labels: Pointers) -> int:
    return 0 if labels.dtype == np.int8 else NO_LOSS


@kernel
def _count(
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
    """See `count_trained`. like: an array of the type of the values."""
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
