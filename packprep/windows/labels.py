"""Trained tokens: count tokens with a loss, and find where the response of a row begins.

The labels of a row come with its tokens: as labels (int32, NO_LOSS where there is no loss) or, four
times smaller, as a mask (int8, 1 where there is a loss). Without either, every token is trained. A
shard always has labels.

These tokens never have a label: the first token of a segment, an added BOS, and padding. (The first
token has nothing before it in the segment, and a trainer that shifts labels would predict it from
another document.) An added EOS has a label if the token before it has one. A token that `stride`
repeats has a label only in the first piece that is kept, unless `train_overlap`.
"""

from dataclasses import dataclass

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from packprep.packing.kernels.gather import Pointers, pointer
from packprep.schemas.columns import NO_LOSS
from packprep.support.arrays import Int32, Int64


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
        counts: Int32 = _count(runs.address, tokens, self.untrained, self._like)
        return counts

    def trainable(
        self,
        document: Int32,
        start: Int32,
        count: Int32,
        bos: NDArray[np.bool_],
        least: int,
        train_overlap: bool,
    ) -> tuple[NDArray[np.bool_], Int32]:
        """Mask of pieces with at least `least` trained tokens; tokens repeated from an earlier one.

        document, start, count, bos: [pieces], see `Segments`; pieces of a document are in order.
        Both results are [pieces]. Tokens that pieces share are trained in the first of these pieces
        that is kept, unless train_overlap.
        """
        kept, repeated = np.zeros(len(document), np.bool_), np.zeros(len(document), np.int32)
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
            kept,
            repeated,
        )
        return kept, repeated

    def first(self, lengths: Int32) -> Int32:
        """Tokens before the first trained one, [documents]; all tokens if none is trained."""
        firsts: Int32 = _first(self.values.address, lengths, self.untrained, self._like)
        return firsts

    @property
    def _like(self) -> NDArray[np.int32]:
        return np.empty(0, self.values.dtype)


@njit(cache=True, nogil=True)
def _count(address: Int64, tokens: Int32, untrained: int, like: NDArray[np.int32]) -> Int32:
    counts = np.zeros(len(address), np.int32)
    for run in range(len(address)):
        if tokens[run] > 0:
            for value in carray(pointer(address[run]), tokens[run], like.dtype):
                counts[run] += value != untrained
    return counts


@njit(cache=True, nogil=True)
def _trainable(
    address: Int64,
    document: Int32,
    start: Int32,
    count: Int32,
    bos: NDArray[np.bool_],
    least: int,
    train_overlap: bool,
    untrained: int,
    like: NDArray[np.int32],
    kept: NDArray[np.bool_],
    repeated: Int32,
) -> None:
    """Fill kept and repeated; see `Labels.trainable`."""
    reached, last = 0, -1  # end of the last kept piece, and its document
    for piece in range(len(document)):
        if document[piece] == last:
            repeated[piece] = max(reached - start[piece], 0)
        head = max(0 if bos[piece] else 1, 0 if train_overlap else repeated[piece])
        trained = 0
        if count[piece] > head:
            first = address[document[piece]] + like.itemsize * (start[piece] + head)
            for value in carray(pointer(first), count[piece] - head, like.dtype):
                trained += value != untrained
        kept[piece] = trained >= least
        if kept[piece]:
            reached, last = start[piece] + count[piece], document[piece]


@njit(cache=True, nogil=True)
def _first(address: Int64, tokens: Int32, untrained: int, like: NDArray[np.int32]) -> Int32:
    firsts = tokens.copy()
    for document in range(len(address)):
        if tokens[document] > 0:
            values = carray(pointer(address[document]), tokens[document], like.dtype)
            for place in range(len(values)):
                if values[place] != untrained:
                    firsts[document] = place
                    break
    return firsts


def proportional(source: Int32 | Int64, target: Int32 | Int64, most: int) -> Int32:
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
