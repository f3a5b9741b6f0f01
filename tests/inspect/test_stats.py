from pathlib import Path
from typing import Any, cast

from packprep.inspect.histograms import measure_output
from packprep.inspect.stats import source_rows, training, training_rows
from packprep.loaders import Cost
from packprep.schemas import read_manifest
from packprep.schemas.report import Report
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused
from tests.helpers.tiny_shards import RICH, rich_row, write_output


def facts(
    output: Path, batch: int | None, ranks: int = 1, cost: Cost | None = None
) -> dict[str, Any]:
    manifest, measured = read_manifest(output), measure_output(output)
    return training(output, manifest, measured, batch, ranks, cost)


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
    with_cost = facts(tmp_path / "out", 4, 2, Cost(100, 1))
    assert with_cost == found | {"flops": 3 * (100 * 20 + 9 + 16 + 1 + 16 + 4 + 4 + 16)}
    assert dict(training_rows(with_cost))["FLOPs of an epoch"] == "6198, forward and backward"
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
