"""Forms of an output: the bytes of a build with them, the same packs to every reader, and back."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import build
from packprep.derive import signing
from packprep.derive.merge import merge
from packprep.inspect.histograms import measure_output
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.output.directory import LocalTarget
from packprep.schemas import FormatError, Manifest, check_files, read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import done, run
from tests.helpers.corpus import disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.examples import long_but
from tests.helpers.files import bytes_in, config
from tests.helpers.planted import Packs, packs_of, plant
from tests.helpers.tiny_shards import EXAMPLE, PLAIN, write_output
from tests.helpers.zoo import Zoo

FILLED = {"pad_segment_to_multiple": 8, "packs_multiple_of": "7:fill"}
FIELDS = (
    *("tokens", "position_ids", "cu_seqlens", "labels", "document_ids", "loss_weights"),
    *("segment_parents", "previous", "label_weights"),
)


def built(zoo: Zoo, name: str, output: Path, **options: Any) -> Manifest:
    """Build what a member of the zoo is, with other options."""
    return build(replace(zoo.config(name), output=str(output), **options))


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


INDEXED: list[Any] = [
    *((name, {}) for name in ("text", "split", "pairs", "trees", "hf_names")),
    ("text", {**FILLED, "names": "hf", "columns": ()}),
    *(
        pytest.param(name, options, marks=pytest.mark.long)
        for name, options in (
            *((name, {}) for name in ("chats", "turns", "mix", "epochs", "uint16")),
            ("chats", {"overflow": "truncate:balanced", "max_length": 16}),
            ("trees", {"epochs": 2, "stride": 6}),
        )
    ),
]
"""Each option by itself: tests/execute/test_options_as_index.py."""


@pytest.mark.parametrize(("name", "options"), INDEXED)
def test_an_index_reads_and_materializes_as_the_build_without_one(
    name: str, options: dict[str, Any], zoo: Zoo, tmp_path: Path
) -> None:
    index, plain = tmp_path / "index", zoo[name]
    built(zoo, name, index, **options, materialize="index")
    if options:
        plain = tmp_path / "plain"
        built(zoo, name, plain, **options, materialize="shards")
    expected = read_manifest(plain)
    made = merge([index], tmp_path / "made", materialize="shards")
    assert made.data == expected.data  # with the digests of all shards
    assert check_files(tmp_path / "made", made, "sha256") == []
    verdict = verify(index, level="fast")
    assert verdict.sound, [str(finding) for finding in verdict.findings]
    for split in expected.splits:
        for epoch in range(expected.epochs):
            one, other = (PackedShards(out, split=split, epoch=epoch) for out in (index, plain))
            equal_packs(one, other)
            equal_batches(one, other)
    measured, expected_measure = measure_output(index), measure_output(plain)
    for field in ("documents", "segments", "documents_per_pack", "fill", "cost"):
        counts, same = getattr(measured, field), getattr(expected_measure, field)
        assert counts.values.tolist() == same.values.tolist()
        assert counts.counts.tolist() == same.counts.tolist()


@pytest.mark.parametrize(
    ("name", "options"),
    [("text", {}), ("split", {"continuation_bos": True}), ("text", {**FILLED, "columns": ()})],
)
def test_a_renamed_output_is_the_build_with_those_names_and_back_again(
    name: str, options: dict[str, Any], zoo: Zoo, tmp_path: Path
) -> None:
    plain, hf = tmp_path / "plain", tmp_path / "hf"
    options = options | {"shard_size": 1 << 30}  # else more columns make smaller shards
    built(zoo, name, plain, **options)
    expected = built(zoo, name, hf, **options, names="hf")
    made = merge([plain], tmp_path / "made", names="hf")
    assert made.data == expected.data
    assert check_files(tmp_path / "made", made, "sha256") == []
    assert verify(tmp_path / "made").sound
    merge([tmp_path / "made"], tmp_path / "back", names="packprep")
    assert bytes_in(tmp_path / "back") == bytes_in(plain)
    for split in expected.splits:
        one, other = (PackedShards(out, split=split, verify=True) for out in (plain, hf))
        for batch, same in zip(PackedLoader(one, 3), PackedLoader(other, 3), strict=True):
            assert np.array_equal(batch.tokens, same.tokens)
            assert np.array_equal(batch.cu_seqlens, same.cu_seqlens)
            assert np.array_equal(batch.labels, same.labels)


@pytest.mark.parametrize("pair", long_but(["index"], ["names", "index"]))
def test_every_command_reads_both_forms_alike(pair: str, zoo: Zoo, tmp_path: Path) -> None:
    plain, other = zoo["split"], tmp_path / "hf"  # which has labels under both names
    if pair == "index":
        plain, other = tmp_path / "plain", zoo["index"]
        merge([other], plain, materialize="shards")
    else:
        merge([plain], other, names="hf")
    for line in (
        "verify OUT --level full --sample 20",
        "show OUT --pack 1",
        "show OUT --doc 9",
        "show OUT --pack 3 --rows --json",
        "show OUT --find 7",
        "stats OUT --json",
        f"report OUT --json -o {tmp_path}/page.html",
        "plan OUT --max-length 64",
        f"export OUT --to parquet -o {tmp_path}/OUT.parquet -q",
        f"export OUT --to npy -o {tmp_path}/OUT.npy -q",
    ):
        printed = []
        for number, out in enumerate((plain, other)):
            words = [word.replace("/OUT.", f"/{number}.") for word in line.split()]
            result = done(*(str(out) if word == "OUT" else word for word in words))
            printed.append(_same(result.out, out))
        assert printed[0] == printed[1], line
    for form in ("parquet", "npy") if pair == "index" else ("npy",):  # columns in other order
        one, same = (bytes_in(tmp_path / f"{number}.{form}") for number in range(2))
        assert {**one, "export.json": b""} == {**same, "export.json": b""}


def _same(text: str, out: Path) -> str:
    """Output of a command without facts that differ: path, bytes, digests, speeds."""
    lines = text.replace(str(out), "OUT").splitlines()
    words = ("bytes", "sha256", "identity", "seconds", "measured", "tokens/s", ": ")
    kept = [line for line in lines if not any(word in line for word in words)]
    return "\n".join(" ".join(re.sub(r" \d+\.\d( |$)", " ", line).split()) for line in kept)


def test_an_index_without_tokens_in_its_shards_is_refused_with_what_to_do(
    zoo: Zoo, tmp_path: Path
) -> None:
    index, new = zoo["index"], tmp_path / "new"
    pushed = run("push", index, "a/b", "--dry-run")
    assert (pushed.code, "--materialize shards, then give DIR" in pushed.err) == (2, True)
    for refused in ({"names": "hf"}, {"shard_size": 1_000_000}):
        with pytest.raises(ConfigError, match=r"is an index, .*; add materialize shards"):
            merge([index], new, **refused)
    with pytest.raises(ConfigError, match=r"tokens in shards.*; build it with materialize index"):
        merge([zoo["text"]], new, materialize="index")
    assert merge([index], new, materialize="index").data == read_manifest(index).data
    assert verify(new).sound


def test_other_names_in_place_replace_the_output_in_one_step(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = zoo.copy("text", tmp_path)
    before = bytes_in(out)
    expected = merge([out], tmp_path / "other", names="hf").data
    steps: list[tuple[Any, str]] = [(signing, "name_shards"), (signing, "write_manifest")]
    for module, step in [*steps, (LocalTarget, "publish")]:
        with disk_fails(module, step):
            merge([out], out, names="hf", overwrite=True)
        assert bytes_in(out) == before
    line = ("merge", out, "-o", out, "--overwrite", "--names")
    added = run(*line, "hf")
    assert f"{out} has the names of hf; added labels\n" in added.err
    assert added.out.splitlines()[-1].startswith("to train: from packprep.loaders import guard,")
    assert read_manifest(out).data == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "text"]
    assert "has these packs already: nothing to do" in run(*line, "hf").err
    again = run("build", "-c", out / "build.yaml", "-o", out)
    assert (again.code, "is this build already: nothing to do" in again.err) == (0, True)
    left_out = run(*line, "packprep").err
    assert "the names of packprep; left out labels, which only the names of hf need\n" in left_out
    assert bytes_in(out) == before


def test_an_output_with_other_names_grows(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(40))
    options = {"tokenizer": save_tokenizer(tmp_path / "tok"), "max_length": 64}
    out = tmp_path / "out"
    build(config(sources=[source], output=out, **options))
    merge([out], out, names="hf", overwrite=True)
    more = write_jsonl(tmp_path / "more.jsonl", texts(20, seed=1))
    append = ("build", more, "-c", out / "build.yaml", "--append", "-q")
    refused = run(*append, "--names", "packprep")
    assert (refused.code, "names was 'hf', now 'packprep'" in refused.err) == (2, True)
    assert run(*append).code == 0
    assert (read_manifest(out).names, verify(out).sound) == ("hf", True)
    assert sum(source["documents"] for source in read_manifest(out).data["sources"]) == 60
    merge([out], out, names="packprep", overwrite=True)
    assert verify(out).sound


def test_what_cannot_have_other_names_is_refused_and_stays(zoo: Zoo, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    carried = [{"input_ids": "Once upon a time", "seq_lengths": 1}]
    options: dict[str, Any] = {
        "sources": [write_jsonl(tmp_path / "taken.jsonl", carried)],
        "tokenizer": save_tokenizer(tmp_path / "tok"),
        "output": taken,
        "text_column": "input_ids",
        "carry": ("seq_lengths",),
    }
    build(config(**options))
    for output, words in (
        (taken, "has a column seq_lengths of its own, a name of hf; build it"),
        (zoo["trees"], "has trees, and trainers that read"),
        (zoo["pairs"], "has preference pairs, and trainers that read the names"),
    ):
        with pytest.raises(ConfigError, match=words):
            merge([output], tmp_path / "out", names="hf")
    rows = [{**EXAMPLE[0], "tokens": [1, 20, 21, 22, 23, 24, 25, 99]}]
    write_output(tmp_path / "damaged", {"train": [rows]}, PLAIN)
    before = bytes_in(tmp_path / "damaged")
    with pytest.raises(FormatError, match="pack 0 segment 0 token 7: the id is 99; expected 0 to"):
        merge([tmp_path / "damaged"], tmp_path / "damaged", names="hf", overwrite=True)
    assert bytes_in(tmp_path / "damaged") == before
    (tmp_path / "link").symlink_to(taken)
    with pytest.raises(ConfigError, match="link is not a directory"):
        merge([taken], tmp_path / "link", names="hf", overwrite=True)


def test_verify_counts_segments_that_train_their_first_token(zoo: Zoo, tmp_path: Path) -> None:
    out = zoo.copy("hf_names", tmp_path)
    lengths = [row["seq_lengths"] for row in packs_of(out)]
    two = next(number for number, row in enumerate(lengths) if number and len(row) > 1)
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
    with pytest.raises(FormatError, match="expected -100"):
        merge([out], tmp_path / "back", names="packprep")


@pytest.mark.parametrize("kept", [False, True])
def test_verify_names_a_flipped_bit_in_the_index_and_in_the_store(
    kept: bool, zoo: Zoo, tmp_path: Path
) -> None:
    index, folder = tmp_path / "index", tmp_path / "index" / "tokens"
    if kept:
        folder = tmp_path / "store"
        built(zoo, "index", index, keep_tokens=str(folder))
    else:
        zoo.copy("index", tmp_path)
    manifest = read_manifest(index)
    for path in (
        folder / manifest.index_table.files[0].path,
        index / manifest.shards("train")[0].path,
    ):
        right = path.read_bytes()
        flipped = bytearray(right)
        flipped[len(right) // 2] ^= 1
        path.write_bytes(flipped)
        names = {finding.file for finding in verify(index).findings}
        assert any(name.endswith(path.name) for name in names)
        with pytest.raises(FormatError):
            PackedShards(index, split="train", verify=True)
        path.write_bytes(right)
    assert verify(index).sound
