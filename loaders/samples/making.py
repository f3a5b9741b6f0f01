"""One pack of samples: columns, positions, labels and padding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import FILLER, NO_LOSS
from packprep.schemas.views import ranges_at

from ..batch import PackedBatch
from ..context_parallel import ContextLayout
from ..loss import Mode
from ..loss import loss_weights as weights_of
from .columns import Samples

_Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Padding that a pack needs.

    each: the tokens of every sample are a multiple of this.
    whole: those of the pack are.
    filler: tokens of a pack without any.
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


class Maker:
    """Makes packs of samples with one copy of each column."""

    def __init__(
        self, samples: Samples, shape: Shape, labels: str, loss_weights: Mode | None
    ) -> None:
        self.samples, self._shape = samples, shape
        self._labels, self._weights = labels, loss_weights
        lists = dict.fromkeys(samples.per_token, "token")
        kinds = lists | dict.fromkeys(samples.per_response, "response")
        kinds |= dict.fromkeys(samples.per_sample, "segment")
        self.kinds = {name: kinds.get(name, "token") for name in samples.names}

    def pack(self, members: _Int64) -> PackedBatch:
        """The pack of these samples."""
        samples = self.samples
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
            position_ids=_positions(sizes),
            cu_seqlens=cu_seqlens,
            max_seqlen=int(sizes.max(initial=0)),
            labels=labels,
            label_kind="shifted" if self._labels == "shifted" else "hf",
            document_ids=ids,
            segment_lengths=(
                _extended(lengths.astype(np.int32), len(sizes)) if self._shape.each > 1 else None
            ),
            loss_weights=weights,
            extra={name: extra[name] for name in self.samples.names if name in extra},
            kinds=self.kinds,
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
        if "labels" in extra:
            labelled = lengths
            if self.kinds["labels"] == "response" and responses is not None:
                labelled = responses
            labels = np.full(len(tokens), NO_LOSS)
            inside = ranges_at(starts + lengths - labelled, labelled)
            labels[inside] = extra["labels"][inside]
        elif self.samples.mask is not None:
            labels = np.where(extra[self.samples.mask] != 0, tokens, NO_LOSS)
        else:
            trained = lengths if responses is None else responses
            labels = np.full(len(tokens), NO_LOSS)
            inside = ranges_at(starts + lengths - trained, trained)
            labels[inside] = tokens[inside]
        labels[starts[lengths > 0]] = NO_LOSS
        return np.roll(labels, -1) if self._labels == "shifted" else labels


def _positions(sizes: _Int64) -> _Int64:
    """0, 1, 2, ... again in every segment, [tokens]: sums of steps, which short segments keep fast.

    Example: sizes=[3, 0, 2] -> [0, 1, 2, 0, 1], from steps [0, 1, 1, -2, 1]
    """
    sizes = sizes[sizes > 0]
    steps = np.ones(sizes.sum(), np.int64)
    steps[np.cumsum(sizes[:-1])] = 1 - sizes[:-1]
    steps[0] = 0
    return np.cumsum(steps, out=steps)


def _extended(values: NDArray[Any], length: int) -> NDArray[Any]:
    """The values, then 0, or None for values that are not numbers."""
    if len(values) == length:
        return values
    extended = np.zeros(length, values.dtype)
    if values.dtype == object:
        extended[:] = None
    extended[: len(values)] = values
    return extended
