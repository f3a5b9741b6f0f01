import functools
import json
import operator
import re
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import datasets
import jsonschema
import numpy as np
import pytest
import yaml

from packprep import BuildConfig, PackPlan, build, pack_lengths
from packprep.config.option import STRATEGY_NAMES
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.inspect.report_file import read_report
from packprep.loaders import PackedShards
from packprep.schemas import check_files, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import (
    RecordedProgress,
    build_options,
    expected_ids,
    texts,
    tiny_tokenizer,
    write_jsonl,
)

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """Options that build two files of 150 documents each into packs of 64 tokens.

    In several units and windows.
    """
    with_ids = [{"text": text, "id": number} for number, text in enumerate(texts(150, seed=2))]
    return build_options(
        tmp_path,
        {"a.jsonl": texts(150, seed=1), "b.jsonl": with_ids},
        unit_size=4_000,
        window=16_000,
    )


def documents_in(output: Path) -> dict[int, list[int]]:
    """Tokens of each document, its pieces joined in the order of document_starts.

    Without overlap or extra BOS.
    """
    pieces: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for pack in PackedShards(output):
        for segment in pack.segments():
            assert segment.document_id is not None
            assert segment.start is not None
            pieces[segment.document_id].append((segment.start, segment.tokens.tolist()))
    return {
        document: functools.reduce(operator.iadd, (tokens for _, tokens in sorted(found)), [])
        for document, found in pieces.items()
    }


def together(output: Path) -> set[tuple[tuple[int | None, int | None], ...]]:
    """Pieces of documents that share a pack."""
    return {
        tuple((s.document_id, s.start) for s in pack.segments()) for pack in PackedShards(output)
    }


@pytest.mark.parametrize("strategy", [name for name in STRATEGY_NAMES if name != "balanced"])
def test_the_packs_decode_to_exactly_the_ids_of_the_tokenizer(
    corpus: dict[str, Any], strategy: Any
) -> None:
    build(BuildConfig(**corpus, strategy=strategy))
    found = documents_in(Path(corpus["output"]))
    expected = expected_ids(texts(150, seed=1) + texts(150, seed=2), tiny_tokenizer(), bos=0, eos=1)
    assert found == {number: ids for number, ids in enumerate(expected) if ids}


def test_load_from_disk_opens_the_output_with_plain_list_features(corpus: dict[str, Any]) -> None:
    manifest = build(BuildConfig(**corpus))
    dataset = datasets.load_from_disk(corpus["output"])
    assert len(dataset) == manifest.num_packs
    assert sum(len(row) for row in dataset["tokens"]) == manifest.num_tokens
    assert dataset.features["tokens"] == datasets.List(datasets.Value("int32"))


def test_manifest_and_report_are_as_their_schemas_say_and_list_every_file(
    corpus: dict[str, Any],
) -> None:
    manifest = build(BuildConfig(**corpus))
    output = Path(corpus["output"])
    for name in ("manifest", "report"):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads((output / f"{name}.json").read_text()), schema)
    assert check_files(output, manifest, "sha256") == []
    assert not output.with_name("out.incomplete").exists()


def test_build_yaml_builds_the_same_bytes_elsewhere_and_nothing_here(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus |= {"sources": ("[ab].jsonl",), "tokenizer": "tokenizer", "output": "out", "num_proc": 2}
    first = build(
        BuildConfig(**corpus, stride=8, columns=("position_ids",), holdout=0.2, truncate_at="x{3}")
    )
    assert run("build", "-c", "out/build.yaml", "-o", "elsewhere", "-q").code == 0
    again = read_manifest(tmp_path / "elsewhere")
    assert again.data == first.data
    entries = {entry.path: entry for entry in again.all_files}
    assert entries["build.yaml"].sha256 == file_digest(tmp_path / "elsewhere" / "build.yaml")
    assert run("build", "-c", "out/build.yaml").err.endswith(
        "out is this build already: nothing to do\n"
    )


def test_build_yaml_says_what_no_file_can_hold(corpus: dict[str, Any]) -> None:
    def planner(lengths: np.ndarray, max_length: int) -> PackPlan:
        return pack_lengths(lengths, max_length, "greedy")

    manifest = build(
        BuildConfig(**corpus | {"tokenizer": tiny_tokenizer(), "bos": "<s>", "eos": "</s>"}),
        planner=planner,
    )
    text = (Path(corpus["output"]) / "build.yaml").read_text()
    assert (
        f"# The tokenizer was an object (sha256 {manifest.data['inputs']['tokenizer']['sha256']})"
        in text
    )
    assert "planner: only packprep.build(..., planner=) runs it." in text
    assert "tokenizer" not in yaml.safe_load(text)


def test_the_ledger_balances_for_each_source(corpus: dict[str, Any]) -> None:
    build(BuildConfig(**corpus, stride=8, min_document_tokens=20, max_document_tokens=200))
    report = read_report(Path(corpus["output"]))
    for table in [report, *report["sources"]]:
        tokens = table["tokens"]
        put_in = (
            tokens["tokens_in"] + tokens["overlap"] + tokens["continuation_bos"] + tokens["filler"]
        )
        assert put_in == tokens["tokens_packed"] + tokens["truncated"] + sum(
            tokens["dropped"].values()
        )
        assert tokens["overlap"] > 0
        assert {"too_short", "too_long"} <= set(tokens["dropped"])
    lengths = [len(ids) for ids in expected_ids(texts(150, seed=2), tiny_tokenizer(), 0, 1)]
    assert report["sources"][1]["tokens"]["tokens_in"] == sum(lengths)
    assert report["sources"][1]["documents"]["in"] == 150
    assert report["sources"][1]["documents"]["empty"] == lengths.count(0)


def test_workers_and_shard_size_never_change_which_documents_meet(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    outputs = {}
    for name, options in {
        "one": {"num_proc": 1},
        "two": {"num_proc": 2},
        "small": {"shard_size": 3_000},
    }.items():
        outputs[name] = build(BuildConfig(**corpus | options | {"output": str(tmp_path / name)}))
    assert outputs["one"].data == outputs["two"].data
    assert len(outputs["small"].shards("train")) > len(outputs["one"].shards("train"))
    assert together(tmp_path / "one") == together(tmp_path / "small")


def test_the_seed_decides_the_order_and_nothing_else_is_random(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    digests = [
        build(BuildConfig(**corpus | {"seed": seed, "output": str(tmp_path / str(number))})).data[
            "files"
        ]
        for number, seed in enumerate([0, 0, 1])
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_order_input_keeps_packs_in_the_order_of_their_first_document(
    corpus: dict[str, Any],
) -> None:
    build(BuildConfig(**corpus, order="input", strategy="greedy"))
    first = [row[0] for row in datasets.load_from_disk(corpus["output"])["document_ids"]]
    assert first == sorted(first)


def test_the_same_build_again_does_nothing_and_other_settings_are_refused(
    corpus: dict[str, Any],
) -> None:
    manifest = build(BuildConfig(**corpus))
    before = {path: path.stat().st_mtime_ns for path in Path(corpus["output"]).iterdir()}
    assert build(BuildConfig(**corpus, num_proc=1)) == manifest
    assert {path: path.stat().st_mtime_ns for path in Path(corpus["output"]).iterdir()} == before
    with pytest.raises(ConfigError, match=r"strategy was 'best_fit', now 'greedy'.*--overwrite"):
        build(BuildConfig(**corpus, strategy="greedy"))
    assert read_manifest(Path(corpus["output"])) == manifest


def test_overwrite_replaces_an_output_and_only_an_output(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    build(BuildConfig(**corpus))
    build(BuildConfig(**corpus, strategy="greedy", overwrite=True))
    assert read_manifest(Path(corpus["output"])).data["inputs"]["options"]["strategy"] == "greedy"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete")
    with pytest.raises(ConfigError, match="not an output of packprep"):
        build(BuildConfig(**corpus | {"output": str(tmp_path / "mine"), "overwrite": True}))
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_holdout_is_a_dataset_dict_whose_splits_share_no_document(corpus: dict[str, Any]) -> None:
    manifest = build(BuildConfig(**corpus, holdout=0.2))
    loaded = datasets.load_from_disk(corpus["output"])
    assert list(loaded) == ["train", "validation"]
    ids = {
        name: {i for row in split["document_ids"] for i in row} for name, split in loaded.items()
    }
    assert not ids["train"] & ids["validation"]
    assert 0.1 < len(ids["validation"]) / 300 < 0.3
    assert set(manifest.splits) == {"train", "validation"}
    assert check_files(Path(corpus["output"]), manifest, "sha256") == []


def test_kept_tokens_are_reused_for_another_max_length_and_not_for_another_tokenizer(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = corpus | {"keep_tokens": str(tmp_path / "store")}
    said = RecordedProgress()
    build(BuildConfig(**kept), progress=said)
    assert any(
        "has no tokens of these sources, tokenizer and text options" in line for line in said.lines
    )
    fresh = build(BuildConfig(**corpus | {"output": str(tmp_path / "fresh"), "max_length": 32}))
    with monkeypatch.context() as patch:
        patch.setattr(
            "packprep.execute.stages.read_slices", lambda *_: pytest.fail("text was read again")
        )
        reused = build(BuildConfig(**kept | {"output": str(tmp_path / "reused"), "max_length": 32}))
    assert reused.data == fresh.data
    without_bos = build(BuildConfig(**kept | {"output": str(tmp_path / "other"), "bos": "none"}))
    assert without_bos.ledger["tokens_in"] < fresh.ledger["tokens_in"]


def test_a_damaged_token_store_is_tokenized_again(corpus: dict[str, Any], tmp_path: Path) -> None:
    kept = corpus | {"keep_tokens": str(tmp_path / "store")}
    first = build(BuildConfig(**kept))
    victim = next((tmp_path / "store").rglob("unit-000001-000.arrow"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    shutil.rmtree(corpus["output"])
    assert build(BuildConfig(**kept)).data == first.data


def test_seconds_before_the_first_text_are_the_start_and_not_part_of_the_rate(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any, **options: Any) -> EngineChoice:
        time.sleep(1.0)
        return choose_engine(*arguments, **options)

    monkeypatch.setattr("packprep.execute.stages.choose_engine", slow)
    build(BuildConfig(**corpus))
    report = read_report(Path(corpus["output"]))
    seconds = report["seconds"]
    assert 1.0 <= seconds["start"] < seconds["total"]
    assert 0.0 <= seconds["tokenize"] <= seconds["total"] - 1.0
    work = seconds["total"] - seconds["start"]
    assert report["tokens_per_second"] == round(report["tokens"]["tokens_in"] / work, 1)


def test_max_tokens_stops_after_the_unit_that_reaches_it(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    whole = build(BuildConfig(**corpus)).ledger["tokens_in"]
    ends = {
        build(
            BuildConfig(
                **corpus
                | {"output": str(tmp_path / str(n)), "max_tokens": whole // 2, "num_proc": n}
            )
        ).ledger["tokens_in"]
        for n in (1, 3)
    }
    assert len(ends) == 1
    assert whole // 2 <= ends.pop() < whole


def test_packs_are_a_multiple_by_dropping_or_by_filling(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    packs = build(BuildConfig(**corpus)).num_packs
    assert packs % 16
    for remainder, expected in (("drop", packs // 16 * 16), ("fill", -(-packs // 16) * 16)):
        output = tmp_path / remainder
        options = {"packs_multiple_of": 16, "remainder": remainder, "output": str(output)}
        manifest = build(BuildConfig(**corpus | options))
        assert manifest.num_packs == expected
        ledger = manifest.ledger
        assert ledger["filler"] == (expected - packs if remainder == "fill" else 0)
        assert ("remainder" in ledger["dropped"]) == (remainder == "drop")


def test_a_planner_of_ones_own_packs_and_is_checked(corpus: dict[str, Any], tmp_path: Path) -> None:
    def lonely(lengths: np.ndarray, max_length: int) -> PackPlan:
        documents = np.arange(len(lengths))
        return PackPlan(lengths, max_length, documents, np.append(documents, len(lengths)))

    def greedy(lengths: np.ndarray, max_length: int) -> PackPlan:
        return pack_lengths(lengths, max_length, "greedy")

    def forgetful(lengths: np.ndarray, max_length: int) -> PackPlan:
        plan = lonely(lengths, max_length)
        return PackPlan(lengths, max_length, plan.order[1:], plan.offsets[:-1])

    build(BuildConfig(**corpus), planner=lonely)
    assert all(len(pack.cu_seqlens) == 2 for pack in PackedShards(corpus["output"]))
    with pytest.raises(ConfigError, match=r"other settings.*planner"):
        build(BuildConfig(**corpus), planner=greedy)
    with pytest.raises(ConfigError, match="the plan orders"):
        build(BuildConfig(**corpus | {"output": str(tmp_path / "bad")}), planner=forgetful)
    assert not (tmp_path / "bad").exists()


def test_overflow_error_names_file_row_and_what_to_choose(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "b.jsonl", ["short", "long " * 100])
    with pytest.raises(
        InputError,
        match=r"b\.jsonl row 1 has \d+ tokens but a pack holds 64; choose --overflow split",
    ):
        build(BuildConfig(**corpus | {"sources": corpus["sources"][1:], "overflow": "error"}))
    assert not Path(corpus["output"]).exists()


def test_skipped_rows_keep_their_number_and_are_counted_by_source(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "b.jsonl", ["one", {"text": None}, {"text": 7}, "four"])
    with pytest.raises(InputError, match=r"b\.jsonl row 1 \(line 2\): the row has no 'text'"):
        build(BuildConfig(**corpus))
    build(BuildConfig(**corpus, on_error="skip"))
    report = read_report(Path(corpus["output"]))
    assert report["sources"][1]["documents"]["skipped"] == {"not_text": 1, "null": 1}
    assert report["documents"]["in"] == 154
    assert [i for i in documents_in(Path(corpus["output"])) if i >= 150] in ([150, 153], [153, 150])


def test_nothing_left_after_filters_is_an_error_and_no_output(corpus: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no document is left"):
        build(BuildConfig(**corpus, min_document_tokens=10_000))
    assert not Path(corpus["output"]).exists()


def test_a_split_with_fewer_packs_than_their_multiple_is_an_error_that_names_it(
    corpus: dict[str, Any],
) -> None:
    few = corpus | {"holdout": 0.02, "packs_multiple_of": 1000}
    with pytest.raises(InputError) as error:
        build(BuildConfig(**few))
    assert re.fullmatch(
        r"packs_multiple_of 1,000 drops all packs of the split train \(\d+\); choose --remainder "
        "fill or a smaller packs_multiple_of",
        str(error.value),
    )
    with pytest.raises(InputError) as error:
        build(BuildConfig(**few | {"packs_multiple_of": 50}))
    assert re.fullmatch(
        r"packs_multiple_of 50 drops all packs of the split validation \(\d+\); choose a larger "
        "holdout, --remainder fill or a smaller packs_multiple_of",
        str(error.value),
    )


def test_truncate_at_cuts_text_and_counts_characters(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "b.jsonl", ["kept<end>gone", "whole"])
    build(BuildConfig(**corpus | {"sources": corpus["sources"][1:], "truncate_at": "<end>"}))
    found = documents_in(Path(corpus["output"]))
    assert tiny_tokenizer().decode(found[0]) == "kept"
    documents = read_report(Path(corpus["output"]))["documents"]
    assert (documents["cut"], documents["cut_characters"]) == (1, len("<end>gone"))


def test_text_that_spells_a_special_token_stays_text_unless_asked(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "b.jsonl", ["a</s>b"])
    options = corpus | {"sources": (str(source),)}
    build(BuildConfig(**options))
    build(
        BuildConfig(**options | {"output": str(tmp_path / "parsed"), "parse_special_tokens": True})
    )
    assert documents_in(Path(corpus["output"]))[0].count(1) == 1
    assert documents_in(tmp_path / "parsed")[0].count(1) == 2


def test_columns_may_be_left_out(corpus: dict[str, Any]) -> None:
    build(BuildConfig(**corpus, columns=("document_ids",)))
    dataset = datasets.load_from_disk(corpus["output"])
    assert dataset.column_names == ["tokens", "cu_seqlens", "document_ids"]


@pytest.mark.parametrize(
    "groups", [["en", "de", None], [0, 1, None], [True, False, None], [1, "a", True]]
)
def test_groups_never_share_a_pack_on_disk(
    corpus: dict[str, Any], tmp_path: Path, groups: list[Any]
) -> None:
    rows = [{"text": text, "lang": groups[n % 3]} for n, text in enumerate(texts(150))]
    source = write_jsonl(tmp_path / "b.jsonl", rows)
    build(BuildConfig(**corpus | {"sources": (str(source),), "group_column": "lang"}))
    for documents in datasets.load_from_disk(corpus["output"])["document_ids"]:
        assert len({document % 3 for document in documents}) == 1


def test_balanced_packs_one_window_only(corpus: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="balanced packs one window and the input makes"):
        build(BuildConfig(**corpus, strategy="balanced"))
