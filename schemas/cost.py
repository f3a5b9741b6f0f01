"""The cost of segments, from their lengths alone."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Float64


class Cost(NamedTuple):
    """Cost of a segment of n tokens: linear * n + attention * n**2.

    Example: Cost(24576.0, 1.0).flops([10, 20]) -> [245860, 491920]
    """

    linear: float
    attention: float

    def flops(self, lengths: ArrayLike) -> Float64:
        """Cost of each segment, of the shape of `lengths`."""
        tokens = np.asarray(lengths, np.float64)
        cost: Float64 = self.linear * tokens + self.attention * tokens * tokens
        return cost


ATTENTION_COST = Cost(24576.0, 1.0)
"""Of a transformer of 7B parameters, in proportion: the first number is 6 x its width."""
