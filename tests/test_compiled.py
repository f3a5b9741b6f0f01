"""Plans are the same whether kernels run as plain Python or compiled."""

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packprep.next import pack_lengths
from packprep.next.packing.kernels.deal import ORDERS
from packprep.next.packing.strategies import STRATEGIES
from packprep.next.schemas.cost import ATTENTION_COST

SIZES = [(0, 64), (1, 64), (90, 64), (200, 2048)]
MANY = [("best_fit", "shuffle"), ("first_fit", "balanced"), ("knapsack", "input")]
"""These need no compiler for 10,000 documents either."""


def plans_of(cases: Sequence[tuple[Any, ...]]) -> Iterator[list[bytes]]:
    for documents, longest, strategy, order, most in cases:
        lengths = np.random.default_rng(documents).integers(1, longest + 1, documents)
        plan = pack_lengths(lengths, longest, strategy, 7, order=order, max_segments_per_pack=most)
        figures = repr((plan.straggler(2, ATTENTION_COST), plan.bias)).encode()
        yield [plan.order.tobytes(), plan.offsets.tobytes(), figures]


def main() -> None:
    """Plan in a new process, which has compiled nothing; then again, compiled."""
    few: list[tuple[Any, ...]] = [
        (documents, *size, strategy, order, most)
        for (documents, *size), strategy, order in itertools.product(SIZES, STRATEGIES, ORDERS)
        for most in (None, 3)
        if order == "shuffle" or documents != 200
    ]
    cases = few + [(10_000, 2048, *each, None) for each in MANY]
    plain = [*plans_of(cases)]
    assert "numba" not in sys.modules
    long = [(300, 40_000, *case[2:]) for case in few]  # packs of which plain Python makes none
    assert len([*plans_of(long)]) == len(few)
    assert "numba" in sys.modules
    assert [*plans_of(cases)] == plain


def test_plans_of_plain_python_are_those_of_compiled_kernels() -> None:
    code = f"from {__name__} import main; main()"
    subprocess.run([sys.executable, "-c", code], check=True)
