"""`unpack`: the segments of a batch, or the samples of packs, without padding and filler."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import FILLER
from packprep.schemas.trees import path_tokens

from ..batch import PackedBatch
from .columns import RESPONSES, TOKEN_IDS

_Int64 = NDArray[np.int64]


def unpack(values: Any, batch: Any = None) -> list[Any]:
    """The values of each document's segment, or the samples of packs; without padding and filler.

    unpack(values, batch): views in pack order. values: [T, ...], for example a batch's tokens, or
    their log-probabilities. Of a batch of trees, the values of each row, copied along its path, in
    the order of `batch.rows`.

    unpack(packs): the samples of batches of `pack_sequences`, in input order: a dict of each, with
    the columns that were packed. The inverse of `pack_sequences`, also for a list of the packs of
    all ranks in turn. Values are views of the arrays or tensors of the packs.

    Example: unpack([10, 11, 12, 13], batch) with cu_seqlens [0, 3, 4] -> [[10, 11, 12], [13]]
    """
    if batch is None:
        packs = [values] if isinstance(values, PackedBatch) else values
        return _samples(packs)
    return [values[places] for places in segment_places(batch)]


def segment_places(batch: PackedBatch) -> list[Any]:
    """Index of the values of each document's segment; of each row, if segments are of trees.

    A segment without tokens is a sample only if it has a document id: in other batches it is
    padding.
    """
    arrays = batch.numpy()
    if arrays.segment_parents is not None:
        last = np.asarray(arrays.rows["row_segments"], np.int64)
        boundaries = arrays.cu_seqlens.astype(np.int64)
        tokens, rows = path_tokens(arrays.segment_parents, boundaries, last)
        return [tokens[start:end] for start, end in pairwise(rows.tolist())]
    starts = arrays.cu_seqlens[:-1]
    lengths = arrays.segment_lengths
    if lengths is None:
        lengths = arrays.cu_seqlens[1:] - starts
    real = _real(arrays)
    pairs = zip(starts[real].tolist(), lengths[real].tolist(), strict=True)
    return [slice(start, start + length) for start, length in pairs]


def _real(arrays: PackedBatch) -> NDArray[np.bool_]:
    """Mask of the segments of documents, [S]."""
    lengths = arrays.segment_lengths
    if lengths is None:
        lengths = np.diff(arrays.cu_seqlens)
    real: NDArray[np.bool_] = (
        lengths > 0 if arrays.document_ids is None else arrays.document_ids > FILLER
    )
    return real


def _samples(packs: Sequence[PackedBatch]) -> list[dict[str, object]]:
    samples: list[dict[str, object]] = []
    numbers: list[int] = []
    for pack in packs:
        arrays = pack.numpy()
        if arrays.segment_parents is not None:
            ids, which = arrays.rows["row_ids"], np.arange(len(arrays.rows["row_ids"]))
            of_sample = pack.rows
        else:
            which = np.flatnonzero(_real(arrays))
            ids = which if arrays.document_ids is None else arrays.document_ids[which]
            of_sample = pack.extra
        numbers += ids.tolist()
        places = segment_places(pack)
        samples += [
            _sample(pack, of_sample, at, index)
            for at, index in zip(places, which.tolist(), strict=True)
        ]
    order = np.argsort(np.array(numbers, np.int64), kind="stable")
    return [samples[number] for number in order.tolist()]


def _sample(pack: PackedBatch, of_sample: Any, places: Any, index: int) -> dict[str, object]:
    """The columns of one sample. of_sample: columns with a value for each; index: its own."""
    kinds = (
        pack.kinds
        if any(name in pack.kinds for name in TOKEN_IDS)
        else {
            "tokens": "token",
            **pack.kinds,
        }
    )
    responses = next((of_sample[name] for name in RESPONSES if name in of_sample), None)
    sample = {}
    for name, kind in kinds.items():
        if kind == "segment":
            sample[name] = of_sample[name][index]
            continue
        values = pack.tokens if name in TOKEN_IDS else pack.extra[name]
        sample[name] = values[places]
        if kind == "response" and responses is not None:
            sample[name] = sample[name][len(sample[name]) - int(responses[index]) :]
    return sample
