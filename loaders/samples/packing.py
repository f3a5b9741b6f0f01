"""`pack_sequences`: samples in memory in, packs of a training step out.

A pack costs one copy of each column. Positions and labels are made from the lengths.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packprep.schemas.columns import FILLER, NO_LOSS

from ..batch import LabelKind, PackedBatch
from ..context_parallel import ContextLayout
from ..loss import Mode, check_mode
from .columns import read_samples
from .making import Maker, Shape
from .partition import (
    ascending,
    even_packs,
    fewest_packs,
    most_packs,
    neighbours_together,
    packs_within,
)
from .prefixes import SampleTrees, check_sharing

_Int64 = NDArray[np.int64]


def pack_sequences(
    samples: Any,
    *,
    max_tokens: int | None = None,
    num_packs: int | None = None,
    world_size: int | None = None,
    lengths_of_all: Sequence[ArrayLike] | None = None,
    labels: LabelKind | Literal["none"] = "hf",
    loss_weights: Mode | None = None,
    share_prefixes: bool | str = False,
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
    `loss_masks`) is not 0; without it, or where it is None, the tokens of the response are, or all;
    a column of `labels` is used instead, unshifted, with -100 for no loss. Both have values for
    each token or each of the response. The first token of a sample has no label. loss_weights: see
    PackedLoader.
    share_prefixes: make trees, as with PackedLoader(trees=True): samples with the same prompt (the
    tokens before the response), or with the same value of the column of this name, hold once the
    tokens with which all of them begin, as far as their columns are equal there too. A tree stays
    in one pack; one larger than max_tokens is cut. Columns of samples are then in `batch.rows`, and
    their numbers are `row_ids`. cp_size, cp_layout: pad for `context_slice`; the padding counts as
    tokens.

    `batch.document_ids` are the numbers of the samples. Samples are in input order within a pack.
    An empty sample is a segment of length 0. `unpack(packs)` gives the samples again. The same
    arguments give the same packs on any machine.

    ValueError for a sample longer than max_tokens, for columns that do not fit their samples, for
    ids, masks or labels that are not lists, and for settings that cannot work.

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
    make = None if read is None else Maker(read, shape, labels, loss_weights)
    items, trees = lengths, None
    if share_prefixes:
        check_sharing(labels, cp_size, lengths_of_all)
        _check_longest(lengths, max_tokens, shape)
        if make is not None:
            trees = SampleTrees.of(make, share_prefixes, max_tokens)
            items = trees.sizes
    ranks = _lengths_of_all(items, world_size, lengths_of_all)
    pack_of, packs = _plan(items, ranks, max_tokens, num_packs, shape)
    if make is None:
        return [_filler_pack(shape, labels, loss_weights) for _ in range(packs)]
    order = ascending(neighbours_together(items, pack_of))
    ends = np.cumsum(np.bincount(pack_of, minlength=packs))
    members = np.split(order, ends[:-1])
    if trees is not None:
        members = [trees.rows_of(of_pack) for of_pack in members]
    members.sort(key=lambda numbers: int(numbers.min(initial=len(lengths))))
    return [
        make.pack(numbers) if trees is None else trees.pack(make, numbers, loss_weights)
        for numbers in members
    ]


def _check(max_tokens: Any, num_packs: Any, labels: Any, loss_weights: Any) -> None:
    for name, value in (("max_tokens", max_tokens), ("num_packs", num_packs)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if max_tokens is None and num_packs is None:
        raise ValueError("max_tokens and num_packs are both missing; pass one of them")
    if labels not in ("hf", "shifted", "none"):
        raise ValueError(f"labels is {labels!r}; expected hf, shifted or none")
    if loss_weights is not None:
        check_mode(loss_weights, "loss_weights")
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
    for rank, of_rank in enumerate([lengths, *ranks], -1):
        _check_longest(of_rank, max_tokens, shape, "" if rank < 0 else f" of rank {rank}")
    if num_packs is not None:
        return packs_within(padded, budget, num_packs), num_packs
    if not ranks:
        return fewest_packs(padded, budget) if len(lengths) else (np.zeros(0, np.int32), 0)
    packs = most_packs([shape.padded(of_rank) for of_rank in ranks], budget)
    return packs_within(padded, budget, packs), packs


def _check_longest(lengths: _Int64, max_tokens: int | None, shape: Shape, whose: str = "") -> None:
    """ValueError if a sample is longer than a pack."""
    if max_tokens is None:
        return
    budget = max_tokens // shape.whole * shape.whole
    if (shape.padded(lengths) > budget).any():
        sample = int(np.argmax(shape.padded(lengths) > budget))
        padding = (
            f", a multiple of {shape.whole} in a pack," if lengths[sample] <= max_tokens else ""
        )
        raise ValueError(
            f"sample {sample}{whose} has {lengths[sample]:,} tokens{padding} and max_tokens is "
            f"{max_tokens:,}; cut it, leave it out, or choose a larger max_tokens"
        )


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
