"""Outputs with a packing of the same documents for each epoch."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import jsonschema
import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.derive.merge import merge
from packprep.execute import window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.packing.plan import PackPlan
from packprep.preview.estimate import estimate
from packprep.schemas import FormatError, check_ledger, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import build_options, disk_fails, texts
from tests.helpers.files import config
from tests.helpers.planted import plant

SCHEMAS = Path(__file__).parents[2] / "schemas"
EPOCHS = {"epochs": 3, "repack": True, "materialize": "shards"}


DOCUMENTS = 120


def options_in(folder: Path) -> dict[str, Any]:
    """A build of 120 documents in several units, windows and shards, for three epochs."""
    files = {f"{number}.jsonl": texts(40, seed=number) for number in range(3)}
    sizes = {"unit_size": 3_000, "window": 12_000, "shard_size": 40_000}
    return build_options(folder, files, engine="hf", max_length=256, **sizes) | EPOCHS


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return options_in(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output that tests only read."""
    options = options_in(tmp_path_factory.mktemp("built"))
    build(config(**options))
    return Path(options["output"])


def test_epochs_are_an_index_unless_shards_are_asked_for(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    chosen = {key: value for key, value in options.items() if key != "materialize"}
    assert build(config(**chosen)).is_index
    shards = build(config(**chosen | {"output": str(tmp_path / "s"), "materialize": "shards"}))
    assert not shards.is_index
    for epoch in range(3):
        assert documents(tmp_path / "out", epoch) == documents(tmp_path / "s", epoch)


def documents(output: Path, epoch: int, split: str = "train") -> list[tuple[int, int, list[int]]]:
    """Segments of an epoch as (document, start, tokens), sorted."""
    return sorted(
        (int(document or 0), int(start or 0), tokens.tolist())
        for pack in PackedShards(output, split=split, epoch=epoch)
        for document, start, tokens in pack.segments()
    )


def whole_documents(output: Path, epoch: int) -> dict[int, list[int]]:
    """The tokens of each document, its pieces joined."""
    whole: dict[int, list[int]] = {}
    for document, _, tokens in documents(output, epoch):
        whole.setdefault(document, []).extend(tokens)
    return whole


def neighbours(output: Path, epoch: int) -> set[tuple[int, int]]:
    pairs = set()
    for pack in PackedShards(output, epoch=epoch):
        ids = np.asarray(pack.document_ids).tolist()
        pairs |= {(min(a, b), max(a, b)) for a, b in pairwise(ids) if a != b}
    return pairs


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"strategy": "greedy", "order": "length"},
        {"strategy": "stream"},
        {"strategy": "optimal", "max_segments_per_pack": 3},
        {"strategy": "wrapped"},
        {"strategy": "balanced", "window": "1GB", "order": "balanced"},
        {"weights": "50,30,20"},
        {"pad_segment_to_multiple": 8, "overflow": "truncate"},
        {"materialize": "auto"},
    ],
    ids=str,
)
def test_every_epoch_has_all_documents_with_other_neighbours_and_an_account_that_closes(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any]
) -> None:
    manifest = build(config(**options | more))
    out = tmp_path / "out"
    assert verify(out, level="full").sound
    assert manifest.data["epochs"] == 3
    epochs = [entry.epoch for entry in manifest.shards("train")]
    assert epochs == sorted(epochs, key=lambda epoch: epoch or 0)
    assert {*epochs} == {0, 1, 2}
    wholes = [whole_documents(out, epoch) for epoch in range(3)]
    assert wholes[0] == wholes[1] == wholes[2]
    pairs = [neighbours(out, epoch) for epoch in range(3)]
    assert len(pairs[0] & pairs[1]) < 0.3 * len(pairs[0]), "there are only 120 documents"
    assert len(pairs[1] & pairs[2]) < 0.3 * len(pairs[1])
    report = read_report(out)
    for name in ("report", "manifest"):
        value = json.loads((out / f"{name}.json").read_bytes())
        jsonschema.validate(value, json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    for epoch, figures in enumerate(report["epochs"]):
        check_ledger(figures["tokens"])
        shards = manifest.shards("train", epoch)
        assert figures["packs"] == sum(entry.packs or 0 for entry in shards)
        assert figures["tokens"]["tokens_packed"] == sum(entry.tokens or 0 for entry in shards)
    assert report["packs"] == sum(figures["packs"] for figures in report["epochs"])
    assert report["documents"]["in"] == DOCUMENTS
    assert report["tokens"]["tokens_in"] == 3 * report["epochs"][0]["tokens"]["tokens_in"]
    assert [window["epoch"] for window in report["windows"]] == sorted(
        window["epoch"] for window in report["windows"]
    )


def test_equal_builds_have_equal_bytes_and_another_seed_has_other_plans_in_all_epochs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    first = build(config(**options)).data
    again = build(config(**options | {"output": str(tmp_path / "again")})).data
    assert again == first
    other = build(config(**options | {"output": str(tmp_path / "other"), "seed": 1})).data
    digests = [
        {file["sha256"] for file in data["files"] if "epoch" in file} for data in (first, other)
    ]
    assert not digests[0] & digests[1]


def test_validation_documents_stay_apart_in_every_epoch(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    build(config(**options | {"holdout": 0.2}))
    assert verify(tmp_path / "out").sound
    for split in ("train", "validation"):
        ids = [
            {document for document, _, _ in documents(tmp_path / "out", epoch, split)}
            for epoch in range(3)
        ]
        assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize("remainder", ["drop", "fill"])
def test_the_packs_of_each_epoch_are_a_multiple(
    tmp_path: Path, options: dict[str, Any], remainder: str
) -> None:
    build(config(**options | {"packs_multiple_of": 8, "remainder": remainder}))
    assert verify(tmp_path / "out").sound
    for epoch in range(3):
        assert len(PackedShards(tmp_path / "out", epoch=epoch)) % 8 == 0


def test_an_epoch_without_packs_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="packs_multiple_of 100,000 drops all packs of the split"):
        build(config(**options | {"packs_multiple_of": 100_000}))


def test_a_packer_of_the_user_gets_the_documents_in_another_order_in_each_epoch(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    seen = []

    def alone(lengths: Any, max_length: int) -> PackPlan:
        seen.append(lengths.tolist())
        return PackPlan(lengths, max_length, np.arange(len(lengths)), np.arange(len(lengths) + 1))

    build(config(**options | {"window": "1GB"}), planner=alone)
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(seen[2])
    assert seen[0] != seen[1] != seen[2] != seen[0]
    assert verify(tmp_path / "out").sound


@pytest.mark.parametrize("more", [{}, {"weights": "50,30,20"}])
def test_tasks_of_an_array_make_the_bytes_of_one_process(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any]
) -> None:
    local = build(config(**options | more | {"output": str(tmp_path / "local")})).data

    def task(index: str) -> BuildConfig:
        return config(**options | more, executor="array", num_tasks=2, task_index=index)

    done = [build_share(task(index)) for index in ("1", "0")]
    assert more or done[-1]["windows written"] == done[-1]["windows"] > 6
    assert build(task("merge")).data == local


def test_a_killed_build_resumes_the_windows_of_all_epochs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    expected = build(config(**options | {"output": str(tmp_path / "whole")})).data
    with disk_fails(window_files, "write_shard", 6):
        build(config(**options))
    written = {path.name for path in (tmp_path / "out.incomplete" / "shards").iterdir()}
    assert len(written) >= 5
    assert build(config(**options)).data == expected


def test_appended_files_are_packed_for_the_same_epochs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    sources = options["sources"]
    build(config(**options | {"sources": sources[:2]}))
    manifest = build(config(**options, append=True))
    assert verify(tmp_path / "out").sound
    report = read_report(tmp_path / "out")
    assert [figures["epoch"] for figures in report["epochs"]] == [0, 1, 2]
    for epoch, figures in enumerate(report["epochs"]):
        check_ledger(figures["tokens"])
        assert figures["packs"] == sum(
            entry.packs or 0 for entry in manifest.shards("train", epoch)
        )
    assert whole_documents(tmp_path / "out", 2) == whole_documents(tmp_path / "out", 0)
    cut = merge([tmp_path / "out"], tmp_path / "cut", shard_size=5_000)
    assert verify(tmp_path / "cut").sound
    assert len(cut.shards("train")) > len(manifest.shards("train"))
    for epoch in range(3):
        assert documents(tmp_path / "cut", epoch) == documents(tmp_path / "out", epoch)


def test_an_index_of_several_epochs_is_appended_to_exported_and_materialized(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    index = options | {"materialize": "index", "keep_tokens": str(tmp_path / "store")}
    sources = options["sources"]
    for settings, name in ((options, "shards"), (index, "index")):
        for more in ({"sources": sources[:2]}, {"append": True}):
            build(config(**settings | {"output": str(tmp_path / name)} | more))
    assert verify(tmp_path / "index").sound
    for epoch in range(3):
        plain, gathered = (
            [pack.tokens.tolist() for pack in PackedShards(tmp_path / name, epoch=epoch)]
            for name in ("shards", "index")
        )
        assert plain == gathered
    for name in ("shards", "index"):
        to = tmp_path / f"{name}-rows"
        assert run("export", tmp_path / name, "--to", "trl", "--epoch", 1, "-o", to).code == 0
    rows = [
        datasets.load_from_disk(str(tmp_path / f"{name}-rows"))["train"]["input_ids"][:]
        for name in ("shards", "index")
    ]
    assert rows[0] == rows[1]
    assert (
        run("merge", tmp_path / "index", "-o", tmp_path / "again", "--materialize", "shards").code
        == 0
    )
    assert verify(tmp_path / "again").sound
    assert read_manifest(tmp_path / "again").epochs == 3


def test_outputs_of_other_epochs_are_not_merged(tmp_path: Path, options: dict[str, Any]) -> None:
    build(config(**options))
    build(config(**options | {"output": str(tmp_path / "two"), "epochs": 2}))
    with pytest.raises(ConfigError) as error:
        merge([tmp_path / "out", tmp_path / "two"], tmp_path / "both")
    assert str(error.value) == (
        f"{tmp_path}/out and {tmp_path}/two differ in epochs: 3 and 2; build one of them again to "
        "merge"
    )


def test_other_names_keep_the_epochs(tmp_path: Path, options: dict[str, Any]) -> None:
    build(config(**options))
    merge([tmp_path / "out"], tmp_path / "out", names="hf", overwrite=True)
    assert read_manifest(tmp_path / "out").epochs == 3
    assert verify(tmp_path / "out").sound
    assert whole_documents(tmp_path / "out", 2) == whole_documents(tmp_path / "out", 0)


def test_load_from_disk_has_the_packs_of_all_epochs(built: Path) -> None:
    rows = datasets.load_from_disk(str(built))
    each = [len(PackedShards(built, epoch=epoch)) for epoch in range(3)]
    assert len(rows) == read_manifest(built).num_packs == sum(each)


def test_an_export_is_of_one_epoch(tmp_path: Path, built: Path) -> None:
    to = tmp_path / "exported"
    refused = run("export", built, "--to", "parquet", "-o", to)
    assert (refused.code, refused.err) == (
        2,
        f"packprep: {built} has 3 packings of the same documents, one for each epoch; choose "
        "--epoch, 0 to 2\n",
    )
    assert run("export", built, "--to", "parquet", "-o", to, "--epoch", 3).err == (
        f"packprep: {built} has no epoch 3; it has 3, from 0\n"
    )
    assert run("export", built, "--to", "trl", "-o", to, "--epoch", 2).code == 0
    rows = datasets.load_from_disk(str(to))["train"]
    packs = PackedShards(built, epoch=2)
    assert [row["input_ids"] for row in rows] == [pack.tokens.tolist() for pack in packs]
    assert "another epoch" in run("export", built, "--to", "trl", "-o", to, "--epoch", 1).err


def test_commands_name_the_epoch_of_a_pack(tmp_path: Path, built: Path) -> None:
    first = len(PackedShards(built, epoch=0))
    document = next(iter(whole_documents(built, 0)))
    found = json.loads(run("show", built, "--find", document, "--json").out)
    assert [segment["epoch"] for segment in found if segment["from_token"] == 0] == [0, 1, 2]
    shown = run("show", built, "--pack", first).out
    assert f" packs of train, in epoch 1: {PackedShards(built, epoch=1)[0].tokens.size} " in shown
    stats = json.loads(run("stats", built, "--global-batch-size", 4, "--json").out)
    assert stats["training"]["steps_per_epoch"] == first // 4
    assert stats["counts"]["documents"]["total"] == len(whole_documents(built, 0))
    assert "3, added up above; each has all documents" in run("stats", built).out
    assert run("report", built, "-o", tmp_path / "page.html").code == 0


def test_verify_finds_a_document_that_one_epoch_lacks(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    manifest = build(config(**options))
    shards = manifest.shards("train")
    number = next(place for place, entry in enumerate(shards) if entry.epoch == 2)
    ids: list[int] = []

    def exchange(packs: Any) -> None:
        (one, at), (other, there), *_ = [
            (pack, place)
            for pack in packs
            for place, start in enumerate(pack["document_starts"])
            if start == 0
        ]
        ids.append(one["document_ids"][at])
        one["document_ids"][at] = other["document_ids"][there]

    plant(tmp_path / "out", exchange, number)
    findings = [str(finding) for finding in verify(tmp_path / "out").findings]
    name = f"{options['sources'][ids[0] // 40]} row {ids[0] % 40}"
    assert f"{name} is in epoch 0 and not in epoch 2" in findings
    assert any("in epoch 2 is in the packs more than once" in finding for finding in findings)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda data: data.pop("epochs"), "has the keys bytes, epoch, packs, path"),
        (lambda data: data.update(epochs=1), "manifest.json has epochs 1; expected 2 or more"),
        (
            lambda data: data.update(epochs=4),
            "expected 0 to 3 in this order, each with a shard",
        ),
        (
            lambda data: data["files"][0].update(epoch=2),
            "expected 0 to 2 in this order, each with a shard",
        ),
    ],
)
def test_a_manifest_with_other_epochs_than_its_shards_is_refused(
    tmp_path: Path, built: Path, edit: Callable[[Any], None], sentence: str
) -> None:
    manifest = read_manifest(built)
    data = json.loads(json.dumps(manifest.data))
    edit(data)
    with pytest.raises(FormatError, match=sentence):
        write_manifest(tmp_path, data, manifest.run)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"epochs": 3},
            "epochs is 3 and each would have the same packs, which a loader repeats anyway; add "
            "--repack for other neighbours in each epoch, or leave epochs out",
        ),
        (
            {"repack": True},
            "repack packs the documents once for each epoch, and epochs is 1; give --epochs",
        ),
        (
            EPOCHS | {"order": "input"},
            "order input keeps documents beside the same neighbours in every epoch; choose another "
            "order, or leave out repack",
        ),
        ({"epochs": 0}, "epochs is 0, expected at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        BuildConfig(**wrong)
    assert str(error.value) == sentence


def test_an_epoch_that_is_not_there_is_refused(built: Path) -> None:
    with pytest.raises(ValueError, match=r"out has no epoch 3; expected 0 to 2"):
        PackedShards(built, epoch=3)


def test_a_dry_run_counts_the_packs_of_every_epoch(
    options: dict[str, Any],
) -> None:
    once = {key: value for key, value in options.items() if key not in EPOCHS}
    predicted, alone = (estimate(config(**each))["prediction"] for each in (options, once))
    # Each epoch has windows of its own, whose last packs are not full.
    for key in ("packs", "tokens_packed", "bytes"):
        assert predicted[key] == pytest.approx(3 * alone[key], rel=0.03)
    assert predicted["tokens_in"] == 3 * alone["tokens_in"]
