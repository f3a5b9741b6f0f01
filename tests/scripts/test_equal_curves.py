"""The curves of docs/train/from-unpacked.md, with fewer measurements."""

import sys
from pathlib import Path

import pytest

from tests.helpers.torch_models import skip_without

skip_without("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "docs"))

import equal_curves  # noqa: E402


@pytest.mark.long
def test_only_packs_with_an_equal_step_fall_on_the_unpacked_run() -> None:
    found = equal_curves.curves(seeds=5, points=4)
    distances = equal_curves.distances(equal_curves.at_goals(found, 4)[1])
    assert distances["packs, equal step"].max() < 1
    assert distances["packs, same settings"].min() > 2
