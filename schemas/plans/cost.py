"""The cost of segments in FLOPs, from their lengths alone.

A token at place p of its segment costs what all tokens cost in the matrices, and attention to the
tokens before it: p of them, or as many as a window holds. Products of matrices without a mask
attend to n**2 pairs of a segment of n tokens. That is the convention here, also of windows: a layer
with a window w attends to n**2 - (n - w)**2 pairs of a longer segment. A causal mask leaves half of
both, which `Cost.causal` counts.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .model_config import flops_of_config

if TYPE_CHECKING:  # the command line reads costs, and is fast without numpy
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_Array = Any
"""numpy.ndarray or torch.Tensor."""


class Cost(NamedTuple):
    """Cost of a segment of n tokens, linear * n + attention * n**2, and less in layers of windows.

    linear: of each token, in matrices.
    attention: of n**2, in the layers in which a token sees its whole segment.
    windows: (window in tokens, cost of n**2 up to there) of the other layers.

    Example: Cost(24576.0, 1.0).flops([10, 20]) -> [245860, 491920]
    """

    linear: float
    attention: float
    windows: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of_config(cls, config: str | Path) -> Self:
        """FLOPs of the forward pass of a model, from its config.json or the folder with it.

        They are those that torch's FlopCounterMode counts with eager attention, except that layers
        with windows cost less: products of matrices, experts that a token takes, and the output
        layer. ValueError for a config whose layers are not known, with the key that says so.
        """
        linear, attention = flops_of_config(config)
        whole = float(attention.pop(None, 0))
        return cls(linear, whole, tuple(sorted((w or 0, float(b)) for w, b in attention.items())))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cost that `str` wrote: `A,B`, and `,C@W` for each window W. ValueError for others."""
        linear, attention, *windows = text.split(",")
        pairs = [each.split("@") for each in windows]
        cost = cls(float(linear), float(attention), tuple((int(w), float(c)) for c, w in pairs))
        numbers = (*cost[:2], *(number for pair in cost.windows for number in pair))
        if not (min(numbers) >= 0 and 0 < sum(numbers) < float("inf")):
            raise ValueError(text)
        return cost

    def __str__(self) -> str:
        windows = [f"{_plain(cost)}@{window}" for window, cost in self.windows]
        return ",".join([_plain(self.linear), _plain(self.attention), *windows])

    @property
    def causal(self) -> "Cost":
        """The cost of kernels that skip what a causal mask hides: half of the attention."""
        halves = tuple((window, cost / 2) for window, cost in self.windows)
        return Cost(self.linear, self.attention / 2, halves)

    def flops(
        self, lengths: "ArrayLike", starts: "ArrayLike | None" = None
    ) -> "NDArray[np.float64]":
        """Cost of each segment, of the shape of `lengths`.

        starts: tokens that each sees before its own, for nodes of trees; None: 0.
        """
        import numpy as np

        tokens = np.asarray(lengths, np.float64)
        before = None if starts is None else np.asarray(starts, np.float64)
        cost: NDArray[np.float64] = self.of_pairs(tokens, self.pairs(tokens, before))
        return cost

    def of_pairs(self, tokens: _Array, pairs: Iterable[_Array]) -> _Array:
        """Cost of tokens and their `pairs`, or of sums of both."""
        costs = (self.attention, *(cost for _, cost in self.windows))
        of_layers = (cost * each for cost, each in zip(costs, pairs, strict=True))
        return self.linear * tokens + sum(of_layers)

    def pairs(self, lengths: _Array, starts: _Array | None = None) -> list[_Array]:
        """Pairs of tokens of each segment: in layers that see all, then in those of each window.

        lengths, starts: as in `flops`, numpy or torch, of a type that holds their squares.
        """
        if starts is None:
            squares = lengths * lengths
            beyond = ((lengths - window).clip(min=0) for window, _ in self.windows)
            return [squares, *(squares - each * each for each in beyond)]
        of_all, before = self.pairs(starts + lengths), self.pairs(starts)
        return [pairs - seen for pairs, seen in zip(of_all, before, strict=True)]

    def pairs_at(self, positions: _Array) -> list[_Array]:
        """The part of `pairs` of each token, from its position in its segment."""
        pairs = 2 * positions + 1
        return [pairs, *(pairs.clip(max=2 * window) for window, _ in self.windows)]


ATTENTION_COST = Cost(24576.0, 1.0)
"""Of a transformer of 7B parameters, in proportion: the first number is 6 x its width."""


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(float(number))
