"""Index outputs: packs, batches and shards of the build without an index, and all commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.execute import window_files
from packprep.exports import materialize as command
from packprep.exports.materialize import materialize
from packprep.inspect.histograms import measure_output
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.output import directory
from packprep.schemas import FormatError, read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import build_options, disk_fails, save_tokenizer, texts
from tests.helpers.trees import answer_rows

from ..chat.test_turn_builds import SMALL, thoughtful

SIZES = {"unit_size": 4_000, "window": 16_000, "shard_size": 8_000, "engine": "hf", "num_proc": 1}
PAIRS = {"input_ids_column": "auto", "pair_columns": ("chosen", "rejected"), "vocab_size": 400}


def ids_rows(count: int) -> list[dict[str, Any]]:
    """Rows of token ids with labels, and two carried columns."""
    return [
        {
            "ids": [(row * 7 + place) % 300 + 3 for place in range(1 + row * 13 % 90)],
            "mask": [int(place % 3 > 0) for place in range(1 + row * 13 % 90)],
            "weights": [place / 4 for place in range(1 + row * 13 % 90)],
            "quality": row / 8,
        }
        for row in range(count)
    ]


def pair_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            side: [row % 300 + 3] * (row % 17 + 2 + extra)
            for extra, side in enumerate(("chosen", "rejected"))
        }
        for row in range(count)
    ]


IDS = {
    "input_ids_column": "ids",
    "loss_mask_column": "mask",
    "carry": ("weights:float32", "quality"),
    "vocab_size": 400,
}
TREES: dict[str, Any] = {"share_prefixes": True, "min_shared": 1}
GROUPS = {**IDS, **TREES, "group_prefix": "prompt", "max_length": 64}
FILLED = {"packs_multiple_of": 7, "remainder": "fill"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        strategy: ("text", {"strategy": strategy, "seed": 3})
        for strategy in ("best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy")
    },
    "wrapped": ("text", {"strategy": "wrapped"}),
    "balanced": ("text", {"strategy": "balanced", "order": "balanced", "window": "1MB"}),
    "input order": ("text", {"order": "input", "num_proc": 2}),
    "stride": ("text", {"stride": 5, "continuation_bos": True}),
    "trained overlap": ("text", {"stride": 5, "train_overlap": True}),
    "padding": (
        "text",
        {"pad_segment_to_multiple": 8, "packs_multiple_of": 7, "remainder": "fill"},
    ),
    "holdout": ("text", {"holdout": 0.2}),
    "names": ("text", {"names": "hf", "columns": ()}),
    "mix": ("text", {"weights": (3.0, 1.0), "max_epochs": 3.0}),
    "uint16": ("text", {"token_type": "uint16", "stride": 3, "continuation_bos": True}),
    "epochs": ("text", {"epochs": 2, "repack": True}),
    "labels": ("ids", {**IDS}),
    "uint16 labels": ("ids", {**IDS, "token_type": "auto"}),
    "labels with stride": ("ids", {**IDS, "stride": 6}),
    "balanced truncation": (
        "ids",
        {**IDS, "overflow": "truncate", "truncation_side": "balanced", "max_length": 16},
    ),
    "pairs": ("pairs", {**PAIRS, "overflow": "truncate"}),
    "trees of turns": (
        "chat",
        {"messages_column": "messages", "turns": "each", "max_length": 512, **TREES},
    ),
    "trees of pairs": ("pairs", {**PAIRS, **TREES, "overflow": "truncate"}),
    "trees of groups": ("groups", {**GROUPS, "holdout": 0.2, **FILLED}),
    "trees of all tokens": ("groups", {**GROUPS, "loss_mask_column": None, "token_type": "auto"}),
    "trees in epochs": ("groups", {**GROUPS, "epochs": 2, "repack": True, "stride": 6}),
    "turns": ("chat", {"messages_column": "messages", "turns": "each", "max_length": 512}),
}


@pytest.fixture
def inputs(tmp_path: Path) -> Any:
    def options(kind: str, output: str, **more: Any) -> dict[str, Any]:
        rows: dict[str, Any] = {"text": texts(120), "ids": ids_rows(120), "pairs": pair_rows(90)}
        rows["chat"], rows["groups"] = thoughtful(20), answer_rows(40)
        files = {
            "a.jsonl": rows[kind],
            "b.jsonl": texts(60, seed=5) if kind == "text" else rows[kind],
        }
        base = build_options(tmp_path, files, **SIZES)
        if kind == "chat":
            side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
            save_tokenizer(tmp_path / "tokenizer", config=side)
        return base | {"output": str(tmp_path / output)} | more

    return options


FIELDS = (
    *("tokens", "position_ids", "cu_seqlens", "labels", "document_ids", "loss_weights"),
    *("segment_parents", "previous", "label_weights"),
)


def equal_packs(one: PackedShards, other: PackedShards) -> None:
    assert len(one) == len(other) > 1
    assert one.plans == other.plans
    for pack, same in zip(one, other, strict=True):
        assert list(pack.columns) == list(same.columns)
        for name, values in pack.columns.items():
            assert values.dtype == same.columns[name].dtype
            assert np.array_equal(values, same.columns[name])


def equal_batches(one: PackedShards, other: PackedShards) -> None:
    pairs = any(column.name in ("pair_sides", "row_sides") for column in one.manifest.columns)
    options: dict[str, Any] = {"trees": one.has_trees, "loss_weights": "segment"}
    options |= {"sides": "both"} if pairs else {}
    loaders = PackedLoader(one, 3, **options), PackedLoader(other, 3, **options)
    for batch, same in zip(*loaders, strict=True):
        for name in FIELDS:
            values, expected = getattr(batch, name), getattr(same, name)
            assert np.array_equal(values, expected) if expected is not None else values is None
        assert list(batch.rows) == list(same.rows)
        for name, values in batch.rows.items():
            assert np.array_equal(values, same.rows[name])


@pytest.mark.parametrize("case", CASES)
def test_an_index_reads_and_materializes_as_the_build_without_one(
    case: str, inputs: Any, tmp_path: Path
) -> None:
    kind, options = CASES[case]
    plain = build(BuildConfig(**inputs(kind, "plain", **options, materialize="shards")))
    build(BuildConfig(**inputs(kind, "index", **options, materialize="index")))
    made = materialize(tmp_path / "index", tmp_path / "made")
    assert made.data == plain.data  # with the digests of all shards
    verdict = verify(tmp_path / "index", level="fast")
    assert verdict.sound, [str(finding) for finding in verdict.findings]
    for split in plain.splits:
        shards = PackedShards(tmp_path / "plain", split=split)
        index = PackedShards(tmp_path / "index", split=split, verify=True)
        equal_packs(index, shards)
        equal_batches(index, shards)
        for epoch in range(1, plain.epochs):
            equal_packs(
                PackedShards(tmp_path / "index", split=split, epoch=epoch),
                PackedShards(tmp_path / "plain", split=split, epoch=epoch),
            )
    # The plan depends on nothing but the inputs: neither do its bytes.
    again = build(BuildConfig(**inputs(kind, "again", **options, materialize="index")))
    assert again.data == read_manifest(tmp_path / "index").data


def test_without_numba_the_packs_are_the_same(
    inputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BuildConfig(**inputs("ids", "index", **IDS, stride=4, materialize="index")))
    compiled = PackedShards(tmp_path / "index")
    monkeypatch.setattr("packprep.loaders.indexed.compiled_copy", lambda: None)
    equal_packs(PackedShards(tmp_path / "index"), compiled)
    equal_batches(PackedShards(tmp_path / "index"), compiled)


def test_a_token_store_serves_several_indexes_and_may_move(inputs: Any, tmp_path: Path) -> None:
    store = {"keep_tokens": str(tmp_path / "store"), "materialize": "index"}
    build(BuildConfig(**inputs("text", "short", **store)))
    build(BuildConfig(**inputs("text", "long", **store, max_length=128)))
    assert not (tmp_path / "short" / "tokens").exists()
    inside = build(BuildConfig(**inputs("text", "inside", materialize="index")))
    assert inside.data == read_manifest(tmp_path / "short").data  # where the store is, is no input
    equal_packs(PackedShards(tmp_path / "short"), PackedShards(tmp_path / "inside"))
    (tmp_path / "store").rename(tmp_path / "moved")
    file = read_manifest(tmp_path / "short").index_table.files[0].path
    with pytest.raises(FormatError) as missing:
        PackedShards(tmp_path / "short")
    assert str(missing.value) == (
        f"{tmp_path}/store/{file} is missing; it has tokens of this index: give the folder of the "
        "store (--store DIR, in Python store=DIR)"
    )
    moved = PackedShards(tmp_path / "short", store=tmp_path / "moved")
    equal_packs(moved, PackedShards(tmp_path / "inside"))
    short, there = tmp_path / "short", ("--store", tmp_path / "moved")
    assert run("verify", short).code == 1
    assert run("verify", short, *there).code == 0
    assert run("show", short, *there, "--raw").out == run("show", tmp_path / "inside", "--raw").out
    assert run("stats", short, *there).code == 0
    assert run("report", short, "-o", tmp_path / "page.html", *there).code == 0
    assert run("export", short, "--to", "npy", "-o", tmp_path / "npy", *there, "-q").code == 0
    assert run("materialize", short, "-o", tmp_path / "made", *there, "-q").code == 0
    assert run("show", tmp_path / "made", *there).err == (
        f"packprep: {tmp_path}/made is not an index, so it needs no token store; leave out "
        "--store\n"
    )
    path = tmp_path / "moved" / file
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError) as changed:
        PackedShards(tmp_path / "short", store=tmp_path / "moved")
    size = path.stat().st_size
    assert str(changed.value) == (
        f"{path} has {size} bytes; expected {size + 8}: restore it, or build again"
    )


@pytest.mark.parametrize("keep", [False, True])
def test_verify_names_a_flipped_bit_in_the_index_and_in_the_store(
    keep: bool, inputs: Any, tmp_path: Path
) -> None:
    more = {"keep_tokens": str(tmp_path / "store")} if keep else {}
    build(BuildConfig(**inputs("text", "index", materialize="index", **more)))
    index, table = tmp_path / "index", read_manifest(tmp_path / "index").index_table
    folder = tmp_path / "store" if keep else index / "tokens"
    for path in (
        folder / table.files[0].path,
        index / read_manifest(index).shards("train")[0].path,
    ):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        path.write_bytes(flipped)
        found = run("verify", index, "--json")
        assert found.code == 1
        names = {finding["file"] for finding in json.loads(found.out)["findings"]}
        relative = table.files[0].path if keep else str(path.relative_to(index))
        assert (relative if "unit-" in path.name else path.name) in names
        with pytest.raises(FormatError):
            PackedShards(index, verify=True)
        path.write_bytes(content)
    assert run("verify", index).code == 0


def test_append_adds_windows_to_an_index(inputs: Any, tmp_path: Path) -> None:
    for name, more in (("plain", {}), ("index", {"materialize": "index"})):
        options = inputs("text", name, **more)
        first, second = options["sources"]
        build(BuildConfig(**options | {"sources": (first,)}))
        build(BuildConfig(**options | {"sources": (first, second), "append": True}))
    index = tmp_path / "index"
    assert run("verify", index).code == 0
    assert len(list((index / "tokens").iterdir())) == 2
    equal_packs(PackedShards(index), PackedShards(tmp_path / "plain"))
    made = materialize(index, tmp_path / "made")
    plain = read_manifest(tmp_path / "plain")
    assert [entry.sha256 for entry in made.files] == [entry.sha256 for entry in plain.files]


@pytest.mark.parametrize("kind", ["text", "groups"])
def test_every_command_reads_an_index_or_says_what_to_do(
    kind: str, inputs: Any, tmp_path: Path
) -> None:
    """A walk over all commands that take an output."""
    options = inputs(kind, "plain", **(GROUPS if kind == "groups" else {}))
    unshared = ["--unshared"] if kind == "groups" else []
    build(BuildConfig(**options))
    build(BuildConfig(**options | {"output": str(tmp_path / "index"), "materialize": "index"}))
    index, plain, new = tmp_path / "index", tmp_path / "plain", tmp_path / "new"
    same: list[tuple[Any, ...]] = [
        ("show", "--pack", 3),
        ("show", "--rows", "--pack", 3),
        ("show", "--find", 7),
    ]
    same += [("show", "--find", 7, "--json"), ("show", "--doc", 9)]
    for name, *rest in same:
        answers = [run(name, output, *rest) for output in (index, plain)]
        assert [answer.code for answer in answers] == [0, 0], answers
        assert answers[0].out == answers[1].out
    assert run("stats", index).code == 0
    one, other = measure_output(index), measure_output(plain)
    for name in ("documents", "segments", "documents_per_pack", "fill", "cost"):
        counts, expected = getattr(one, name), getattr(other, name)
        assert counts.values.tolist() == expected.values.tolist()
        assert counts.counts.tolist() == expected.counts.tolist()
    assert run("verify", index, "--level", "full", "--sample", 20).code == 0
    assert run("report", index, "-o", tmp_path / "report.html").code == 0
    assert run("stats", index, plain).code == 0
    baseline = ("check", index, "--baseline", tmp_path / "baseline.json")
    assert run(*baseline, "--update-baseline").code == 0
    assert run(*baseline).code == 0
    for form in ("npy", "parquet"):
        for output in (index, plain):
            made = tmp_path / f"{form}-{output.name}"
            assert run("export", output, "--to", form, "-o", made, "-q", *unshared).code == 0
        facts = [
            json.loads((tmp_path / f"{form}-{name}" / "export.json").read_bytes())["data"]["files"]
            for name in ("index", "plain")
        ]
        assert facts[0] == facts[1]
    advice = f"write them with packprep materialize {index} -o DIR, then give DIR\n"
    for refused in (
        *([] if unshared else [("rename", index, "--names", "hf")]),
        ("reshard", index, "-o", new, "--shard-size", "1MB"),
        ("push", index, "a/b", "--dry-run"),
    ):
        answer = run(*refused)
        assert (answer.code, answer.err.endswith(advice)) == (2, True), answer
    answer = run("merge", index, plain, "-o", new)
    assert answer.err == (
        f"packprep: {index} and {plain} differ in materialize: index and shards, which packprep "
        "materialize writes; build one of them again to merge\n"
    )
    assert run("merge", index, index, "-o", new, "-q").code == 0
    assert run("merge", plain, plain, "-o", tmp_path / "twice", "-q").code == 0
    equal_packs(PackedShards(new, verify=True), PackedShards(tmp_path / "twice"))
    assert run("materialize", plain, "-o", tmp_path / "other").err == (
        f"packprep: {plain} is not an index: its shards hold their tokens already\n"
    )


def test_a_stopped_build_and_a_stopped_materialize_resume(inputs: Any, tmp_path: Path) -> None:
    options = inputs("text", "index", materialize="index")
    whole = build(BuildConfig(**options | {"output": str(tmp_path / "whole")}))
    places = ((window_files, "write_shard", 2), (directory, "_clear", 1), (Path, "rename", 0))
    for module, name, calls in places:
        with disk_fails(module, name, calls):
            build(BuildConfig(**options))
        assert not (tmp_path / "index").exists()
    assert build(BuildConfig(**options)).data == whole.data
    assert run("verify", tmp_path / "index").code == 0
    with disk_fails(command, "write_batches", 2):
        materialize(tmp_path / "index", tmp_path / "made")
    assert not (tmp_path / "made").exists()
    made = materialize(tmp_path / "index", tmp_path / "made")
    (tmp_path / "made.lock").write_bytes(b"")  # of a process that is gone
    assert materialize(tmp_path / "index", tmp_path / "made") == made
    assert not (tmp_path / "made.lock").exists()
    plain = build(BuildConfig(**inputs("text", "plain")))
    assert made.data == plain.data
    with pytest.raises(ConfigError) as other:
        materialize(tmp_path / "index", tmp_path / "whole")
    assert str(other.value) == f"{tmp_path}/whole is another output; choose another -o"
