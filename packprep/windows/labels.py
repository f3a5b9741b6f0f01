"""Trained tokens: counting those with a loss, and finding where a row's response begins.

A row's labels come with its tokens: as labels (int32, NO_LOSS where there is no loss) or, four
times smaller, as a mask (int8, 1 where there is one). Without either, every token is trained. In a
shard they are always labels.

The first token of a segment never has a label: nothing in the segment comes before it to predict it
from, and a trainer that shifts labels by itself would train it on the document before. Nor has a
BOS that is added, and padding. An added EOS has one where the token before it has. A token that
`stride` repeats has one only in the first piece that is kept, unless `train_overlap`.
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
    """Labels (int32) or masks (int8) of documents as they lie in memory.

    values: [documents], where each begins.
    """

    values: Pointers

    @property
    def untrained(self) -> int:
        """The value of a token without loss."""
        return 0 if self.values.dtype == np.int8 else NO_LOSS

    def count(self, document: Int32, first: Int32, tokens: Int32) -> Int32:
        """Trained tokens among document[first : first + tokens], [runs].

        0 where tokens is below 1.
        """
        runs = self.values.shifted(document, first.astype(np.int64))
        found: Int32 = _count(runs.address, tokens, self.untrained, self._like)
        return found

    def trainable(
        self,
        document: Int32,
        start: Int32,
        own: Int32,
        bos: NDArray[np.bool_],
        least: int,
        train_overlap: bool,
    ) -> tuple[NDArray[np.bool_], Int32]:
        """Pieces with at least `least` trained tokens.

        Also how many of each one's tokens an earlier one of them has.

        document, start, own, bos: [pieces], as `Segments` has them, those of a document in order;
        both results too. What pieces share is trained in the first of them that is kept, unless
        train_overlap.
        """
        kept, repeated = np.zeros(len(document), np.bool_), np.zeros(len(document), np.int32)
        _trainable(
            self.values.address,
            document,
            start,
            own,
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
        """[documents], tokens before the first trained one, all of them where none is."""
        found: Int32 = _first(self.values.address, lengths, self.untrained, self._like)
        return found

    @property
    def _like(self) -> NDArray[np.int32]:
        return np.empty(0, self.values.dtype)


@njit(cache=True, nogil=True)
def _count(address: Int64, tokens: Int32, untrained: int, like: NDArray[np.int32]) -> Int32:
    found = np.zeros(len(address), np.int32)
    for run in range(len(address)):
        if tokens[run] > 0:
            for value in carray(pointer(address[run]), tokens[run], like.dtype):
                found[run] += value != untrained
    return found


@njit(cache=True, nogil=True)
def _trainable(
    address: Int64,
    document: Int32,
    start: Int32,
    own: Int32,
    bos: NDArray[np.bool_],
    least: int,
    train_overlap: bool,
    untrained: int,
    like: NDArray[np.int32],
    kept: NDArray[np.bool_],
    repeated: Int32,
) -> None:
    """Fills kept and repeated; see `Labels.trainable`."""
    reached, of = 0, -1  # where the last piece that is kept ends, and of which document it is
    for piece in range(len(document)):
        if document[piece] == of:
            repeated[piece] = max(reached - start[piece], 0)
        head = max(0 if bos[piece] else 1, 0 if train_overlap else repeated[piece])
        trained = 0
        if own[piece] > head:
            at = address[document[piece]] + like.itemsize * (start[piece] + head)
            for value in carray(pointer(at), own[piece] - head, like.dtype):
                trained += value != untrained
        kept[piece] = trained >= least
        if kept[piece]:
            reached, of = start[piece] + own[piece], document[piece]


@njit(cache=True, nogil=True)
def _first(address: Int64, tokens: Int32, untrained: int, like: NDArray[np.int32]) -> Int32:
    found = tokens.copy()
    for document in range(len(address)):
        if tokens[document] > 0:
            values = carray(pointer(address[document]), tokens[document], like.dtype)
            for place in range(len(values)):
                if values[place] != untrained:
                    found[document] = place
                    break
    return found


def proportional(source: Int32 | Int64, target: Int32 | Int64, most: int) -> Int32:
    """Tokens kept of each source, the rest of `most` being the target's.

    Both are cut in proportion to their lengths.

    source, target: [rows], tokens of prompts and responses that together are longer than `most`. A
    side that is less than half of `most` stays whole. This is `infer_seqlen` of LLaMA-Factory
    (src/llamafactory/data/processor/ processor_utils.py), number for number. Example: source 90,
    target 30, most 60 -> 45 and 15.
    """
    share = (most * (target / np.maximum(source + target, 1))).astype(np.int64)
    most_target = np.where(
        target * 2 < most, most, np.where(source * 2 < most, most - source, share)
    )
    kept_target = np.minimum(most_target, target)
    kept_source: Int32 = np.minimum(np.maximum(most - kept_target, 0), source).astype(np.int32)
    return kept_source
