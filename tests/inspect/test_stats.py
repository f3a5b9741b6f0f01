import io
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from packprep.inspect.histograms import Counts, Measured, measure_output
from packprep.inspect.stats import (
    BinnedCounts,
    histograms,
    source_rows,
    summaries,
    training,
    training_rows,
)
from packprep.schemas import read_manifest
from packprep.schemas.report import Report
from packprep.support.errors import ConfigError
from tests.helpers.tiny_shards import GOLDEN, RICH, rich_row, write_output


def counts(values: dict[int, int]) -> Counts:
    return Counts(np.array(list(values), np.int64), np.array(list(values.values()), np.int64))


def measured(**some: dict[int, int]) -> Measured:
    """Counts of 1,000 tokens a pack; what is not given is empty."""
    names = ("documents", "segments", "documents_per_pack", "fill", "cost")
    return Measured(
        max_length=1000, loss_tokens=None, **{name: counts(some.get(name, {})) for name in names}
    )


def drawn(**some: dict[int, int]) -> dict[str, dict[str, int]]:
    """The bins of each histogram by title."""
    return {
        histogram.title.split(",")[0]: dict(
            zip(histogram.labels, histogram.counts.tolist(), strict=True)
        )
        for histogram in histograms(measured(**some))
    }


def test_lengths_and_documents_per_pack_are_in_bins_that_double() -> None:
    bins = drawn(documents={1: 2, 3: 5, 9: 1}, documents_per_pack={0: 3, 2: 4})
    assert bins["document length"] == {"1": 2, "2 to 3": 5, "4 to 7": 0, "8 to 15": 1}
    assert bins["documents per pack"] == {"0": 3, "1": 0, "2 to 3": 4}


def test_fill_is_in_bins_that_narrow_towards_full_packs() -> None:
    assert drawn(fill={949: 1, 950: 2, 998: 3, 999: 4, 1000: 5})["fill of a pack"] == {
        "90% to 95%": 1,
        "95% to 98%": 2,
        "98% to 99%": 0,
        "99% to 99.5%": 0,
        "99.5% to 99.9%": 3,
        "99.9% to 100%": 4,
        "100%": 5,
    }


def test_fill_of_tiny_packs_leaves_out_bins_that_hold_no_number_of_tokens() -> None:
    [_, _, fill, _] = histograms(measure_output(GOLDEN / "v1-example"))
    assert dict(zip(fill.labels, fill.counts.tolist(), strict=True)) == {"100%": 2}


def test_attention_cost_is_a_share_of_one_document_that_fills_a_pack() -> None:
    assert drawn(cost={0: 1, 999: 1, 1000: 1, 10_000: 7})["attention cost of a pack"] == {
        "0.0 to 0.1": 2,
        "0.1 to 0.2": 1,
        "0.2 to 0.3": 0,
        "0.3 to 0.4": 0,
        "0.4 to 0.5": 0,
        "0.5 to 0.6": 0,
        "0.6 to 0.7": 0,
        "0.7 to 0.8": 0,
        "0.8 to 0.9": 0,
        "0.9 to 1.0": 7,
    }


def test_every_value_is_in_one_bin() -> None:
    values = dict.fromkeys(range(1, 1001), 1)
    for histogram in histograms(
        measured(documents=values, documents_per_pack=values, fill=values, cost=values)
    ):
        assert histogram.counts.sum() == 1000, histogram.title


def test_nothing_measured_gives_empty_histograms() -> None:
    assert all(histogram.lines() == [] for histogram in histograms(measured()))


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


def test_summaries_hold_the_exact_counts() -> None:
    found = summaries(measured(documents={1: 2, 9: 2}))["documents"]
    assert found == {
        "total": 4,
        "mean": 5.0,
        "p5": 1,
        "p50": 1,
        "p95": 9,
        "max": 9,
        "values": [1, 9],
        "counts": [2, 2],
    }


def facts(output: Path, batch: int | None, ranks: int = 1) -> dict[str, Any]:
    return training(output, read_manifest(output), measure_output(output), batch, ranks)


def test_steps_tokens_and_loss_tokens_of_the_train_split(tmp_path: Path) -> None:
    rows = [rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2), rich_row(5, 2), rich_row(6, 4)]
    write_output(
        tmp_path / "out", {"train": [rows], "validation": [[rich_row(7, 5)]]}, RICH, max_length=16
    )
    assert facts(tmp_path / "out", 4, 2) == {
        "split": "train",
        "packs": 5,
        "documents": 7,
        "tokens": 20,
        "token_utilization": 20 / 80,
        "loss_tokens": 20,
        "loss_utilization": 20 / 80,
        "global_batch_size": 4,
        "world_size": 2,
        "packs_per_rank": 2,
        "steps_per_epoch": 1,
        "packs_left_over": 1,
        "slots_per_step": 64,
        "documents_per_step": 7 * 4 / 5,
        "tokens_per_step": 16.0,
        "loss_tokens_per_step": 16.0,
    }
    rows_of_table = dict(training_rows(facts(tmp_path / "out", 4, 2)))
    assert rows_of_table["steps per epoch"] == "1, 2 if the 1 packs left over are a step too"
    assert rows_of_table["loss tokens per step"] == "16 on average"


def test_steps_are_those_that_the_loader_takes() -> None:
    from packprep.loaders import PackedLoader, PackedShards

    output = GOLDEN / "v1-rich"
    for ranks, batch in ((1, 1), (2, 1), (1, 3)):
        loader = PackedLoader(
            PackedShards(output, split="train"), packs_per_batch=batch, world_size=ranks, rank=0
        )
        assert facts(output, batch * ranks, ranks)["steps_per_epoch"] == len(loader)


def test_without_labels_or_a_batch_size_there_is_less_to_say() -> None:
    found = facts(GOLDEN / "v1-example", None)
    assert found == {
        "split": "train",
        "packs": 2,
        "documents": 4,
        "tokens": 16,
        "token_utilization": 1.0,
    }
    assert [name for name, _ in training_rows(found)] == [
        "packs of train",
        "documents and pieces",
        "tokens",
    ]


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match="global batch size 3 is not a multiple of world size 2"):
        facts(GOLDEN / "v1-example", 3, 2)


def test_a_source_says_for_what_reasons_it_lost_tokens() -> None:
    source: dict[str, Any] = {
        "name": "a",
        "documents": {"in": 1000, "empty": 2, "skipped": {"null": 1}, "dropped": {"too_long": 3}},
        "tokens": {
            "tokens_in": 5000,
            "overlap": 0,
            "continuation_bos": 0,
            "filler": 10,
            "tokens_packed": 4000,
            "truncated": 7,
            "dropped": {"too_long": 99},
        },
        "bos_rate": 0.5,
    }
    assert source_rows(cast("Report", {"sources": [source]})) == [
        ("a", "1,000", "2", "1", "3", "5,000", "3,990", "7 truncated, 99 too_long", "50.00%", "")
    ]
