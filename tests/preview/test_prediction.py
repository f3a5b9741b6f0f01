"""The prediction of --dry-run, for an input that its sample holds, is what the build reports."""

import math
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.preview.estimate import estimate
from tests.execute.test_options_as_index import pair_rows
from tests.helpers.corpus import write_jsonl
from tests.helpers.trees import answer_rows

LONGEST = 60


def id_rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [
        {"ids": [(row + place) % 90 + 3 for place in range(1 + (row * 13 + seed) % LONGEST)]}
        for row in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    rows = {
        "ids": (id_rows(400, 1), id_rows(90, 7)),
        "answers": (answer_rows(25), answer_rows(10)),
        "pairs": (pair_rows(60), pair_rows(20)),
    }
    for name, parts in rows.items():
        for number, part in enumerate(parts):
            write_jsonl(folder / f"{name}-{number}.jsonl", part)
    return folder


IDS = {"input_ids_column": "ids", "vocab_size": 400}
TREES = {"share_prefixes": True, "min_shared": 2}
ANSWERS = {**IDS, **TREES, "group_prefix": "prompt"}
PAIRS = {"input_ids_column": "auto", "vocab_size": 400, "pair_columns": ("chosen", "rejected")}
PAIRS["overflow"] = "truncate"
FILL = {"packs_multiple_of": 8, "remainder": "fill"}
EPOCHS = {"epochs": 3, "repack": True}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "shards": ("ids", IDS),
    "shards of long packs": ("ids", {**IDS, "max_length": 1000}),
    "compact shards without columns": ("ids", {**IDS, "columns": (), "token_type": "auto"}),
    "shards with padding and filler": ("ids", {**IDS, **FILL, "pad_segment_to_multiple": 8}),
    "shards of both splits": ("ids", {**IDS, "holdout": 0.2, "packs_multiple_of": 4}),
    "dropped documents": ("ids", {**IDS, "min_document_tokens": 20, "max_length": 32}),
    "index": ("ids", {**IDS, "materialize": "index"}),
    "index with overlap": ("ids", {**IDS, "materialize": "index", "stride": 3, "max_length": 16}),
    "small shards": ("ids", {**IDS, "shard_size": 20_000}),
    "small shards of an index": ("ids", {**IDS, "shard_size": 20_000, "materialize": "index"}),
    "epochs": ("ids", {**IDS, **EPOCHS}),
    "epochs of greedy": ("ids", {**IDS, **EPOCHS, "strategy": "greedy"}),
    "epochs as shards": ("ids", {**IDS, **EPOCHS, "materialize": "shards"}),
    "epochs of both splits": ("ids", {**IDS, **EPOCHS, **FILL, "holdout": 0.2}),
    "trees": ("answers", ANSWERS),
    "trees as an index": ("answers", {**ANSWERS, "materialize": "index"}),
    "trees in epochs": ("answers", {**ANSWERS, **EPOCHS}),
    "trees of few segments": ("answers", {**ANSWERS, "max_segments_per_pack": 5}),
    "pairs": ("pairs", PAIRS),
    "trees of pairs": ("pairs", {**PAIRS, **TREES, **FILL, "columns": ()}),
}
SHORT, LONG = {"max_length": 64}, {"max_length": 256, "weights": [1, 1]}
DRAWN: dict[str, dict[str, Any]] = {
    "mix": {"weights": (1, 1)},
    "mix of fewer tokens": {"weights": (3, 1), "max_tokens": 4000},
    "repeats": {"weights": (1, 1), "max_epochs": 3},
    "repeats as an index": {"weights": (1, 1), "max_epochs": 2.5, "materialize": "index"},
    "repeats in epochs": {"weights": (1, 2), "max_epochs": 3, **EPOCHS},
    "repeats of both splits": {"weights": (1, 1), "max_epochs": 2, "holdout": 0.2},
    "phases": {"phases": ({"tokens": 4000, "weights": [3, 1], **SHORT}, {"tokens": 2000, **LONG})},
    "phases that repeat": {
        "max_epochs": 4,
        "phases": (
            {"tokens": 4000, "weights": [1, 1], **SHORT},
            {"tokens": 3000, **LONG, "weights": [0, 1]},
        ),
    },
    "phases of shares": {
        "max_epochs": 2,
        "phases": (
            {"tokens": "70%", "weights": [1, 1], **SHORT},
            {"tokens": "30%", **LONG, "weights": [1, 3]},
        ),
    },
    "phases by length": {
        "max_epochs": 3,
        "phases": (
            {"tokens": 2500, "weights": [1, 1], "max_document_tokens": 30},
            {"tokens": 2500, "weights": [1, 1], "min_document_tokens": 31},
        ),
    },
}
SHORT_RUN = ("shards", "shards of both splits", "index", "trees", "mix", "phases")


def cases(table: dict[str, Any]) -> list[Any]:
    """Names; most of them run with --all."""
    marks = {name: [pytest.mark.long] * (name not in SHORT_RUN) for name in table}
    return [pytest.param(name, marks=each) for name, each in marks.items()]


def both(folder: Path, output: Path, kind: str, **options: Any) -> tuple[Any, Any]:
    """The prediction, and the same figures of the report of the build."""
    sources = tuple(str(folder / f"{kind}-{number}.jsonl") for number in range(2))
    settings: Any = {"max_length": 128, "sources": sources, "output": str(output), "num_proc": 1}
    config = BuildConfig(**settings | options)
    prediction = estimate(config)["prediction"]
    assert prediction["from"] == "the whole input"
    build(config)
    report: Any = read_report(output)
    names = ("tokens_in", "tokens_packed", "packs", "bytes")
    flat = {**report["tokens"], "packs": report["packs"], "bytes": report["bytes"]}
    return {name: prediction[name] for name in names}, {name: flat[name] for name in names}


@pytest.mark.parametrize("case", cases(WHOLE))
def test_the_whole_input_is_predicted_exactly(case: str, folder: Path, tmp_path: Path) -> None:
    kind, options = WHOLE[case]
    predicted, reported = both(folder, tmp_path / "out", kind, **options)
    # Buffers are padded to 8 bytes.
    assert predicted.pop("bytes") == pytest.approx(reported.pop("bytes"), rel=0.01)
    assert predicted == reported


@pytest.mark.parametrize("case", cases(DRAWN))
def test_a_draw_is_predicted_up_to_a_document_of_each_source(
    case: str, folder: Path, tmp_path: Path
) -> None:
    options = DRAWN[case]
    predicted, reported = both(folder, tmp_path / "out", "ids", **IDS, **options)
    draws = 2 * len(options.get("phases", (1,))) * options.get("epochs", 1)
    draws *= 2 if "holdout" in options else 1
    for name in ("tokens_in", "tokens_packed"):
        assert abs(predicted[name] - reported[name]) <= draws * LONGEST, name
    assert abs(predicted["packs"] - reported["packs"]) <= draws
    # A mix has as many windows as it has copies of a document, and each has a shard of its own.
    windows = math.ceil(options.get("max_epochs", 1)) * draws
    assert predicted["bytes"] == pytest.approx(reported["bytes"], rel=0.02, abs=1000 * windows)
