"""`pack_sequences`: samples in memory in, packs of a training step out.

A pack costs one copy of each column. Positions and labels are made from the lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packprep.schemas.columns import FILLER, NO_LOSS
from packprep.schemas.trees import ranges_at

from ..batch import LabelKind, PackedBatch
from ..context_parallel import ContextLayout
from ..loss import Mode
from ..loss import loss_weights as weights_of
from .columns import Samples, read_samples
from .partition import even_packs, fewest_packs, most_packs, packs_within

_Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Padding that a pack needs.

    each: the tokens of every sample are a multiple of this. whole: those of the pack are. filler:
    tokens of a pack without any.
    """

    each: int
    whole: int
    filler: int

    @staticmethod
    def of(cp_size: int, cp_layout: ContextLayout) -> "Shape":
        """For context parallelism: the shape that `context_slice` needs."""
        if cp_size < 1 or cp_layout not in ("contiguous", "zigzag"):
            raise ValueError(
                f"cp_size is {cp_size} and cp_layout {cp_layout!r}; expected 1 or more, contiguous "
                "or zigzag"
            )
        whole = 1 if cp_size == 1 else 2 * cp_size
        return Shape(
            each=whole if cp_layout == "zigzag" else 1,
            whole=whole,
            filler=whole,
        )

    def padded(self, lengths: _Int64) -> _Int64:
        return -(-lengths // self.each) * self.each


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

    samples: a sequence of dicts, or columns: a mapping of names to columns, or a table of pyarrow.
    `tokens` (or `input_ids`) are the ids of each sample. Every other column goes into `batch.extra`
    under its name. It has a value for each sample, which may be anything; or numbers, one for each
    token; or one for each token of the response, if `response_lengths` (or `response_length`) says
    how many tokens at the end of a sample are its response. The latter are 0 at the other tokens of
    the batch. Columns are arrays of numpy, torch or pyarrow, or lists of arrays or of lists; they
    keep their dtype, except that Python floats become float32 and bfloat16 becomes float32.

    max_tokens: tokens of a pack; there are as few packs as are found to keep every pack within it,
    which may be more than ceil(tokens / max_tokens), and they are as even as possible. num_packs:
    number of even packs; with max_tokens, each within it. world_size: number of ranks, which all
    get the same number of packs, from the lengths of all ranks. lengths_of_all: the number of
    tokens of each sample, of each rank; without it torch.distributed gathers them, so all ranks
    must call this. A pack without tokens gets filler: a segment without loss, of document id -1.

    labels: "hf", "shifted" or "none", as in PackedLoader. A token is trained where `loss_mask` (or
    `loss_masks`) is not 0; without it the tokens of the response are, or all; a column of `labels`
    is used instead. The first token of a sample has no label. loss_weights: see PackedLoader.
    cp_size, cp_layout: pad for `context_slice`; the padding counts as tokens.

    `batch.document_ids` are the numbers of the samples. Samples are in input order within a pack.
    An empty sample is a segment of length 0. `unpack(packs)` gives the samples again. The same
    arguments give the same packs on any machine.

    ValueError for a sample longer than max_tokens, for columns that do not fit their samples, and
    for settings that cannot work.

    Example: pack_sequences([{"tokens": [5, 6, 7]}, {"tokens": [8]}], max_tokens=4) -> one batch
    with tokens [5, 6, 7, 8] and cu_seqlens [0, 3, 4]
    """
    _check(max_tokens, num_packs, labels, loss_weights)
    shape = Shape.of(cp_size, cp_layout)
    if cp_size > 1 and labels == "hf":
        raise ValueError(
            "labels='hf' loses a label at the end of each slice with cp_size > 1; choose 'shifted'"
        )
    read = read_samples(samples)
    lengths = np.zeros(0, np.int64) if read is None else read.tokens.lengths
    ranks = _lengths_of_all(lengths, world_size, lengths_of_all)
    pack_of, packs = _plan(lengths, ranks, max_tokens, num_packs, shape)
    if read is None:
        return [_filler_pack(shape, labels, loss_weights) for _ in range(packs)]
    make = Maker(read, shape, labels, loss_weights)
    order = np.argsort(pack_of, kind="stable")
    ends = np.cumsum(np.bincount(pack_of, minlength=packs))
    members = np.split(order, ends[:-1])
    members.sort(key=lambda of_pack: int(of_pack[0]) if len(of_pack) else len(lengths))
    return [make.pack(of_pack) for of_pack in members]


def _check(max_tokens: Any, num_packs: Any, labels: Any, loss_weights: Any) -> None:
    for name, value in (("max_tokens", max_tokens), ("num_packs", num_packs)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if max_tokens is None and num_packs is None:
        raise ValueError("max_tokens and num_packs are both missing; pass one of them")
    if labels not in ("hf", "shifted", "none"):
        raise ValueError(f"labels is {labels!r}; expected hf, shifted or none")
    if loss_weights not in (None, "token", "segment", "document"):
        raise ValueError(
            f"loss_weights is {loss_weights!r}; expected None, token, segment or document"
        )
    if loss_weights is not None and labels == "none":
        raise ValueError("loss_weights need labels; choose labels='hf' or 'shifted'")


def _lengths_of_all(
    lengths: _Int64, world_size: int | None, lengths_of_all: Sequence[ArrayLike] | None
) -> list[_Int64]:
    """The lengths of the samples of each rank; [] if there is one rank."""
    if lengths_of_all is None:
        if world_size is None or world_size == 1:
            return []
        return _gathered(lengths, world_size)
    ranks = [np.asarray(of_rank, np.int64).ravel() for of_rank in lengths_of_all]
    if world_size is not None and len(ranks) != world_size:
        raise ValueError(
            f"lengths_of_all has the lengths of {len(ranks)} ranks, and world_size is {world_size}"
        )
    if not any(np.array_equal(of_rank, lengths) for of_rank in ranks):
        raise ValueError(
            f"lengths_of_all has no rank with the lengths of these {len(lengths):,} samples; pass "
            "the number of tokens of each sample, in input order, of every rank"
        )
    return ranks


def _gathered(lengths: _Int64, world_size: int) -> list[_Int64]:
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            f"world_size is {world_size} and torch.distributed has no process group; pass "
            "lengths_of_all, the number of tokens of each sample of every rank"
        )
    if distributed.get_world_size() != world_size:
        raise ValueError(
            f"world_size is {world_size} and torch.distributed has {distributed.get_world_size()} "
            "ranks; pass lengths_of_all to pack for some of them"
        )
    ranks: list[Any] = [None] * world_size
    distributed.all_gather_object(ranks, lengths)
    return ranks


def _plan(
    lengths: _Int64,
    ranks: Sequence[_Int64],
    max_tokens: int | None,
    num_packs: int | None,
    shape: Shape,
) -> tuple[NDArray[np.int32], int]:
    """Pack of each sample, and the number of packs."""
    padded = shape.padded(lengths)
    if max_tokens is None:
        assert num_packs is not None
        return even_packs(padded, num_packs), num_packs
    budget = max_tokens // shape.whole * shape.whole
    for rank, of_rank in enumerate([lengths, *ranks]):
        if (shape.padded(of_rank) > budget).any():
            sample = int(np.argmax(shape.padded(of_rank) > budget))
            whose = f" of rank {rank - 1}" if rank else ""
            padding = (
                "" if of_rank[sample] > max_tokens else f", a multiple of {shape.whole} in a pack,"
            )
            raise ValueError(
                f"sample {sample}{whose} has {of_rank[sample]:,} tokens{padding} and max_tokens is "
                f"{max_tokens:,}; cut it, leave it out, or choose a larger max_tokens"
            )
    if num_packs is not None:
        return packs_within(padded, budget, num_packs), num_packs
    if not ranks:
        return fewest_packs(padded, budget) if len(lengths) else (np.zeros(0, np.int32), 0)
    packs = most_packs([shape.padded(of_rank) for of_rank in ranks], budget)
    return packs_within(padded, budget, packs), packs


class Maker:
    """Makes the packs of samples."""

    def __init__(
        self, samples: Samples, shape: Shape, labels: str, loss_weights: Mode | None
    ) -> None:
        self._samples, self._shape = samples, shape
        self._labels, self._weights = labels, loss_weights
        lists = dict.fromkeys(samples.per_token, "token")
        kinds = lists | dict.fromkeys(samples.per_response, "response")
        kinds |= dict.fromkeys(samples.per_sample, "segment")
        self._kinds = {name: kinds.get(name, "token") for name in samples.names}

    def pack(self, members: _Int64) -> PackedBatch:
        """The pack of these samples."""
        samples = self._samples
        lengths = samples.tokens.lengths[members]
        padded = self._shape.padded(lengths)
        used = int(padded.sum())
        total = -(-used // self._shape.whole) * self._shape.whole or self._shape.filler
        sizes = np.append(padded, total - used) if total > used else padded
        boundaries = np.append(0, np.cumsum(sizes))
        starts = boundaries[: len(members)]
        places = slice(0, used) if self._shape.each == 1 else ranges_at(starts, lengths)

        def placed(values: NDArray[Any]) -> NDArray[Any]:
            """Values of the tokens, with 0 in padding."""
            if len(values) == total:
                return values
            spread = np.zeros(total, values.dtype)
            spread[places] = values
            return spread

        tokens = placed(samples.tokens.take(members).astype(np.int64, copy=False))
        extra = {name: placed(each.take(members)) for name, each in samples.per_token.items()}
        responses = None if samples.responses is None else samples.responses[members]
        if samples.per_response and responses is not None:
            inside = ranges_at(starts + lengths - responses, responses)
            for name, each in samples.per_response.items():
                extra[name] = np.zeros(total, each.dtype)
                extra[name][inside] = each.take(members)
        for name, values in samples.per_sample.items():
            extra[name] = _extended(values[members], len(sizes))
        cu_seqlens = boundaries.astype(np.int32)
        ids = np.append(members, np.full(len(sizes) - len(members), FILLER)).astype(np.int64)
        labels = self._label(tokens, extra, starts, lengths, responses, padded)
        weights = None
        if self._weights is not None and labels is not None:
            weights = weights_of(cu_seqlens, labels != NO_LOSS, self._weights, ids)
        return PackedBatch(
            tokens=tokens,
            position_ids=np.arange(total) - np.repeat(boundaries[:-1], sizes),
            cu_seqlens=cu_seqlens,
            max_seqlen=int(sizes.max(initial=0)),
            labels=labels,
            label_kind="shifted" if self._labels == "shifted" else "hf",
            document_ids=ids,
            segment_lengths=(
                _extended(lengths.astype(np.int32), len(sizes)) if self._shape.each > 1 else None
            ),
            loss_weights=weights,
            extra={name: extra[name] for name in self._samples.names if name in extra},
            kinds=self._kinds,
        )

    def _label(
        self,
        tokens: _Int64,
        extra: dict[str, NDArray[Any]],
        starts: _Int64,
        lengths: _Int64,
        responses: _Int64 | None,
        padded: _Int64,
    ) -> _Int64 | None:
        """Labels of the pack; see `pack_sequences`."""
        if self._labels == "none":
            return None
        if "labels" in self._samples.per_token:
            labels = extra["labels"].astype(np.int64)
            real = np.zeros(len(tokens), np.bool_)
            real[ranges_at(starts, lengths)] = True
            labels[~real] = NO_LOSS
        elif self._samples.mask is not None:
            labels = np.where(extra[self._samples.mask] != 0, tokens, NO_LOSS)
        else:
            trained = lengths if responses is None else responses
            labels = np.full(len(tokens), NO_LOSS)
            inside = ranges_at(starts + lengths - trained, trained)
            labels[inside] = tokens[inside]
        labels[starts[lengths > 0]] = NO_LOSS
        return np.roll(labels, -1) if self._labels == "shifted" else labels


def _filler_pack(shape: Shape, labels: str, loss_weights: Mode | None) -> PackedBatch:
    """A pack of a rank without samples."""
    tokens = np.zeros(shape.filler, np.int64)
    return PackedBatch(
        tokens=tokens,
        position_ids=np.arange(shape.filler),
        cu_seqlens=np.array([0, shape.filler], np.int32),
        max_seqlen=shape.filler,
        labels=None if labels == "none" else np.full(shape.filler, NO_LOSS),
        label_kind="shifted" if labels == "shifted" else "hf",
        document_ids=np.array([FILLER]),
        segment_lengths=None if shape.each == 1 else np.zeros(1, np.int32),
        loss_weights=None if loss_weights is None else np.zeros(shape.filler, np.float32),
    )


def _extended(values: NDArray[Any], length: int) -> NDArray[Any]:
    """The values, then 0, or None for values that are not numbers."""
    if len(values) == length:
        return values
    extended = np.zeros(length, values.dtype)
    if values.dtype == object:
        extended[:] = None
    extended[: len(values)] = values
    return extended
