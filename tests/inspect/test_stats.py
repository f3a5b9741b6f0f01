import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.inspect.histograms import Counts, Measured, measure_output
from packprep.inspect.stats import BinnedCounts, histograms, source_rows, training, training_rows
from packprep.schemas import read_manifest
from packprep.schemas.report import Report
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused
from tests.helpers.tiny_shards import RICH, rich_row, write_output

QUANTITIES = ("documents", "segments", "documents_per_pack", "fill", "cost")
TITLES = {"documents": "document length", "documents_per_pack": "documents per pack"}
TITLES |= {"fill": "fill of a pack", "cost": "attention cost of a pack"}


def measured(**some: Mapping[int, int]) -> Measured:
    """Counts of 1,000 tokens a pack; what is not given is empty."""
    counts = {
        name: Counts(*(np.array([*part], np.int64) for part in (values, values.values())))
        for name in QUANTITIES
        for values in [some.get(name, {})]
    }
    return Measured(max_length=1000, loss_tokens=None, **counts)


@pytest.mark.parametrize(
    ("quantity", "values", "labels", "bins"),
    [
        ("documents", {1: 2, 3: 5, 9: 1}, ["1", "2 to 3", "4 to 7", "8 to 15"], [2, 5, 0, 1]),
        ("documents_per_pack", {0: 3, 2: 4}, ["0", "1", "2 to 3"], [3, 0, 4]),
        (
            "fill",
            {949: 1, 950: 2, 998: 3, 999: 4, 1000: 5},
            [f"{low}% to {high}%" for low, high in ((90, 95), (95, 98), (98, 99), (99, 99.5))]
            + ["99.5% to 99.9%", "99.9% to 100%", "100%"],
            [1, 2, 0, 0, 3, 4, 5],
        ),
        (
            "cost",
            {0: 1, 999: 1, 1000: 1, 10_000: 7},
            [f"{step / 10:.1f} to {(step + 1) / 10:.1f}" for step in range(10)],
            [2, 1, 0, 0, 0, 0, 0, 0, 0, 7],
        ),
    ],
)
def test_bins_double_narrow_towards_full_packs_or_are_tenths(
    quantity: str, values: dict[int, int], labels: list[str], bins: list[int]
) -> None:
    drawn = {each.title.split(",")[0]: each for each in histograms(measured(**{quantity: values}))}
    histogram = drawn[TITLES[quantity]]
    assert (histogram.labels, histogram.counts.tolist()) == (labels, bins)


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 9)))
def test_every_value_is_in_one_bin_and_nothing_has_no_lines(values: dict[int, int]) -> None:
    values = dict(sorted(values.items()))
    for histogram in histograms(measured(**dict.fromkeys(QUANTITIES, values))):
        assert histogram.counts.sum() == sum(values.values()), histogram.title
        assert bool(histogram.lines()) == bool(values)


def test_bars_are_as_long_as_their_share_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    histogram = BinnedCounts("t", ["1", "10 to 11", "12"], np.array([1000, 1, 0]), "")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert histogram.lines() == [
        "       1  1,000  " + "█" * 40,
        "10 to 11      1  █",
        "      12      0",
    ]
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert histogram.lines()[1] == "10 to 11      1  #"


def facts(output: Path, batch: int | None, ranks: int = 1) -> dict[str, Any]:
    return training(output, read_manifest(output), measure_output(output), batch, ranks)


def test_steps_tokens_and_loss_tokens_of_the_train_split(tmp_path: Path) -> None:
    rows = [rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2), rich_row(5, 2), rich_row(6, 4)]
    splits = {"train": [rows], "validation": [[rich_row(7, 5)]]}
    write_output(tmp_path / "out", splits, RICH, max_length=16)
    found = facts(tmp_path / "out", 4, 2)
    counts = {"split": "train", "packs": 5, "documents": 7, "tokens": 20, "loss_tokens": 20}
    shares = {"token_utilization": 20 / 80, "loss_utilization": 20 / 80}
    batch = {"global_batch_size": 4, "world_size": 2, "packs_per_rank": 2, "slots_per_step": 64}
    steps = {"steps_per_epoch": 1, "packs_left_over": 1, "documents_per_step": 7 * 4 / 5}
    of_a_step = {"tokens_per_step": 16.0, "loss_tokens_per_step": 16.0}
    assert found == counts | shares | batch | steps | of_a_step
    table = dict(training_rows(found))
    assert table["steps per epoch"] == "1, 2 if the 1 packs left over are a step too"
    assert table["loss tokens per step"] == "16 on average"
    with refused(ConfigError, "global batch size 3 is not a multiple of world size 2"):
        facts(tmp_path / "out", 3, 2)


def test_a_source_says_for_what_reasons_it_lost_tokens() -> None:
    documents = {"in": 1000, "empty": 2, "skipped": {"null": 1}, "dropped": {"too_long": 3}}
    tokens: dict[str, Any] = {"tokens_in": 5000, "tokens_packed": 4000, "filler": 10}
    tokens |= {"overlap": 0, "continuation_bos": 0, "truncated": 7, "dropped": {"too_long": 99}}
    source = {"name": "a", "documents": documents, "tokens": tokens, "bos_rate": 0.5}
    counts = ("a", "1,000", "2", "1", "3", "5,000", "3,990")
    assert source_rows(cast("Report", {"sources": [source]})) == [
        (*counts, "7 truncated, 99 too_long", "50.00%", "")
    ]
