"""report.json of small builds and of their merge, number by number.

Users have committed these numbers as baselines.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.derive.merge import merge

from .helpers.corpus import build_options

GOLDEN = Path(__file__).parent / "golden_reports.json"
OF_THE_RUN = {"bytes", "peak_memory_bytes", "seconds", "sha256", "shards", "tokens_per_second"}
SHORT = [9, 70, 3, 40, 25, 130, 64, 1, 0, 33, 17, 300, 12, 50, 8, 28, 61, 5] * 4
LONG = [45, 90, 31, 2, 66, 210, 14, 7, 58, 20]
BAD = [{"ids": [5, 6], "mask": [1]}, {"ids": None, "mask": [1]}, {"ids": [9999], "mask": [1]}]
COMMON: dict[str, Any] = {
    "input_ids_column": "ids",
    "loss_mask_column": "mask",
    "on_error": "skip",
    "pad_segment_to_multiple": 4,
    "seed": 27,
    "bos": "<s>",
    "eos": "</s>",
}
BUILDS: dict[str, dict[str, Any]] = {
    "pieces": {
        "stride": 8,
        "continuation_bos": True,
        "min_document_tokens": 3,
        "max_document_tokens": 250,
        "holdout": 0.3,
        "packs_multiple_of": 2,
        "unit_size": 4000,
        "window": 8000,
    },
    "cut": {"overflow": "truncate", "packs_multiple_of": "5:fill"},
    "mixed": {"weights": (25, 75), "max_epochs": 2.0, "overflow": "drop", "unit_size": 1000},
}


def rows(lengths: list[int], first: int) -> list[dict[str, Any]]:
    """Rows of token ids, so no number depends on a trained tokenizer; loss on every third id."""
    return [
        {
            "ids": [5 + (first + row) % 7] * length,
            "mask": [int(place % 3 == row % 5) for place in range(length)],
        }
        for row, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the builds, and of merges of one and of two of them.

    Together they drop tokens for every reason.
    """
    folder = tmp_path_factory.mktemp("builds")
    files: dict[str, list[Any]] = {"a.jsonl": [*rows(SHORT, 0), *BAD], "b.jsonl": rows(LONG, 3)}
    for name, options in BUILDS.items():
        (folder / name).mkdir()
        build(BuildConfig(**build_options(folder / name, files, **COMMON, **options)))
    folders = {name: folder / name / "out" for name in BUILDS}
    for name, parts in {"pieces alone": ["pieces"], "pieces, cut": ["pieces", "cut"]}.items():
        merge([folders[part] for part in parts], folder / name)
        folders[name] = folder / name
    return folders


def report_of(output: Path) -> Any:
    return json.loads((output / "report.json").read_text())


def numbers(value: Any) -> Any:
    """A report for comparison: file names without folder, and 12 decimals like the CI gate."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, str):
        return Path(value).name
    return round(value, 12) if isinstance(value, float) else value


def test_reports_have_the_keys_and_numbers_of_committed_baselines(outputs: dict[str, Path]) -> None:
    golden = json.loads(GOLDEN.read_text())
    reports = {name: report_of(output) for name, output in outputs.items()}
    assert {name: sorted(report) for name, report in reports.items()} == {
        name: sorted({*report, *OF_THE_RUN}) for name, report in golden.items()
    }
    compared = {
        name: {key: report[key] for key in golden[name]} for name, report in reports.items()
    }
    assert numbers(compared) == golden
