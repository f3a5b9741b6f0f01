"""Trees of samples: samples of one prompt hold the tokens that they have in common once.

Two samples share a token where all tokens until there are equal, and so are all their columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS
from packprep.schemas.plans.nodes import nodes_of_rows
from packprep.schemas.trees import path_tokens, row_labels, row_paths
from packprep.schemas.views import ranges_at

from ..batch import PackedBatch
from ..loss import Mode
from ..trees import previous_tokens, row_weights
from .columns import Samples
from .making import Maker

_Int64 = NDArray[np.int64]


def groups_of(samples: Samples, share: bool | str) -> list[_Int64]:
    """Numbers of the samples that may share tokens, a list for each group; empty ones are in none.

    share: True for samples with equal prompts, which are the tokens before the response; or the
    name of a column with equal values for the samples of a group. ValueError if it is missing.
    """
    lengths = samples.tokens.lengths
    if isinstance(share, str):
        if share not in samples.per_sample:
            raise ValueError(
                f"share_prefixes is {share!r}; expected True or a column with a value for each "
                f"sample: {', '.join(samples.per_sample) or 'there is none'}"
            )
        keys: list[Any] = samples.per_sample[share].tolist()
    elif samples.responses is not None:
        prompts = lengths - samples.responses
        keys = [
            samples.tokens.take(np.array([number]))[:prompt].tobytes()
            for number, prompt in enumerate(prompts.tolist())
        ]
    else:
        raise ValueError(
            "share_prefixes=True finds samples of one prompt by response_lengths, which are "
            "missing; pass them, or the name of a column that is equal for samples of one prompt"
        )
    groups: dict[Any, list[int]] = {}
    for number, key in enumerate(keys):
        if lengths[number]:
            groups.setdefault(key, []).append(number)
    return [np.array(members) for members in groups.values()]


def check_sharing(labels: str, cp_size: int, lengths_of_all: Any) -> None:
    """Raise ValueError for settings of `pack_sequences` that cannot be used with trees."""
    if labels == "shifted" or cp_size > 1:
        setting = f"labels={labels!r}" if labels == "shifted" else f"cp_size={cp_size}"
        raise ValueError(
            f"{setting} cannot be used with share_prefixes: where samples part, one position "
            "predicts several tokens; use labels='hf' with batch.previous"
        )
    if lengths_of_all is not None:
        raise ValueError(
            "lengths_of_all cannot be used with share_prefixes, because lengths of trees are not "
            "those of samples; leave it out, and torch.distributed gathers them"
        )


@dataclass(frozen=True, kw_only=True)
class SampleTrees:
    """Samples in depth-first order of their trees; empty ones are trees of their own, at the end.

    order: numbers of the samples.
    shared: tokens that each has in common with the one before it; 0 begins a tree. Both int64
    [samples].
    sizes: int64 [trees], their tokens.
    """

    order: _Int64
    shared: _Int64
    sizes: _Int64

    @staticmethod
    def of(make: Maker, share: bool | str, budget: int | None) -> "SampleTrees":
        """Merge the samples of each group."""
        lengths = make.samples.tokens.lengths
        order, shared = [], []
        for members in groups_of(make.samples, share):
            merged = merge_rows(*_columns_of(make, members)) if len(members) > 1 else [(0, 0)]
            order += [int(members[row]) for row, _ in merged]
            shared += [common for _, common in merged]
        empty = np.flatnonzero(lengths == 0)
        every = np.append(np.array(order, np.int64), empty)
        common = np.append(np.array(shared, np.int64), np.zeros(len(empty), np.int64))
        cut, sizes = tree_sizes(lengths[every], common, budget)
        return SampleTrees(order=every, shared=cut, sizes=sizes)

    def rows_of(self, trees: _Int64) -> _Int64:
        """Numbers of the samples of these trees, in depth-first order, the empty ones first."""
        firsts = np.append(np.flatnonzero(self.shared == 0), len(self.order))
        places = ranges_at(firsts[trees], firsts[trees + 1] - firsts[trees])
        empty = self.sizes[trees] == 0
        kept = np.repeat(empty, firsts[trees + 1] - firsts[trees])
        numbers: _Int64 = self.order[np.append(places[kept], places[~kept])]
        return numbers

    def pack(self, make: Maker, numbers: _Int64, loss_weights: Mode | None) -> PackedBatch:
        """The pack of these samples, as `rows_of` gives them."""
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        return shared_pack(make.pack(numbers), self.shared[place[numbers]], loss_weights)


def shared_pack(plain: PackedBatch, shared: _Int64, loss_weights: Mode | None) -> PackedBatch:
    """A batch of samples, rows, as one of trees.

    shared: [rows], tokens that each has in common with the one before it; empty rows come first.
    """
    numbers, bounds = plain.document_ids, plain.cu_seqlens.astype(np.int64)
    rows = len(shared)
    lengths = np.diff(bounds[: rows + 1])
    empty = int((lengths == 0).sum())
    nodes = nodes_of_rows(lengths[empty:].tolist(), shared[empty:].tolist())
    alone = np.full(empty, -1)
    filler = len(numbers) - rows  # one segment, if there are no other tokens
    parents = np.concatenate(
        [alone, np.where(nodes.parent < 0, -1, nodes.parent + empty), np.full(filler, -1)]
    )
    starts = np.concatenate([bounds[:empty], bounds[empty:][nodes.row] + nodes.start, [0] * filler])
    sizes = np.concatenate([0 * alone, nodes.end - nodes.start, np.diff(bounds)[rows:]])
    last = np.append(np.arange(empty), nodes.last + empty)
    boundaries = np.append(0, np.cumsum(sizes))
    index = ranges_at(starts.astype(np.int64), sizes.astype(np.int64))
    of_rows = {name for name, kind in plain.kinds.items() if kind == "segment"}
    table = {
        "row_ids": numbers[:rows],
        "row_segments": last,
        "row_ends": boundaries[1:][last],
        **_row_labels(plain.labels, bounds[: rows + 1]),
        **{name: plain.extra[name][:rows] for name in plain.extra if name in of_rows},
    }
    labels = None if plain.labels is None else plain.labels[index]
    weights = counts = None
    if labels is not None:
        through = np.bincount(row_paths(parents, last)[1], minlength=len(parents))
        counts = np.repeat(through, sizes) * (labels != NO_LOSS)
        if loss_weights is not None:
            tokens, ends = path_tokens(parents, boundaries, last)
            own = row_labels(labels, tokens, ends, table["row_label_starts"])
            weights = row_weights(loss_weights, tokens, own, ends, numbers[:rows], len(index))
    first = np.concatenate([np.arange(empty), nodes.row + empty, np.arange(rows, len(numbers))])
    return PackedBatch(
        tokens=plain.tokens[index],
        position_ids=plain.position_ids[index],
        cu_seqlens=boundaries.astype(np.int32),
        max_seqlen=int(sizes.max(initial=0)),
        labels=labels,
        document_ids=numbers[first],
        loss_weights=weights,
        extra={name: each[index] for name, each in plain.extra.items() if name not in of_rows},
        kinds=plain.kinds,
        segment_parents=parents,
        previous=previous_tokens(parents, boundaries),
        label_weights=counts,
        rows=table,
    )


def _row_labels(labels: _Int64 | None, bounds: _Int64) -> dict[str, _Int64]:
    """Trained tokens of each row, and its tokens before the first of them."""
    lengths = np.diff(bounds)
    if labels is None:
        return {"row_trained": 0 * lengths, "row_label_starts": lengths}
    places = np.flatnonzero(labels != NO_LOSS)
    before = np.searchsorted(places, bounds)
    first = np.append(places, bounds[-1])[before[:-1]]
    return {
        "row_trained": np.diff(before),
        "row_label_starts": np.minimum(first - bounds[:-1], lengths),
    }


def merge_rows(
    rows: Sequence[Sequence[NDArray[Any]]], lengths: Sequence[int]
) -> list[tuple[int, int]]:
    """Rows in depth-first order: the number of each, and the tokens shared with the one before.

    A row that ends at a node comes before its children; children are in the order of their first
    rows. rows: the columns of each, an array of [tokens, ...] for each column.

    Example: [[1, 2, 3]], [[1, 2]], [[1, 4]] -> (1, 0), (0, 2), (2, 1)
    """
    merged: list[tuple[int, int]] = []
    todo = [([*range(len(rows))], 0, 0)]
    while todo:
        members, depth, common = todo.pop()
        children = []
        for row in members:
            if lengths[row] == depth:
                merged.append((row, common))
                common = depth
        rest = [row for row in members if lengths[row] > depth]
        while rest:
            first, others = rest[0], list[int]()
            child, reach = [first], lengths[first]
            for row in rest[1:]:
                equal = _equal(rows[first], rows[row], depth, min(lengths[first], lengths[row]))
                if equal > depth:
                    child.append(row)
                    reach = min(reach, equal)
                else:
                    others.append(row)
            children.append((child, reach, common))
            common, rest = depth, others
        todo += reversed(children)
    return merged


def tree_sizes(lengths: _Int64, shared: _Int64, budget: int | None) -> tuple[_Int64, _Int64]:
    """The shared tokens after trees larger than the budget are cut, and the tokens of each tree.

    A tree is cut before the first row that no longer fits, whose shared tokens are then repeated.
    """
    shared, size = shared.copy(), 0
    for row, (length, common) in enumerate(zip(lengths.tolist(), shared.tolist(), strict=True)):
        size = size + length - common if common else length
        if budget is not None and size > budget:
            shared[row], size = 0, length
    sizes = np.bincount(np.cumsum(shared == 0) - 1, lengths - shared).astype(np.int64)
    return shared, sizes


def _columns_of(make: Maker, members: _Int64) -> tuple[list[list[NDArray[Any]]], list[int]]:
    """The columns of each sample, [tokens, bytes], and its tokens: equal values are equal bytes."""
    plain = make.pack(members)
    columns = [plain.tokens, *([] if plain.labels is None else [plain.labels != NO_LOSS])]
    columns += [each for name, each in plain.extra.items() if plain.kinds[name] != "segment"]
    each = [values.view(np.uint8).reshape(len(values), -1) for values in columns]
    bounds = plain.cu_seqlens.tolist()
    rows = [[values[start:end] for values in each] for start, end in pairwise(bounds)]
    return rows, [len(row[0]) for row in rows]


def _equal(
    one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], depth: int, most: int
) -> int:
    """Tokens from the first on that are equal in all columns; those before `depth` are known to be.

    most: tokens of the shorter one.
    """
    for first, second in zip(one, other, strict=True):
        differ = first[depth:most] != second[depth:most]
        if differ.ndim > 1:
            differ = differ.any(1)
        if differ.any():
            most = depth + int(np.argmax(differ))
    return most
