"""Previews that read the whole input, `--dry-run` and `packprep plan`, give the build's figures."""

import json
import math
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.execute.pipeline import of_build
from packprep.inspect.contents import read_contents
from packprep.inspect.report_file import read_report
from packprep.preview.estimate import estimate
from packprep.preview.lengths import read_lengths
from packprep.preview.sweep import sweep
from packprep.reports.replan import replan
from packprep.support.errors import ConfigError, InputError, PackprepError
from packprep.support.progress import Silent
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.examples import long_but, share_of_examples
from tests.helpers.trees import answer_rows

LONGEST = 60


def id_rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [
        {"ids": [(row + place) % 90 + 3 for place in range(1 + (row * 13 + seed) % LONGEST)]}
        for row in range(count)
    ]


def text_rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": text, "kind": f"k{row % 3}"} for row, text in enumerate(texts(count, seed))]


def pair_rows(count: int) -> list[dict[str, Any]]:
    return [
        {side: [row + 3] * (row % 5 + 2) + [last] for side, last in (("a", 1), ("b", 3))}
        for row in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    rows = {
        "ids": (id_rows(400, 1), id_rows(90, 7)),
        "texts": (text_rows(150, 0), text_rows(50, 1)),
        "answers": (answer_rows(25), answer_rows(10)),
        "pairs": (pair_rows(60), pair_rows(20)),
    }
    for name, parts in rows.items():
        for number, part in enumerate(parts):
            write_jsonl(folder / f"{name}-{number}.jsonl", part)
    save_tokenizer(folder / "tokenizer")
    return folder


IDS: dict[str, Any] = {"input_ids_column": "ids", "vocab_size": 400}
TREES = {"share_prefixes": 2}
KINDS: dict[str, dict[str, Any]] = {
    "ids": IDS,
    "texts": {"unit_size": 3_000, "window": 15_000, "max_length": 64},
    "answers": {**IDS, **TREES, "group_prefix": "prompt"},
    "pairs": IDS | {"input_ids_column": "auto", "pair_columns": ("a", "b"), "overflow": "truncate"},
}


def config_of(folder: Path, output: Path, kind: str, options: dict[str, Any]) -> BuildConfig:
    """Config of a build of all files of a kind."""
    sources = tuple(map(str, sorted(folder.glob(f"{kind}-*.jsonl"))))
    ends = {"tokenizer": str(folder / "tokenizer")} if kind == "texts" else {}
    made: Any = {"max_length": 128, "sources": sources, "output": str(output), "num_proc": 1}
    return BuildConfig(**made | ends | KINDS[kind] | options)


def predicted_and_reported(config: BuildConfig, start: str) -> tuple[dict[str, Any], Any]:
    """Figures of the prediction, and of the report of the build."""
    tables = estimate(of_build(config))
    prediction = tables["prediction"] | {"contents": tables["contents"]}
    assert prediction["from"] == start
    build(config)
    report: Any = read_report(Path(config.output))
    names = ("tokens_in", "tokens_packed", "packs", "bytes", "contents")
    return {name: prediction[name] for name in names}, {**report["tokens"], **report}


def check_previews(config: BuildConfig) -> None:
    """Both previews have exactly the figures of the build; but for the padding of buffers."""
    predicted, report = predicted_and_reported(config, "the whole input")
    contents = predicted.pop("contents")
    assert predicted["bytes"] == pytest.approx(report["bytes"], rel=0.01, abs=300 * report["packs"])
    exact = [name for name in predicted if name != "bytes"]
    assert {name: predicted[name] for name in exact} == {name: report[name] for name in exact}
    has_packs = any(number != "0" for each in contents.values() for number in each["counts"])
    if has_packs and "document_ids" in config.columns:  # which tells filler from documents
        found = read_contents(Path(config.output))
        assert contents == {str(1 + phase): each.as_dict() for phase, each in found.items()}
    if config.epochs == 1:  # plan is of the first
        before = sorted(Path(config.output).parent.rglob("*"))
        with read_lengths(config, 1.0, Silent()) as lengths:
            [row] = sweep(lengths, [config.pack_rules()], config.writing)
        assert sorted(Path(config.output).parent.rglob("*")) == before
        assert row.figures == {name: report[name] for name in row.figures}
        assert row.bytes == predicted["bytes"]
    others = config.share_prefixes or config.group_column or config.pair_columns
    fills = config.multiple.remainder == "fill"  # documents are planned again, without filler packs
    if config.columns and not (others or fills or report["tokens_lost"]) and config.epochs == 1:
        [again] = replan(Path(config.output), (config.strategy,))
        for name in ("packs", "bound", "gap", "utilization", "bias", "straggler"):
            assert again.figures[name] == pytest.approx(report[name], rel=1e-12), name


FILL = {"packs_multiple_of": "8:fill"}
EPOCHS = {"epochs": 3}
INDEX, PADDED = {"materialize": "index"}, {"pad_segment_to_multiple": 8}
SETTINGS = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(STRATEGY_NAMES),
        "max_length": st.sampled_from((16, 64, 200)),
        "unit_size": st.sampled_from((400, 2_000, 1_000_000)),
        "window": st.sampled_from((1_500, 10_000, 4_000_000)),
    },
    optional={
        "seed": st.integers(0, 3),
        "order": st.sampled_from(("random", "input", "balanced")),
        "limit": st.integers(1, 80),
        "max_tokens": st.integers(1, 3_000),
        "holdout": st.just(0.3),
        "min_document_tokens": st.just(20),
        "shard_size": st.just(20_000),
    },
)
OTHERS: list[dict[str, Any]] = [
    *({}, INDEX, PADDED, EPOCHS, {**EPOCHS, **FILL, "materialize": "shards"}),
    {**FILL, **PADDED},
    {"overflow": "truncate:left"},
    {"overflow": "drop", "max_document_tokens": 40},
    {**INDEX, "stride": 3},
    {"max_segments_per_pack": 2, "packs_multiple_of": 4},
    {"min_pack_tokens": 60, "columns": (), "token_type": "auto"},
]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), SETTINGS, st.sampled_from(OTHERS))
@example([150, 150], {"strategy": "first_fit", "unit_size": 2_000, "window": 10_000}, {})
@example([60, 60], {"unit_size": 2_000, "max_tokens": 1_500, "order": "input"}, {})
@example([3], {"strategy": "wrapped", "max_length": 16}, EPOCHS)
@settings(max_examples=share_of_examples(20))
def test_previews_of_any_sources_windows_and_strategies_are_what_is_built(
    sizes: list[int], options: dict[str, Any], others: dict[str, Any]
) -> None:
    """A build refuses what its preview refuses, and a split without packs, too."""
    with tempfile.TemporaryDirectory() as name:
        for number, size in enumerate(sizes):
            write_jsonl(Path(name) / f"ids-{number}.jsonl", id_rows(size, number))
        try:
            config = config_of(Path(name), Path(name) / "out", "ids", options | others)
        except ConfigError:
            assume(False)
        try:
            estimate(of_build(config))
        except PackprepError:
            with pytest.raises(PackprepError):
                build(config)
            return
        with suppress(InputError):
            check_previews(config)


SHORT_RUN: list[tuple[str, dict[str, Any]]] = [
    ("texts", {"strategy": "greedy", "group_column": "kind"}),
    ("texts", {"strategy": "wrapped"}),
    ("texts", {"overflow": "truncate:left", "min_document_tokens": 5}),
    ("texts", {"stride": 8, "continuation_bos": True, "seed": 3, "order": "balanced"}),
    ("ids", {"strategy": "balanced", "columns": (), "token_type": "auto"}),
    ("ids", {"holdout": 0.2, "packs_multiple_of": 4, **INDEX}),
    ("answers", {}),
]
LONG_RUN: list[tuple[str, dict[str, Any]]] = [
    ("answers", {**INDEX, "max_segments_per_pack": 5}),
    ("answers", EPOCHS),
    ("pairs", {}),
    ("pairs", {**TREES, **FILL, "columns": ()}),
]


@pytest.mark.parametrize(
    ("kind", "options"),
    [*SHORT_RUN, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_RUN)],
    ids=str,
)
def test_previews_of_each_kind_of_rows_are_what_is_built(
    kind: str, options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    check_previews(config_of(folder, tmp_path / "out", kind, options))


def phase(tokens: int | str, first: int, second: int, **more: Any) -> dict[str, Any]:
    return {"tokens": tokens, "weights": [first, second], **more}


SHORT, LONG = {"max_length": 64}, {"max_length": 256}
OLD, NEW = {"max_document_tokens": 30}, {"min_document_tokens": 31}
DRAWN: dict[str, dict[str, Any]] = {
    "mix of fewer tokens": {"weights": (3, 1), "max_tokens": 4000},
    "repeats as an index": {"weights": (1, 1), "max_epochs": 2.5, **INDEX},
    "repeats in epochs": {"weights": (1, 2), "max_epochs": 3, **EPOCHS},
    "repeats of both splits": {"weights": (1, 1), "max_epochs": 2, "holdout": 0.2},
    "phases": {"phases": (phase(4000, 3, 1, **SHORT), phase(2000, 1, 1, **LONG))},
    "phases that repeat": {
        "phases": (phase(4000, 1, 1, **SHORT), phase(3000, 0, 1, **LONG)),
        "max_epochs": 4,
    },
    "phases of shares": {
        "phases": (phase("70%", 1, 1, **SHORT), phase("30%", 1, 3, **LONG)),
        "max_epochs": 2,
    },
    "phases by length": {
        "phases": (phase(2500, 1, 1, **OLD), phase(2500, 1, 1, **NEW)),
        "max_epochs": 3,
    },
}


@pytest.mark.parametrize("case", long_but(["mix of fewer tokens", "phases"], DRAWN))
def test_a_draw_is_predicted_up_to_a_document_of_each_source(
    case: str, folder: Path, tmp_path: Path
) -> None:
    options = DRAWN[case]
    start = "the whole input, up to a document of each source in each draw"
    config = config_of(folder, tmp_path / "out", "ids", options)
    predicted, report = predicted_and_reported(config, start)
    draws = 2 * len(options.get("phases", (1,))) * options.get("epochs", 1)
    draws *= 2 if "holdout" in options else 1
    for name in ("tokens_in", "tokens_packed"):
        assert abs(predicted[name] - report[name]) <= draws * LONGEST, name
    assert abs(predicted["packs"] - report["packs"]) <= draws
    # A mix has as many windows as it has copies of a document, and each has a shard of its own.
    windows = math.ceil(options.get("max_epochs", 1)) * draws
    assert predicted["bytes"] == pytest.approx(report["bytes"], rel=0.02, abs=1000 * windows)


def test_a_dry_run_needs_no_output(folder: Path, tmp_path: Path) -> None:
    build = ["build", *sorted(folder.glob("ids-*.jsonl")), "--input-ids-column", "ids"]
    build += ["--vocab-size", "400", "--keep-tokens", tmp_path / "store", "--max-length", "128"]
    named = dry(*build, "-o", tmp_path / "out")
    assert named["options"].pop("output") == str(tmp_path / "out")
    assert dry(*build) == named
    assert run(*build, "-o", tmp_path / "out").code == 0
    pack = ["pack", tmp_path / "store", "--max-length", "128"]
    assert dry(*pack)["prediction"] == named["prediction"]
    for command, said in (
        (build, "no output is given; add -o"),
        (pack, "no output is given; add -o"),
        ([*build, "--append", "--dry-run"], "--append needs the output that grows"),
    ):
        ended = run(*command)
        assert (ended.code, ended.out, said in ended.err) == (2, "", True)


def dry(*command: object) -> dict[str, Any]:
    """The tables that a command with --dry-run prints."""
    tables: dict[str, Any] = json.loads(run(*command, "--dry-run", "--json", "-q").out)
    return tables
