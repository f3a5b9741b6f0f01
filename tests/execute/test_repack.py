"""Outputs with a packing of the same documents for each epoch."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from packprep import build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.packing.plan import PackPlan
from packprep.schemas import FormatError, check_ledger, read_manifest
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.command import run
from tests.helpers.corpus import build_options, texts
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.planted import Packs, plant
from tests.helpers.zoo import Zoo

EPOCHS = {"epochs": 3, "materialize": "shards"}
DOCUMENTS = 120


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A build of 120 documents in several units, windows and shards, for three epochs."""
    files = {f"{number}.jsonl": texts(40, seed=number) for number in range(3)}
    sizes = {"unit_size": 3_000, "window": 12_000, "shard_size": 40_000}
    return build_options(tmp_path, files, engine="hf", max_length=256, **sizes) | EPOCHS


def documents(output: Path, epoch: int, split: str = "train") -> list[tuple[int, int, list[int]]]:
    """Segments of an epoch as (document, start, tokens), sorted."""
    return sorted(
        (int(document or 0), int(start or 0), tokens.tolist())
        for pack in PackedShards(output, split=split, epoch=epoch)
        for document, start, tokens in pack.segments()
    )


def whole_documents(output: Path, epoch: int, split: str = "train") -> dict[int, list[int]]:
    """The tokens of each document, its pieces joined."""
    whole: dict[int, list[int]] = {}
    for document, _, tokens in documents(output, epoch, split):
        whole.setdefault(document, []).extend(tokens)
    return whole


def neighbours(output: Path, epoch: int) -> set[tuple[int, int]]:
    pairs = set()
    for pack in PackedShards(output, split="train", epoch=epoch):
        ids = np.asarray(pack.document_ids).tolist()
        pairs |= {(min(a, b), max(a, b)) for a, b in pairwise(ids) if a != b}
    return pairs


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"holdout": 0.2, "packs_multiple_of": 8},
        *(
            pytest.param(more, marks=pytest.mark.long)
            for more in (
                {"strategy": "optimal", "max_segments_per_pack": 3},
                {"strategy": "wrapped", "packs_multiple_of": "8:fill"},
                {"strategy": "balanced", "window": "1GB", "order": "balanced"},
                {"weights": "50,30,20"},
                {"materialize": "auto"},
            )
        ),
    ],
    ids=str,
)
def test_every_epoch_has_all_documents_with_other_neighbours_and_an_account_that_closes(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any]
) -> None:
    manifest = build(config(**options | more))
    out = tmp_path / "out"
    assert manifest.is_index == (more.get("materialize") == "auto")
    assert verify(out, level="full").sound
    epochs = [entry.epoch for entry in manifest.shards("train")]
    assert (manifest.epochs, sorted({*epochs}, key=str)) == (3, [0, 1, 2])
    assert epochs == sorted(epochs, key=lambda epoch: epoch or 0)
    for split in manifest.splits:
        wholes = [whole_documents(out, epoch, split) for epoch in range(3)]
        if "packs_multiple_of" not in more:
            assert wholes[0] == wholes[1] == wholes[2]
        sizes = [len(PackedShards(out, split=split, epoch=epoch)) for epoch in range(3)]
        assert all(size % config(**options | more).multiple.packs == 0 for size in sizes)
    pairs = [neighbours(out, epoch) for epoch in range(3)]
    assert len(pairs[0] & pairs[1]) < 0.3 * len(pairs[0]), "there are only 120 documents"
    assert len(pairs[1] & pairs[2]) < 0.3 * len(pairs[1])
    report = read_report(out)
    for epoch, figures in enumerate(report["epochs"]):
        check_ledger(figures["tokens"])
        if "holdout" not in more:
            shards = manifest.shards("train", epoch)
            assert figures["packs"] == sum(entry.packs or 0 for entry in shards)
            assert figures["tokens"]["tokens_packed"] == sum(entry.tokens or 0 for entry in shards)
    assert report["packs"] == sum(figures["packs"] for figures in report["epochs"])
    assert report["documents"]["in"] == DOCUMENTS
    assert report["tokens"]["tokens_in"] == 3 * report["epochs"][0]["tokens"]["tokens_in"]
    if "holdout" not in more:
        of_windows = [window["epoch"] for window in report["windows"]]
        assert of_windows == sorted(of_windows)


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


def test_an_export_is_of_one_epoch(zoo: Zoo, tmp_path: Path) -> None:
    built, to = zoo["epochs"], tmp_path / "exported"
    export = ("export", built, "-o", to, "--to")
    shown = run(*export, "parquet")
    assert shown.code == 2
    assert_says(shown.err, "2 packings of the same documents", "--epoch, 0 to 1")
    assert_says(run(*export, "parquet", "--epoch", 3).err, "has no epoch 3; it has 2, from 0")
    assert run(*export, "trl", "--epoch", 1).code == 0
    rows = datasets.load_from_disk(str(to))["train"]
    packs = PackedShards(built, epoch=1)
    assert [row["input_ids"] for row in rows] == [pack.tokens.tolist() for pack in packs]
    assert_says(run(*export, "trl", "--epoch", 0).err, "another epoch")


def test_verify_names_a_document_that_one_epoch_lacks_and_another_holds_twice(
    zoo: Zoo, tmp_path: Path
) -> None:
    output = zoo.copy("epochs", tmp_path)
    shards = read_manifest(output).shards("train")

    def exchange(packs: Packs) -> None:
        one, other, *_ = [
            (pack["document_ids"], place)
            for pack in packs
            for place, start in enumerate(pack["document_starts"])
            if start == 0
        ]
        one[0][one[1]] = other[0][other[1]]

    plant(output, exchange, next(place for place, each in enumerate(shards) if each.epoch == 1))
    findings = " ".join(str(finding) for finding in verify(output).findings)
    assert "is in epoch 0 and not in epoch 1" in findings
    assert "in epoch 1 is in the packs more than once" in findings


def test_commands_and_readers_name_the_epoch_of_a_pack(zoo: Zoo, tmp_path: Path) -> None:
    built = zoo["epochs"]
    each = [len(PackedShards(built, epoch=epoch)) for epoch in range(2)]
    assert len(datasets.load_from_disk(str(built))) == read_manifest(built).num_packs == sum(each)
    document = next(iter(whole_documents(built, 0)))
    found = json.loads(run("show", built, "--find", document, "--json").out)
    assert [segment["epoch"] for segment in found if segment["from_token"] == 0] == [0, 1]
    shown = run("show", built, "--pack", each[0]).out
    assert f" packs of train, in epoch 1: {PackedShards(built, epoch=1)[0].tokens.size} " in shown
    stats = json.loads(run("stats", built, "--global-batch-size", 4, "--json").out)
    assert stats["training"]["steps_per_epoch"] == each[0] // 4
    assert stats["counts"]["documents"]["total"] == len(whole_documents(built, 0))
    assert "2, added up above; each has all documents" in run("stats", built).out
    assert run("report", built, "-o", tmp_path / "page.html").code == 0
    with refused(ValueError, "out has no epoch 3; expected 0 to 1"):
        PackedShards(built, epoch=3)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda data: data.pop("epochs"), "has epoch 0; expected one only if the output has"),
        (lambda data: data.update(epochs=1), "data.epochs is 1, not a whole number from 2 to"),
        (lambda data: data.update(epochs=4), "expected 0 to 3 in this order, each with a shard"),
        (
            lambda data: data["files"][0].update(epoch=1),
            "expected 0 to 1 in this order, each with a shard",
        ),
    ],
)
def test_a_manifest_with_other_epochs_than_its_shards_is_refused(
    zoo: Zoo, tmp_path: Path, edit: Callable[[Any], None], sentence: str
) -> None:
    manifest = read_manifest(zoo["epochs"])
    data = json.loads(json.dumps(manifest.data))
    edit(data)
    with pytest.raises(FormatError, match=sentence):
        write_manifest(tmp_path, data, manifest.run)
