"""Trained tokens: count tokens with a loss, and find the turn in which a row is cut.

The labels of a row come with its tokens: as labels (int32, NO_LOSS where there is no loss) or, four
times smaller, as a mask (int8, 1 where there is a loss). Without either, every token is trained. A
shard always has labels.

These tokens never have a label: the first token of a segment, an added BOS, and padding. (The first
token has nothing before it in the segment, and a trainer that shifts labels would predict it from
another document.) An added EOS has a label if the token before it has one. A token that `stride`
repeats has a label only in the first piece that is kept, unless `train_overlap`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from packprep.packing.kernels.common import larger
from packprep.packing.kernels.compiled import Out, kernel
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.index.copy_loop import pointer
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Bools, Int32, Int64


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels (int32) or masks (int8) of documents in memory.

    values: [documents], where those of each document begin.
    """

    values: Pointers

    @property
    def untrained(self) -> int:
        """The value of a token without loss."""
        return 0 if self.values.dtype == np.int8 else NO_LOSS

    def count(self, document: Int32, first: Int32, tokens: Int32) -> Int32:
        """Trained tokens among document[first : first + tokens], [runs]; 0 if tokens < 1."""
        runs = self.values.shifted(document, first.astype(np.int64))
        counts = np.zeros(len(tokens), np.int32)
        _count(runs.address, tokens, self.untrained, self._like, counts)
        return counts

    def trainable(
        self,
        document: Int32,
        start: Int32,
        count: Int32,
        bos: NDArray[np.bool_],
        least: int,
        train_overlap: bool,
    ) -> tuple[Int32, Int32]:
        """Trained tokens of pieces, and tokens repeated from an earlier one.

        document, start, count, bos: [pieces], see `Segments`; pieces of a document are in order.
        Both results are [pieces]. Tokens that pieces share are trained in the first of these pieces
        that is kept, unless train_overlap: the first with at least `least` trained tokens.
        """
        trained, repeated = np.zeros((2, len(document)), np.int32)
        _trainable(
            self.values.address,
            document,
            start,
            count,
            bos,
            least,
            train_overlap,
            self.untrained,
            self._like,
            trained,
            repeated,
        )
        return trained, repeated

    def turns_at(self, lengths: Int32, most: int) -> tuple[Int32, Int32, Int32]:
        """First token, first trained token and end of the turn that holds token `most`.

        A turn is a run of tokens without loss, such as a question, and the run of trained tokens
        after it. lengths: [documents]. Returns [documents] each; for a document of at most `most`
        tokens its last turn, and for an empty one 0.
        """
        begin, answer, end = np.zeros((3, len(lengths)), np.int32)
        _turns_at(
            self.values.address, lengths, most, self.untrained, self._like, begin, answer, end
        )
        return begin, answer, end

    @property
    def _like(self) -> NDArray[Any]:
        return np.empty(0, self.values.dtype)


@kernel
def _count(
    address: Int64, tokens: Int32, untrained: int, like: NDArray[Any], counts: Out[Int32]
) -> None:
    """Add to counts; see `Labels.count`. like: an array of the type of the values."""
    for run in range(len(address)):
        if tokens[run] > 0:
            for value in carray(pointer(address[run]), tokens[run], like.dtype):
                counts[run] += value != untrained


@kernel
def _trainable(
    address: Int64,
    document: Int32,
    start: Int32,
    count: Int32,
    bos: Bools,
    least: int,
    train_overlap: bool,
    untrained: int,
    like: NDArray[Any],
    trained: Out[Int32],
    repeated: Out[Int32],
) -> None:
    """Fill trained and repeated; see `Labels.trainable`."""
    reached, last = 0, -1  # end of the last kept piece, and its document
    for piece in range(len(document)):
        if document[piece] == last:
            repeated[piece] = larger(reached - start[piece], 0)
        head = larger(0 if bos[piece] else 1, 0 if train_overlap else repeated[piece])
        if count[piece] > head:
            first = address[document[piece]] + like.itemsize * (start[piece] + head)
            for value in carray(pointer(first), count[piece] - head, like.dtype):
                trained[piece] += value != untrained
        if trained[piece] >= least:
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
    """Fill begin, answer and end; see `Labels.turns_at`."""
    for document in range(len(address)):
        length = lengths[document]
        if length == 0:
            continue
        values, place = carray(pointer(address[document]), length, like.dtype), 0
        while place <= most and place < length:
            begin[document] = place
            while place < length and values[place] == untrained:
                place += 1
            answer[document] = place
            while place < length and values[place] != untrained:
                place += 1
        end[document] = place


def proportional(source: Int32 | Int64, target: Int32 | Int64, most: int | Int32) -> Int32:
    """Tokens kept of each source; the rest of `most` is for the target.

    source, target: [rows], tokens of prompts and responses that together are longer than `most`.
    Both are cut in proportion to their lengths; a side of less than half of `most` is not cut. The
    numbers are those of `infer_seqlen` of LLaMA-Factory (processor_utils.py in
    src/llamafactory/data/processor). Example: source 90, target 30, most 60 -> 45 and 15.
    """
    share = (most * (target / np.maximum(source + target, 1))).astype(np.int64)
    most_target = np.where(
        target * 2 < most, most, np.where(source * 2 < most, most - source, share)
    )
    kept_target = np.minimum(most_target, target)
    kept_source: Int32 = np.minimum(np.maximum(most - kept_target, 0), source).astype(np.int32)
    return kept_source
