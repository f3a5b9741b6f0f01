"""Several outputs as one: their packs in order, under one account."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from packprep import build
from packprep.derive import shards as making
from packprep.derive import signing
from packprep.derive.merge import merge
from packprep.derive.summing import summed_report
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output.shard_writer import write_batches
from packprep.schemas import Manifest, read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.examples import long_but
from tests.helpers.files import config
from tests.helpers.tiny_shards import GOLDEN
from tests.helpers.zoo import NAMES, Zoo

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_bytes())
NUMBERS = ("document_ids", "pair_ids", "row_ids")


def built(folder: Path, name: str, documents: list[str], **options: Any) -> Path:
    source = write_jsonl(folder / f"{name}.jsonl", documents)
    tokenizer = save_tokenizer(folder / "tok")
    settings = {"max_length": 64, "overflow": "truncate", "min_document_tokens": 30} | options
    build(config(sources=[source], output=folder / name, tokenizer=tokenizer, **settings))
    return folder / name


def documents_in(manifest: Manifest) -> int:
    return sum(source["documents"] for source in manifest.data["sources"])


def check_concatenation(parts: list[Path], whole: Path) -> None:
    """The packs of `whole` are those of the parts, in order, with document ids that stay unique."""
    manifests = [read_manifest(part) for part in parts]
    for split in read_manifest(whole).splits:
        for epoch in range(manifests[0].epochs):
            packs = iter(PackedShards(whole, split=split, epoch=epoch, verify=True))
            shift = 0
            for part, manifest in zip(parts, manifests, strict=True):
                for pack in PackedShards(part, split=split, epoch=epoch):
                    made = next(packs)
                    assert [*made.columns] == [*pack.columns]
                    for name, values in pack.columns.items():
                        expected = values
                        if name in NUMBERS:
                            expected = np.where(values < 0, values, values + shift)
                        np.testing.assert_array_equal(made.columns[name], expected)
                shift += documents_in(manifest)
            assert next(packs, None) is None


SHORT = ("text", "chats", "pairs", "turns", "trees", "index", "v1-rich")
"""Kinds of the short run. Those of splits and epochs are cut again there, below."""


@pytest.mark.parametrize(
    "name", long_but(SHORT, [*(name for name in NAMES if name != "phases"), "v1-rich"])
)
def test_a_merge_has_the_packs_of_its_parts_in_order_with_unique_document_ids(
    name: str, zoo: Zoo, tmp_path: Path
) -> None:
    part, whole = GOLDEN / name if name == "v1-rich" else zoo[name], tmp_path / "all"
    manifest, before = merge([part, part], whole), read_manifest(part)
    check_concatenation([part, part], whole)
    assert (manifest.names, manifest.added) == (before.names, before.added)
    firsts = [source["first_document"] for source in manifest.data["sources"]]
    assert all(first < second for first, second in pairwise(firsts))
    assert firsts[len(firsts) // 2] == documents_in(before)
    if name != "v1-rich":  # its report is not that of a build
        assert verify(whole).sound
        jsonschema.validate(read_report(whole), SCHEMA)


def test_what_mixes_repeat_is_added_up_and_what_was_asked_of_one_is_not_said_of_all(
    zoo: Zoo, tmp_path: Path
) -> None:
    mix = built(tmp_path, "mix", texts(30, seed=1), weights="1", max_epochs=2)
    manifest = merge([zoo["text"], mix, mix], tmp_path / "all")
    repeated = read_manifest(mix).data["repeated"]
    assert manifest.data["repeated"] == {key: 2 * value for key, value in repeated.items()}
    assert repeated["documents"] > 0
    jsonschema.validate(read_report(tmp_path / "all"), SCHEMA)
    assert ["mix" in read_report(output) for output in (mix, tmp_path / "all")] == [True, False]


def test_rates_that_an_older_report_lacks_are_in_no_sum(zoo: Zoo) -> None:
    report = read_report(zoo["text"])
    older: Any = {key: value for key, value in report.items() if key != "bos_rate"}
    for reports in ([older, report], [report, older], [report]):
        both = summed_report(reports, report["documents_per_pack"], [])
        assert both.get("bos_rate") == (None if older in reports else 1.0)


def test_merging_merged_outputs_lists_every_build_once(zoo: Zoo, tmp_path: Path) -> None:
    parts = [zoo["text"], zoo["mix"], zoo["text"]]
    merge(parts[:2], tmp_path / "ab")
    nested, flat = merge([tmp_path / "ab", parts[2]], tmp_path / "x"), merge(parts, tmp_path / "y")
    assert nested.data == flat.data


def test_one_merge_with_all_changes_is_a_merge_for_each(zoo: Zoo, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"materialize": "shards", "names": "hf"}
    merge([zoo["index"]], tmp_path / "a", **changes)
    merge([tmp_path / "a"] * 2, tmp_path / "aa")
    stepwise = merge([tmp_path / "aa"], tmp_path / "cut", shard_size=5_000)
    at_once = merge([zoo["index"]] * 2, tmp_path / "all", **changes, shard_size=5_000)
    assert at_once.data == stepwise.data


def test_shards_that_stay_the_same_are_linked_and_others_are_written(
    zoo: Zoo, tmp_path: Path
) -> None:
    part = zoo.copy("text", tmp_path)
    merge([part, part], tmp_path / "all")
    old, new = (sorted(path.glob("*.arrow")) for path in (part, tmp_path / "all"))
    linked = [one.samefile(other) for one, other in zip([*old, *old], new, strict=True)]
    assert linked == [True] * len(old) + [False] * len(old)


@pytest.mark.parametrize("size", [2_000, 10_000, 500_000_000])
def test_an_output_that_is_cut_again_has_the_bytes_of_a_build_with_that_shard_size(
    tmp_path: Path, size: int
) -> None:
    first = built(tmp_path, "a", texts(120))
    direct = built(tmp_path, "b", texts(120), shard_size=size)
    result = run("merge", first, "-o", tmp_path / "cut", "--shard-size", size, "-q")
    assert (result.code, result.out) == (0, "")
    assert read_manifest(tmp_path / "cut").files == read_manifest(direct).files


def test_splits_and_epochs_are_cut_again_one_by_one(zoo: Zoo, tmp_path: Path) -> None:
    for name in ("split", "epochs"):
        part, whole = zoo[name], tmp_path / name
        manifest = merge([part, part], whole, shard_size=6_000)
        assert len(manifest.files) > 2 * len(read_manifest(part).files)
        check_concatenation([part, part], whole)


def test_an_output_that_does_not_name_its_sources_can_be_cut_again(tmp_path: Path) -> None:
    merge([GOLDEN / "v1-example"], tmp_path / "out", shard_size=1_000)
    assert read_manifest(tmp_path / "out").run["source_paths"] == ["source 0"]
    check_concatenation([GOLDEN / "v1-example"], tmp_path / "out")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ("uint16", "token_type: int32 and uint16"),
        ({"max_length": 32}, "max_length: 64 and 32"),
        ({"columns": ("document_ids",)}, "columns: "),
        ("epochs", "epochs: 1 and 2"),
        ("trees", "tokenizer: not the same"),
        ("hf_names", "names: packprep and hf; add names hf or names packprep"),
        ("index", "materialize: index and shards; add materialize shards"),
    ],
)
def test_outputs_that_do_not_fit_together_are_refused(
    zoo: Zoo, tmp_path: Path, other: Any, what: str
) -> None:
    second = tmp_path / "second"
    if isinstance(other, str):
        second = zoo[other]
    else:
        build(replace(zoo.config("text"), output=str(second), **other))
    with pytest.raises(ConfigError, match=f"differ in {what}"):
        merge([zoo["text"], second], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_phases_have_an_order_that_a_merge_does_not_keep(zoo: Zoo, tmp_path: Path) -> None:
    for parts, size in (([zoo["phases"]] * 2, None), ([zoo["phases"]], 3_000)):
        with pytest.raises(ConfigError, match="has phases"):
            merge(parts, tmp_path / "all", shard_size=size)


def test_an_output_is_replaced_only_with_overwrite_and_other_files_never(
    zoo: Zoo, tmp_path: Path
) -> None:
    part, other = zoo.copy("text", tmp_path), zoo.copy("split", tmp_path)
    for refused, words in (
        ((part, "-o", part), "exists already; choose another -o, or add --overwrite"),
        ((part, part, "-o", part, "--overwrite"), "is one of the outputs to merge"),
        ((part, "-o", next(part.glob("*.arrow"))), "is not a directory"),
    ):
        result = run("merge", *refused)
        assert (result.code, words in result.err) == (2, True), result.err
    merge([part], other, overwrite=True)
    check_concatenation([part], other)
    (other / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="is not an output of packprep; choose another"):
        merge([part], other, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split", "text"]


@pytest.mark.parametrize("size", [(), ("--shard-size", "8KB")])
def test_the_same_merge_again_is_done_already_and_another_one_is_refused(
    zoo: Zoo, tmp_path: Path, size: tuple[str, ...]
) -> None:
    first, second, out = zoo["text"], zoo["mix"], tmp_path / "all"
    whole = run("merge", first, second, "-o", out, *size)
    files = {path: path.read_bytes() for path in out.rglob("*.*")}
    again = run("merge", first, second, "-o", out, *size)
    assert (whole.code, again.code) == (0, 0)
    assert f"{out} has these packs already: nothing to do" in again.err
    for others in ((first, second, *size, "--shard-size", "4KB"), (second, first, *size)):
        refused = run("merge", *others, "-o", out)
        assert (refused.code, "exists already" in refused.err) == (2, True)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == files


@pytest.mark.parametrize("options", [{}, {"names": "hf"}, {"materialize": "shards"}])
def test_a_stopped_merge_writes_only_the_shards_that_are_missing(
    options: dict[str, Any], zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [zoo["index" if "materialize" in options else "text"]] * 2
    whole = merge(parts, tmp_path / "whole", **options)
    with disk_fails(making, "write_batches", 2):
        merge(parts, tmp_path / "all", **options)
    assert not (tmp_path / "all").exists()
    names: list[str] = []
    real = write_batches

    def counted(folder: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return real(folder, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(making, "write_batches", counted)
        assert merge(parts, tmp_path / "all", **options).data == whole.data
    written = [entry for entry in whole.files if entry.is_shard]
    assert len(names) == len(written) // (1 if options else 2) - 2 > 0


def test_an_unfinished_merge_of_other_outputs_is_discarded_with_overwrite_only(
    zoo: Zoo, tmp_path: Path
) -> None:
    for name, folder in (("text", "all"), ("index", "index")):
        with disk_fails(signing, "write_manifest"):
            merge([zoo[name]] * 2, tmp_path / folder)
    merge([zoo["index"]] * 2, tmp_path / "index")  # whose token files are there
    assert verify(tmp_path / "index").sound
    with pytest.raises(ConfigError, match=r"is an unfinished build .*add overwrite"):
        merge([zoo["split"]], tmp_path / "all")
    merge([zoo["split"]], tmp_path / "all", overwrite=True)
    check_concatenation([zoo["split"]], tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "index"]
