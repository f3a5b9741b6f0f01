"""A new strategy is one function, one line in STRATEGIES, and its name in config/option.py."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from packprep import BuildConfig, build, pack_lengths
from packprep.loaders import PackedShards
from packprep.packing.strategies import STRATEGIES, Items, PackedItems
from packprep.support.errors import ConfigError
from tests.helpers.corpus import build_options


def alone(items: Items) -> PackedItems:
    """A pack for each document, the last document first."""
    documents = items.lengths.size
    return np.arange(documents)[::-1].copy(), np.arange(documents + 1)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "alone", alone)
    field = BuildConfig.__dataclass_fields__["strategy"]
    monkeypatch.setattr(field, "type", Literal["best_fit", "alone"])


@pytest.mark.usefixtures("registered")
def test_a_registered_strategy_plans_lengths_and_is_listed() -> None:
    plan = pack_lengths([3, 1, 2], 8, "alone")
    assert [plan.order.tolist(), plan.offsets.tolist()] == [[2, 1, 0], [0, 1, 2, 3]]
    with pytest.raises(ConfigError, match="did you mean 'alone'"):
        BuildConfig(sources=("a.jsonl",), strategy="alon")  # type: ignore[arg-type]


@pytest.mark.usefixtures("registered")
def test_a_registered_strategy_builds_an_output(tmp_path: Path) -> None:
    rows = [{"text": text} for text in ("one", "two", "three")]
    options: dict[str, Any] = build_options(tmp_path, {"a.jsonl": rows})
    build(BuildConfig(**options, strategy="alone"))  # type: ignore[arg-type]
    packs = PackedShards(tmp_path / "out")
    assert [np.asarray(pack.document_ids).tolist() for pack in packs] == [[2], [1], [0]]
