"""Samples in memory, such as rollouts, in packs of a training step and back."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..schemas.arrays import Int32, Int64
from ..schemas.columns import FILLER, NO_LOSS
from .batch import LabelKind, PackedBatch
from .context_parallel import ContextLayout
from .loss import Mode, check_mode
from .loss import loss_weights as weights_of
from .partition import (
    ascending,
    even_packs,
    fewest_packs,
    most_packs,
    neighbours_together,
    packs_within,
)
from .sample_columns import MASKS, RESPONSES, TOKEN_IDS, Array, Samples, read_samples


def pack_sequences(
    samples: Any,
    *,
    max_tokens: int | None = None,
    num_packs: int | None = None,
    world_size: int | None = None,
    lengths_of_all: Sequence[ArrayLike] | None = None,
    labels: LabelKind | Literal["none"] = "hf",
    loss_weights: Mode | None = None,
    cp_size: int = 1,
    cp_layout: ContextLayout = "contiguous",
) -> list[PackedBatch]:
    """Pack samples that are in memory, such as rollouts: a list of batches, each of one pack.

    samples: a sequence of dicts, or a mapping of names to columns. `tokens` (or `input_ids`) are
    the ids of each sample. Every other column goes into `batch.extra` under its name. It has a
    value for each sample, which may be anything; or numbers, one for each token; or one for each
    token of the response, if `response_lengths` (or `response_length`) says how many tokens at the
    end of a sample are its response. The latter are 0 at the other tokens of the batch. Values are
    arrays of numpy, tensors of torch, or lists; they keep their dtype, except that Python floats
    and bfloat16 become float32.

    max_tokens: tokens of a pack; there are as few packs as are found to keep every pack within it,
    which may be more than ceil(tokens / max_tokens), and they are as even as possible. num_packs:
    number of even packs; with max_tokens, each within it. world_size: number of ranks, which all
    get the same number of packs, from the lengths of all ranks. lengths_of_all: the number of
    tokens of each sample, of each rank; without it torch.distributed gathers them, so all ranks
    must call this. A pack without tokens gets filler: a segment without loss, of document id -1.

    labels: "hf", "shifted" or "none", as in PackedLoader. A token is trained where `loss_mask` (or
    `loss_masks`) is not 0; without it, or where it is None, the tokens of the response are, or all;
    a column of `labels` is used instead, unshifted, with -100 for no loss. Both have values for
    each token or each of the response. The first token of a sample has no label. loss_weights: see
    PackedLoader. cp_size, cp_layout: pad for `context_slice`; the padding counts as tokens.

    `batch.document_ids` are the numbers of the samples. Samples are in input order within a pack.
    An empty sample is a segment of length 0. `unpack(packs)` gives the samples again. The same
    arguments give the same packs on any machine.

    ValueError for a sample longer than max_tokens, for columns that do not fit their samples, for
    ids, masks or labels that are not lists, and for settings that cannot work.

    Example: pack_sequences([{"tokens": [5, 6, 7]}, {"tokens": [8]}], max_tokens=4) -> one batch
    with tokens [5, 6, 7, 8] and cu_seqlens [0, 3, 4]
    """
    _check(max_tokens, num_packs, labels, loss_weights, cp_size, cp_layout)
    read = read_samples(samples)
    whole = 1 if cp_size == 1 else 2 * cp_size
    maker = _Maker(read, whole if cp_layout == "zigzag" else 1, whole, labels, loss_weights)
    ranks = _lengths_of_all(read.lengths, world_size, lengths_of_all)
    pack_of, packs = _plan(maker, ranks, max_tokens, num_packs)
    order = ascending(neighbours_together(read.lengths, pack_of))
    members = np.split(order, np.cumsum(np.bincount(pack_of, minlength=packs))[:-1])[:packs]
    members.sort(key=lambda numbers: int(numbers.min(initial=len(read.lengths))))
    return [maker.pack(numbers) for numbers in members]


def _check(
    max_tokens: Any, num_packs: Any, labels: Any, weights: Any, cp_size: int, cp_layout: str
) -> None:
    sizes = {"max_tokens": max_tokens, "num_packs": num_packs, "cp_size": cp_size}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if max_tokens is None and num_packs is None:
        raise ValueError("max_tokens and num_packs are both missing; pass one of them")
    if labels not in ("hf", "shifted", "none") or cp_layout not in ("contiguous", "zigzag"):
        raise ValueError(
            f"labels is {labels!r} and cp_layout {cp_layout!r}; expected hf, shifted or none, and "
            "contiguous or zigzag"
        )
    if weights is not None:
        check_mode(weights, "loss_weights")
        if labels == "none":
            raise ValueError("loss_weights need labels; choose labels='hf' or 'shifted'")
    if cp_size > 1 and labels == "hf":
        raise ValueError(
            "labels='hf' loses a label at the end of each slice with cp_size > 1; choose 'shifted'"
        )


def _lengths_of_all(
    lengths: Int64, world_size: int | None, lengths_of_all: Sequence[ArrayLike] | None
) -> list[Int64]:
    """The lengths of the samples of each rank; [] if there is one rank."""
    if lengths_of_all is None:
        if world_size is None or world_size == 1:
            return []
        from torch import distributed

        if not distributed.is_initialized() or distributed.get_world_size() != world_size:
            raise ValueError(
                f"world_size is {world_size} and torch.distributed has no group of as many ranks; "
                "pass lengths_of_all, the number of tokens of each sample of every rank"
            )
        gathered: list[Any] = [None] * world_size
        distributed.all_gather_object(gathered, lengths)
        return gathered
    ranks = [np.asarray(of_rank, np.int64).ravel() for of_rank in lengths_of_all]
    if world_size not in (None, len(ranks)):
        raise ValueError(
            f"lengths_of_all has the lengths of {len(ranks)} ranks, and world_size is {world_size}"
        )
    if not any(np.array_equal(of_rank, lengths) for of_rank in ranks):
        raise ValueError(
            f"lengths_of_all has no rank with the lengths of these {len(lengths):,} samples; pass "
            "the number of tokens of each sample, in input order, of every rank"
        )
    return ranks


def _plan(
    maker: "_Maker", ranks: Sequence[Int64], max_tokens: int | None, num_packs: int | None
) -> tuple[Int32, int]:
    """Pack of each sample, and the number of packs."""
    padded = maker.padded(maker.samples.lengths)
    if max_tokens is None:
        return even_packs(padded, num_packs or 1), num_packs or 1
    budget = max_tokens // maker.whole * maker.whole
    for rank, lengths in enumerate([maker.samples.lengths, *ranks], -1):
        if len(long := np.flatnonzero(maker.padded(lengths) > budget)):
            of_rank = "" if rank < 0 else f" of rank {rank}"
            multiple = f", a multiple of {maker.whole} in a pack," if maker.whole > 1 else ""
            raise ValueError(
                f"sample {long[0]}{of_rank} has {lengths[long[0]]:,} tokens{multiple} and "
                f"max_tokens is {max_tokens:,}; cut it, leave it out, or choose more"
            )
    if num_packs is None and ranks:
        num_packs = most_packs([maker.padded(lengths) for lengths in ranks], budget)
    if num_packs is not None:
        return packs_within(padded, budget, num_packs), num_packs
    return fewest_packs(padded, budget) if len(padded) else (np.zeros(0, np.int32), 0)


class _Maker:
    """Makes packs. each: tokens of a sample are a multiple of it. whole: those of a pack are."""

    def __init__(
        self, samples: Samples, each: int, whole: int, labels: str, weights: Mode | None
    ) -> None:
        self.samples, self._each, self.whole = samples, each, whole
        self._labels, self._weights = labels, weights

    def padded(self, lengths: Int64) -> Int64:
        """Tokens of samples with their padding."""
        return -(-lengths // self._each) * self._each

    def pack(self, members: Int64) -> PackedBatch:
        """The pack of these samples."""
        samples = self.samples
        lengths = samples.lengths[members]
        sizes = self.padded(lengths)
        used = int(sizes.sum())
        if rest := -(-used // self.whole) * self.whole - used or self.whole * (not used):
            sizes = np.append(sizes, rest)
        boundaries = np.append(0, np.cumsum(sizes))
        starts, total = boundaries[:-1], int(boundaries[-1])
        ends = (starts[: len(members)] + lengths).tolist()

        def placed(runs: Any, dtype: Any, fill: int = 0) -> Array:
            """Values at the end of each sample, `fill` at other tokens."""
            out = np.full(total, fill, dtype)
            for member, end in zip(members.tolist(), ends, strict=True):
                out[end - len(runs[member]) : end] = runs[member]
            return out

        def extended(values: Array) -> Array:
            rest = np.zeros(len(sizes) - len(members), values.dtype)
            return np.append(values, rest if values.dtype != object else [None] * len(rest))

        tokens = placed(samples.runs[samples.key], np.int64)
        extra = {
            name: extended(samples.values[name][members])
            if kind == "segment"
            else placed(samples.runs[name], next(iter(samples.runs[name]), tokens).dtype)
            for name, kind in samples.kinds.items()
            if name != samples.key
        }
        labels = None
        if self._labels != "none":
            mask = next((samples.runs[name] for name in MASKS if name in samples.runs), None)
            if "labels" in samples.runs:
                labels = placed(samples.runs["labels"], np.int64, NO_LOSS)
            else:
                whole = {number: np.ones(samples.trained[number]) for number in members.tolist()}
                labels = np.where(placed(mask or whole, np.float64) != 0, tokens, NO_LOSS)
            labels[starts[sizes > 0]] = NO_LOSS
            labels = np.roll(labels, -1) if self._labels == "shifted" else labels
        ids = np.append(members, np.full(len(sizes) - len(members), FILLER)).astype(np.int64)
        cu_seqlens, weights = boundaries.astype(np.int32), None
        if self._weights is not None and labels is not None:
            weights = weights_of(cu_seqlens, labels != NO_LOSS, self._weights, ids)
        return PackedBatch(
            tokens=tokens,
            position_ids=np.arange(total) - starts.repeat(sizes),
            cu_seqlens=cu_seqlens,
            max_seqlen=int(sizes.max(initial=0)),
            labels=labels,
            label_kind="shifted" if self._labels == "shifted" else "hf",
            document_ids=ids,
            segment_lengths=extended(lengths.astype(np.int32)) if self._each > 1 else None,
            loss_weights=weights,
            extra=extra,
            kinds=samples.kinds,
        )


def unpack(values: Any, batch: Any = None) -> list[Any]:
    """The values of each document's segment, or the samples of packs; without padding and filler.

    unpack(values, batch): views in pack order. values: [T, ...], for example a batch's tokens, or
    their log-probabilities.

    unpack(packs): the samples of batches of `pack_sequences`, in input order: a dict of each, with
    the columns that were packed. The inverse of `pack_sequences`, also for a list of the packs of
    all ranks in turn. Values are views of the arrays or tensors of the packs.

    Example: unpack([10, 11, 12, 13], batch) with cu_seqlens [0, 3, 4] -> [[10, 11, 12], [13]]
    """
    if batch is not None:
        return [values[places] for _, _, places in _segments(batch)]
    packs = [values] if isinstance(values, PackedBatch) else values
    samples = [
        (number, _sample(pack, segment, places))
        for pack in packs
        for segment, number, places in _segments(pack)
    ]
    return [sample for _, sample in sorted(samples, key=lambda each: each[0])]


def _segments(batch: PackedBatch) -> list[tuple[int, int, slice]]:
    """Segments of documents: number in the batch, document, and places of its values.

    A segment without tokens is a sample only if it has a document id: in other batches it is
    padding.
    """
    arrays = batch.numpy()
    starts = arrays.cu_seqlens[:-1]
    lengths = arrays.segment_lengths
    if lengths is None:
        lengths = np.diff(arrays.cu_seqlens)
    ids = arrays.document_ids
    real = np.flatnonzero(lengths > 0 if ids is None else ids > FILLER)
    numbers = real if ids is None else ids[real]
    bounds = zip(starts[real].tolist(), (starts + lengths)[real].tolist(), strict=True)
    places = (slice(*each) for each in bounds)
    return [*zip(real.tolist(), numbers.tolist(), places, strict=True)]


def _sample(pack: PackedBatch, segment: int, places: slice) -> dict[str, object]:
    """The columns of one sample."""
    names = (name for name in RESPONSES if name in pack.extra)
    responses = next((pack.extra[name] for name in names), None)
    sample = dict[str, object]()
    kinds = pack.kinds if {*TOKEN_IDS} & {*pack.kinds} else {"tokens": "token", **pack.kinds}
    for name, kind in kinds.items():
        values = pack.tokens if name in TOKEN_IDS else pack.extra[name]
        if kind == "segment":
            sample[name] = values[segment]
        elif kind == "response" and responses is not None:
            sample[name] = values[places.stop - int(responses[segment]) : places.stop]
        else:
            sample[name] = values[places]
    return sample
