"""Columns of an output with other names: the bytes of a build with those names, and back."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep import build
from packprep.execute.merge import merge
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.output import rename as renaming
from packprep.output.rename import rename
from packprep.schemas import STANDARD_COLUMNS, FormatError, check_files, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import Packs, packs_of, plant
from tests.helpers.tiny_shards import EXAMPLE, PLAIN, RICH, rich_row, write_output

OPTIONS: list[dict[str, Any]] = [
    {},
    {"columns": ""},
    {"stride": 8, "overflow": "split"},
    {"pad_segment_to_multiple": 8, "packs_multiple_of": 7, "remainder": "fill"},
    {"holdout": 0.3, "overflow": "split", "continuation_bos": True},
]


def built(folder: Path, name: str, **options: Any) -> Path:
    source = folder / "text.jsonl"
    if not source.exists():
        write_jsonl(source, texts(40))
    settings = {"max_length": 64, "overflow": "truncate", "window": 15_000} | options
    tokenizer = save_tokenizer(folder / "tok")
    build(config(sources=[source], output=folder / name, tokenizer=tokenizer, **settings))
    return folder / name


def content(out: Path) -> dict[str, bytes]:
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
def test_a_renamed_output_is_the_build_with_those_names_and_back_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    plain, hf = built(tmp_path, "plain", **options), built(tmp_path, "hf", names="hf", **options)
    before = content(plain)
    manifest = rename(plain, "hf")
    assert manifest.data == read_manifest(hf).data
    assert check_files(plain, manifest, "sha256") == []
    assert verify(plain).sound
    assert rename(plain, "packprep").names == "packprep"
    assert content(plain) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "plain", "text.jsonl", "tok"]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
def test_the_reader_gives_the_same_batches_under_both_names(
    options: dict[str, Any], tmp_path: Path
) -> None:
    plain, hf = built(tmp_path, "plain", **options), built(tmp_path, "hf", names="hf", **options)
    split = "train" if "holdout" in options else None
    loaders = [
        PackedLoader(PackedShards(path, split=split, verify=True), 3, columns=["document_starts"])
        if "columns" not in options
        else PackedLoader(PackedShards(path, split=split, verify=True), 3)
        for path in (plain, hf)
    ]
    pairs = list(zip(*loaders, strict=True))
    assert pairs
    for one, other in pairs:
        for name in ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None and right is None) or (left == right).all(), name


def test_rows_have_the_columns_that_trl_reads(tmp_path: Path) -> None:
    row = load_from_disk(str(built(tmp_path, "hf", names="hf")))[0]
    assert set(row) == {
        "input_ids",
        "labels",
        "position_ids",
        "seq_lengths",
        "document_ids",
        "document_starts",
    }
    starts = [sum(row["seq_lengths"][:number]) for number in range(len(row["seq_lengths"]))]
    expected = [-100 if place in starts else token for place, token in enumerate(row["input_ids"])]
    assert row["labels"] == expected
    assert [row["position_ids"][start] for start in starts] == [0] * len(starts)


def test_every_command_reads_both_names_alike(tmp_path: Path) -> None:
    plain = built(tmp_path, "plain", stride=8, overflow="split")
    shutil.copytree(plain, tmp_path / "hf")
    rename(tmp_path / "hf", "hf")
    for arguments in (
        ("verify", "{}"),
        ("verify", "{}", "--level", "full"),
        ("show", "{}", "--pack", "1"),
        ("show", "{}", "--find", "3"),
        ("show", "{}", "--rows", "--pack", "2", "--json"),
        ("stats", "{}", "--json"),
        ("report", "{}", "--json", "-o", "{}.html"),
        ("plan", "{}", "--max-length", "64"),
    ):
        printed = []
        for out in (plain, tmp_path / "hf"):
            result = run(*(word.format(out) for word in arguments))
            assert result.code == 0, result.err
            printed.append(_same(result.out, out))
        assert printed[0] == printed[1], arguments
    planned = run("plan", tmp_path / "hf", "--max-length", "64")
    assert (planned.code, "hf: 36 documents" in planned.out) == (0, True)


def _same(text: str, out: Path) -> str:
    """Output of a command without facts that differ: path, bytes, digests, speeds."""
    lines = text.replace(str(out), "OUT").splitlines()
    words = ("bytes", "sha256", "identity", "seconds", "measured")
    return "\n".join(line for line in lines if not any(word in line for word in words))


def test_merging_appending_and_cutting_keep_the_names(tmp_path: Path) -> None:
    plain, hf = built(tmp_path, "plain"), built(tmp_path, "hf", names="hf")
    both = merge([hf, hf], tmp_path / "both")
    assert (both.names, both.added) == ("hf", ("labels",))
    merge([plain, plain], tmp_path / "plain-both")
    small = merge([tmp_path / "both"], tmp_path / "small", shard_size=9_000)
    assert (small.names, len(small.shards("train")) > 1) == ("hf", True)
    with pytest.raises(ConfigError, match="differ in names: packprep and hf, which packprep ren"):
        merge([plain, hf], tmp_path / "mixed")
    expected = [pack.tokens.tolist() for pack in PackedShards(tmp_path / "plain-both")]
    for out in (tmp_path / "both", tmp_path / "small"):
        assert [pack.tokens.tolist() for pack in PackedShards(out, verify=True)] == expected
        assert verify(out).sound

    more = write_jsonl(tmp_path / "more.jsonl", texts(20, seed=1))
    append = ("build", more, "-c", hf / "build.yaml", "--append", "-q")
    refused = run(*append, "--names", "packprep")
    assert (refused.code, "names was 'hf', now 'packprep'" in refused.err) == (2, True)
    assert run(*append).code == 0
    assert (read_manifest(hf).names, verify(hf).sound) == ("hf", True)
    assert sum(source["documents"] for source in read_manifest(hf).data["sources"]) == 60
    assert rename(hf, "packprep").names == "packprep"
    assert verify(hf).sound


def test_the_same_command_after_a_rename_has_nothing_to_do(tmp_path: Path) -> None:
    plain = built(tmp_path, "plain")
    rename(plain, "hf")
    result = run("build", "-c", plain / "build.yaml")
    assert (result.code, "plain is this build already: nothing to do" in result.err) == (0, True)


def test_the_command_says_what_it_added_and_left_out(tmp_path: Path) -> None:
    out = built(tmp_path, "out", columns="document_ids")
    said = run("rename", out, "--names", "hf").err
    assert said.splitlines()[-1] == f"{out} has the names of hf now; added position_ids, labels"
    assert "has the names of hf already: nothing to do" in run("rename", out, "--names", "hf").err
    said = run("rename", out, "--names", "packprep").err
    assert said.splitlines()[-1] == (
        f"{out} has the names of packprep now; left out position_ids, labels, which only the names "
        "of hf need"
    )
    quiet = run("rename", out, "--names", "hf", "-q")
    assert (quiet.out, quiet.err) == ("", "")


def test_names_of_hf_end_with_how_to_train(tmp_path: Path) -> None:
    out = built(tmp_path, "out")
    again = ("build", "-c", out / "build.yaml", "-o", tmp_path / "hf", "--names", "hf")
    line = (
        "to train: from packprep.loaders import guard, to_hf; then SFTTrainer(guard(model)) with "
        "padding_free=True, max_length=None, or Trainer(guard(model), data_collator=to_hf) with "
        "remove_unused_columns=False; other settings may join documents, and guard stops them"
    )
    for command in (again, ("rename", out, "--names", "hf")):
        assert run(*command).out.splitlines()[-1] == line
    shutil.rmtree(tmp_path / "hf")
    for quiet in ("--quiet", "--json"):
        assert "to train:" not in run(*again, quiet).out
    assert "to train:" not in run("rename", out, "--names", "packprep").out


def test_a_rename_that_was_killed_leaves_the_old_output_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = built(tmp_path, "out", shard_size=9_000)
    copied, before = tmp_path / "copy", content(out)
    shutil.copytree(out, copied)
    rename(copied, "hf")
    for step in ("name_shards", "write_manifest", "publish"):
        with monkeypatch.context() as patched:
            patched.setattr(renaming, step, _killed)
            with pytest.raises(KeyboardInterrupt):
                rename(out, "hf")
        assert content(out) == before
    rename(out, "hf")
    assert read_manifest(out).data == read_manifest(copied).data
    assert not out.with_name("out.incomplete").exists()


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_labels_and_columns_of_any_kind_survive(tmp_path: Path) -> None:
    rows = [rich_row(0, 3, 4), rich_row(2, 1)]
    for row in rows:
        for start in row["cu_seqlens"][:-1]:
            row["labels"][start] = -100  # type: ignore[index]
    write_output(tmp_path / "rich", {"train": [rows], "validation": [rows]}, RICH, max_length=12)
    before = PackedShards(tmp_path / "rich", split="validation")
    expected = [{name: values.tolist() for name, values in p.columns.items()} for p in before]
    manifest = rename(tmp_path / "rich", "hf")
    assert manifest.added == ("position_ids",)
    packs = PackedShards(tmp_path / "rich", split="validation", verify=True)
    for pack, old in zip(packs, expected, strict=True):
        assert {name: pack.columns[name].tolist() for name in old} == old
    assert packs[0].position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_what_cannot_be_renamed_is_refused_and_stays(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    carried = [{"input_ids": "Once upon a time", "seq_lengths": 1}]
    source = write_jsonl(tmp_path / "taken.jsonl", carried)
    settings: dict[str, Any] = {"text_column": "input_ids", "carry": ("seq_lengths",)}
    tokenizer = save_tokenizer(tmp_path / "tok")
    options = {"sources": [source], "output": taken, "tokenizer": tokenizer} | settings
    with pytest.raises(ConfigError, match="carry 'seq_lengths' is a column name of names hf; ren"):
        config(**options, names="hf")
    build(config(**options))
    with pytest.raises(ConfigError, match="has a column seq_lengths of its own, a name of hf; bui"):
        rename(taken, "hf")

    columns = (*PLAIN, STANDARD_COLUMNS["pair_ids"], STANDARD_COLUMNS["pair_sides"])
    pairs = {**EXAMPLE[0], "pair_ids": [0, 0, 1], "pair_sides": [0, 1, 0]}
    write_output(tmp_path / "pairs", {"train": [[pairs]]}, columns)
    with pytest.raises(ConfigError, match="pairs has preference pairs, and trainers that read the"):
        rename(tmp_path / "pairs", "hf")

    rows = [{**EXAMPLE[0], "tokens": [1, 20, 21, 22, 23, 24, 25, 99]}]
    write_output(tmp_path / "damaged", {"train": [rows]}, PLAIN)
    before = content(tmp_path / "damaged")
    with pytest.raises(FormatError, match="pack 0 segment 0 token 7: the id is 99; expected 0 to"):
        rename(tmp_path / "damaged", "hf")
    assert content(tmp_path / "damaged") == before

    for path, sentence in (
        (tmp_path / "nothing", "nothing is not a directory; give the directory of an output"),
        (tmp_path / "tok", "manifest.json does not exist; expected the output of a finished"),
        ("s3://bucket/packed", "s3://bucket/packed is a URL, and only packprep build writes to"),
    ):
        result = run("rename", path, "--names", "hf")
        assert (result.code, sentence in result.err) == (2, True)
    (tmp_path / "link").symlink_to(taken)
    assert "link is not a directory" in run("rename", tmp_path / "link", "--names", "hf").err


def test_a_manifest_that_lists_an_added_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    out = built(tmp_path, "out", names="hf")
    manifest = read_manifest(out)
    data = json.loads(json.dumps(manifest.data)) | {"added": ["loss"]}
    with pytest.raises(FormatError, match=r"has added = \['loss'\]; expected names of its columns"):
        write_manifest(out, data, manifest.run)


def test_verify_counts_segments_that_train_their_first_token(tmp_path: Path) -> None:
    out = built(tmp_path, "out", names="hf", max_length=512)
    assert verify(out).sound
    lengths = [row["seq_lengths"] for row in packs_of(out)]
    two = next(number for number, row in enumerate(lengths) if len(row) > 1)
    places = [(0, 0), (two, 1)]

    def train_first_tokens(packs: Packs) -> None:
        for number, segment in places:
            start = sum(lengths[number][:segment])
            packs[number]["labels"][start] = packs[number]["input_ids"][start]

    plant(out, train_first_tokens)
    findings = verify(out).findings
    assert findings.counts == {"label at start": 2, "trained tokens": 1}
    assert [(f.kind, f.pack, f.segment, f.token) for f in findings][:2] == [
        ("label at start", *place, 0) for place in places
    ]
    assert str(next(iter(findings))) == (
        "data-00000-of-00001.arrow pack 0 segment 0 token 0: the first token of a segment has the "
        f"label {packs_of(out)[0]['input_ids'][0]}; expected -100"
    )
    refused = run("rename", out, "--names", "packprep")
    assert (refused.code, "expected -100" in refused.err) == (2, True)
