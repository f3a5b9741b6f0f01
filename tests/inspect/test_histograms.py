from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.inspect.histograms import COST_UNIT, Counts, measure_output
from packprep.loaders import PackedShards
from packprep.schemas import FormatError, read_manifest
from tests.helpers.corpus import build_options, expected_ids, texts, tiny_tokenizer
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, write_output

QUANTITIES = ("documents", "segments", "documents_per_pack", "fill", "cost")


def as_dict(counts: Counts) -> dict[int, int]:
    return dict(zip(counts.values.tolist(), counts.counts.tolist(), strict=True))


def test_the_worked_example_of_the_format_in_counts() -> None:
    measured = measure_output(GOLDEN / "v1-example")
    cost = (24576 * 8 + (9 + 4 + 9)) / (24576 * 8 + 64)
    assert {name: as_dict(getattr(measured, name)) for name in QUANTITIES} == {
        "documents": {3: 2, 10: 1},  # the pieces of document 1 are one document of 10 tokens
        "segments": {2: 1, 3: 2, 8: 1},
        "documents_per_pack": {1: 1, 3: 1},
        "fill": {8: 2},
        "cost": {round(cost * COST_UNIT): 1, COST_UNIT: 1},
    }
    assert measured.loss_tokens is None


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return build_options(
        tmp_path, {"a.jsonl": texts(200)}, unit_size=4_000, window=16_000, shard_size=4_000
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stride": 8, "continuation_bos": True, "holdout": 0.3},
        {"strategy": "wrapped"},
        {"pad_segment_to_multiple": 8, "packs_multiple_of": "16:fill"},
    ],
    ids=["plain", "stride, BOS, holdout", "wrapped", "padding"],
)
def test_every_document_is_measured_as_long_as_the_tokenizer_made_it(
    options: dict[str, Any], more: dict[str, Any]
) -> None:
    build(BuildConfig(**options | more))
    output = Path(options["output"])
    measured = measure_output(output)
    lengths = [len(ids) for ids in expected_ids(texts(200), tiny_tokenizer(), 0, 1) if ids]
    assert as_dict(measured.documents) == as_dict(Counts(*np.unique(lengths, return_counts=True)))
    splits = read_manifest(output).splits
    packs = [pack for split in splits for pack in PackedShards(output, split=split)]
    real = [[len(s.tokens) for s in pack.segments() if s.document_id != -1] for pack in packs]
    fill = np.unique([sum(pack) for pack in real], return_counts=True)
    assert as_dict(measured.fill) == as_dict(Counts(*fill))
    assert measured.documents_per_pack.sum == sum(map(len, real)) == measured.segments.total
    assert measured.fill.sum == measured.segments.sum
    assert measured.fill.total == len(packs)


def test_without_document_columns_pieces_count_as_documents(options: dict[str, Any]) -> None:
    build(BuildConfig(**options, columns=()))
    measured = measure_output(Path(options["output"]))
    assert as_dict(measured.documents) == as_dict(measured.segments)


def test_quantiles_are_values_that_occur() -> None:
    counts = Counts(np.array([1, 3, 9]), np.array([50, 45, 5]))
    assert [counts.quantile(share) for share in (0.0, 0.5, 0.95, 0.951, 1.0)] == [1, 1, 3, 9, 9]
    assert (counts.total, counts.sum, counts.mean) == (100, 230, 2.3)
    nothing = Counts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (nothing.total, nothing.mean, nothing.quantile(0.5)) == (0, 0.0, 0)


def test_a_shard_whose_boundaries_do_not_fit_is_refused(tmp_path: Path) -> None:
    row = dict(EXAMPLE[1]) | {"cu_seqlens": [0, 3, 5, 7]}
    write_output(tmp_path / "out", {"train": [[EXAMPLE[0], row]]})
    with pytest.raises(FormatError, match="pack 1: cu_seqlens are"):
        measure_output(tmp_path / "out")
