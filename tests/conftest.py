"""Settings of the whole test run: compiled kernels are warm before the first test that has a deadline."""

import sys

import pytest
from hypothesis import settings

settings.register_profile("packprep", deadline=5000)  # milliseconds; a shared machine may stop a test for seconds
settings.load_profile("packprep")


@pytest.fixture(scope="session", autouse=True)
def warm_kernels() -> None:
    """A kernel's first call compiles it or loads it from the cache: most of a second each."""
    if "packprep.packing" not in sys.modules:  # no test of this run packs anything
        return
    from packprep.packing import STRATEGIES, pack_lengths

    for strategy in STRATEGIES:
        for order in ("shuffle", "input", "length", "balanced"):
            plan = pack_lengths([5, 3, 4, 1], 8, strategy, order=order, max_segments_per_pack=3)
            assert (plan.num_packs, plan.bound, plan.bias < 1, plan.straggler(2) >= 1) == (2, 2, True, True)
            plan.check()
