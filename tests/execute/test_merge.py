import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from datasets import DatasetDict, load_from_disk

from packprep import build
from packprep.execute import merge as merging
from packprep.execute.merge import merge
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import FormatError, check_files, read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.tiny_shards import GOLDEN

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_bytes())


def built(folder: Path, name: str, documents: list[str], **options: Any) -> Path:
    source = write_jsonl(folder / f"{name}.jsonl", documents)
    tokenizer = save_tokenizer(folder / "tok")
    settings = {"max_length": 64, "overflow": "truncate", "min_document_tokens": 30} | options
    build(config(sources=[source], output=folder / name, tokenizer=tokenizer, **settings))
    return folder / name


def test_the_packs_of_all_stand_in_order_with_document_ids_that_stay_unique(tmp_path: Path) -> None:
    first, second = built(tmp_path, "a", texts(40)), built(tmp_path, "b", texts(30, seed=1))
    manifest = merge([first, second], tmp_path / "all")
    packs = list(load_from_disk(str(tmp_path / "all")))
    old = list(load_from_disk(str(first))), list(load_from_disk(str(second)))
    assert [pack["tokens"] for pack in packs] == [pack["tokens"] for part in old for pack in part]
    assert [pack["document_ids"] for pack in packs] == [
        [number + shift for number in pack["document_ids"]]
        for part, shift in zip(old, (0, 40), strict=True)
        for pack in part
    ]
    assert check_files(tmp_path / "all", manifest, "sha256") == []
    assert len(PackedShards(tmp_path / "all", verify=True)) == len(packs)
    assert [
        (source["first_document"], source["documents"]) for source in manifest.data["sources"]
    ] == [
        (0, 40),
        (40, 30),
    ]


def test_the_accounts_are_added_up(tmp_path: Path) -> None:
    first, second = built(tmp_path, "a", texts(40)), built(tmp_path, "b", texts(30, seed=1))
    manifest = merge([first, second, first], tmp_path / "all")
    report, parts = (
        read_report(tmp_path / "all"),
        [read_report(path) for path in (first, second, first)],
    )
    jsonschema.validate(report, SCHEMA)
    for key in ("packs", "segments", "tokens_lost", "bound", "gap", "bytes"):
        assert report[key] == sum(part[key] for part in parts), key
    dropped = [sum(part["tokens"]["dropped"].values()) for part in parts]
    assert sum(report["tokens"]["dropped"].values()) == sum(dropped) > 0
    assert report["documents"]["in"] == 110
    assert report["utilization"] == report["tokens"]["tokens_packed"] / (64 * report["packs"])
    assert [source["name"] for source in report["sources"]] == [
        source["name"] for part in parts for source in part["sources"]
    ]
    identities = [read_manifest(path).identity for path in (first, second, first)]
    assert [
        generation["identity"] for generation in manifest.data["inputs"]["generations"]
    ] == identities


def test_what_mixes_repeat_is_added_up_and_what_was_asked_of_one_is_not_said_of_all(
    tmp_path: Path,
) -> None:
    plain = built(tmp_path, "a", texts(40))
    mixes = [
        built(tmp_path, name, texts(30, seed=1), weights="1", max_epochs=times)
        for name, times in (("b", 2), ("c", 3))
    ]
    manifest = merge([plain, *mixes], tmp_path / "all")
    repeated = [read_manifest(path).data["repeated"]["documents"] for path in mixes]
    assert manifest.data["repeated"]["documents"] == sum(repeated) == 3 * repeated[0] > 0
    jsonschema.validate(read_report(tmp_path / "all"), SCHEMA)
    assert "mix" not in read_report(tmp_path / "all")
    assert "mix" in read_report(mixes[0])


def test_merging_merged_outputs_lists_every_build_once(tmp_path: Path) -> None:
    parts = [built(tmp_path, name, texts(10, seed)) for seed, name in enumerate("abc")]
    merge(parts[:2], tmp_path / "ab")
    nested, flat = merge([tmp_path / "ab", parts[2]], tmp_path / "x"), merge(parts, tmp_path / "y")
    assert nested.data == flat.data


def test_shards_that_stay_the_same_are_linked(tmp_path: Path) -> None:
    first, second = built(tmp_path, "a", texts(40)), built(tmp_path, "b", texts(9))
    merge([first, second], tmp_path / "all")
    before, after = (
        first / "data-00000-of-00001.arrow",
        tmp_path / "all" / "data-00000-of-00002.arrow",
    )
    assert before.samefile(after)
    assert not (second / "data-00000-of-00001.arrow").samefile(
        tmp_path / "all" / "data-00001-of-00002.arrow"
    )


def test_a_changed_input_is_found_before_its_shard_is_taken(tmp_path: Path) -> None:
    first = built(tmp_path, "a", texts(40))
    shard = first / "data-00000-of-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FormatError, match="has sha256"):
        merge([first], tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("size", [2_000, 10_000, 500_000_000])
def test_a_resharded_output_has_the_bytes_of_a_build_with_that_shard_size(
    tmp_path: Path, size: int
) -> None:
    first = built(tmp_path, "a", texts(120))
    direct = built(tmp_path, "b", texts(120), shard_size=size)
    result = run("reshard", first, "-o", tmp_path / "cut", "--shard-size", size, "-q")
    assert (result.code, result.out) == (0, "")
    assert read_manifest(tmp_path / "cut").files == read_manifest(direct).files


def test_an_output_that_does_not_name_its_sources_can_be_resharded(tmp_path: Path) -> None:
    result = run("reshard", GOLDEN / "v1-example", "-o", tmp_path / "out", "--shard-size", "1KB")
    assert (result.code, result.err) == (0, "")
    assert read_manifest(tmp_path / "out").run["source_paths"] == ["source 0"]
    assert len(PackedShards(tmp_path / "out")) == len(PackedShards(GOLDEN / "v1-example"))


def test_splits_are_merged_one_by_one(tmp_path: Path) -> None:
    first, second = (
        built(tmp_path, name, texts(80, seed), holdout=0.3) for seed, name in enumerate("ab")
    )
    assert run("merge", first, second, "-o", tmp_path / "all", "--shard-size", "3kB").code == 0
    both, parts = (
        load_from_disk(str(tmp_path / "all")),
        [load_from_disk(str(path)) for path in (first, second)],
    )
    assert isinstance(both, DatasetDict)
    for split in ("train", "validation"):
        assert list(both[split]["tokens"]) == [
            tokens for part in parts for tokens in part[split]["tokens"]
        ]


def test_filler_stays_filler(tmp_path: Path) -> None:
    options = {"packs_multiple_of": 16, "remainder": "fill"}
    first, second = (
        built(tmp_path, name, texts(20, seed), **options) for seed, name in enumerate("ab")
    )
    merge([first, second], tmp_path / "all")
    ids = np.concatenate(load_from_disk(str(tmp_path / "all")).with_format("numpy")["document_ids"])
    assert sorted(set(ids[ids >= 20]))
    assert (ids == -1).sum() == sum(
        (np.concatenate(load_from_disk(str(path)).with_format("numpy")["document_ids"]) == -1).sum()
        for path in (first, second)
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_length": 32}, "max_length: 64 and 32"),
        ({"columns": ["document_ids"]}, "columns"),
        ({"eos": "none"}, "tokenizer"),
    ],
)
def test_outputs_that_do_not_fit_together_are_refused(
    tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    first, second = built(tmp_path, "a", texts(9)), built(tmp_path, "b", texts(9), **options)
    with pytest.raises(ConfigError, match=f"differ in {what}"):
        merge([first, second], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_an_output_that_is_there_is_never_touched(tmp_path: Path) -> None:
    first = built(tmp_path, "a", texts(9))
    result = run("merge", first, "-o", first)
    assert (result.code, result.err) == (
        2,
        f"packprep: {first} exists already; choose another -o\n",
    )


def test_the_same_merge_again_is_done_already_and_another_one_is_refused(tmp_path: Path) -> None:
    first, second = built(tmp_path, "a", texts(40)), built(tmp_path, "b", texts(30, seed=1))
    out = tmp_path / "all"
    for size in ((), ("--shard-size", "8KB")):
        whole = run("merge", first, second, "-o", out, *size)
        files = {path: path.read_bytes() for path in out.rglob("*.*")}
        again = run("merge", first, second, "-o", out, *size)
        assert (whole.code, again.code) == (0, 0)
        assert f"{out} has these packs already: nothing to do" in again.err
        for others in ((first, second, *size, "--shard-size", "4KB"), (second, first, *size)):
            refused = run("merge", *others, "-o", out)
            assert (refused.code, refused.err) == (
                2,
                f"packprep: {out} exists already; choose another -o\n",
            )
        assert {path: path.read_bytes() for path in out.rglob("*.*")} == files
        shutil.rmtree(out)


def test_a_merge_of_indexes_that_was_killed_keeps_their_token_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [
        built(tmp_path, name, texts(30, seed=seed), materialize="index")
        for seed, name in enumerate("ab")
    ]
    with monkeypatch.context() as patch:
        patch.setattr(merging, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            merge(parts, tmp_path / "all")
    assert [*(tmp_path / "all.incomplete" / "tokens").rglob("*.arrow")]
    merge(parts, tmp_path / "all")
    assert verify(tmp_path / "all").sound


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
