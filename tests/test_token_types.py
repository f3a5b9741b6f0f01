"""Tokens and positions as uint16: half of the bytes, and the same values everywhere."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.exports.export import export
from packprep.inspect.verify import verify
from packprep.loaders import MaxTextSource, PackedLoader, PackedShards
from packprep.output.shard_writer import ShardLayout
from packprep.schemas import Column, FormatError, read_manifest
from packprep.schemas.index.runs import Pointers
from packprep.support.errors import ConfigError
from packprep.windows.planner import plan_window
from tests.helpers.command import run
from tests.helpers.corpus import write_jsonl
from tests.helpers.documents import labelled_columns, make_documents, tokenizer, with_columns
from tests.helpers.errors import assert_says
from tests.helpers.examples import long_but
from tests.helpers.export_readers import READERS, stored_packs
from tests.helpers.files import bytes_in, config
from tests.helpers.planted import Packs, plant
from tests.helpers.zoo import Zoo
from tests.test_laws import checked, configs

COMPACT = ("tokens", "position_ids")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"names": "hf", "pad_segment_to_multiple": 8, "stride": 8, "holdout": 0.3},
]
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def make(zoo: Zoo, tmp_path_factory: Any) -> Callable[..., Pair]:
    """Build the text of the zoo in int32 and in uint16, each in one shard, once for all tests."""

    @cache
    def pair(number: int) -> Pair:
        folder = tmp_path_factory.mktemp("pair")
        outputs = folder / "wide", folder / "narrow"
        for out, kind in zip(outputs, ("int32", "uint16"), strict=True):
            build(again(zoo, token_type=kind, output=out, **OPTIONS[number]))
        return outputs

    return pair


def again(zoo: Zoo, name: str = "text", **options: Any) -> BuildConfig:
    """The build of a member of the zoo with other options."""
    options["output"] = str(options["output"])
    return replace(zoo.config(name), **{"shard_size": "500MB", **options})


def table(options: BuildConfig, documents: Any, carried: Any = ()) -> tuple[pa.Table, ShardLayout]:
    policy = tokenizer(tokens=1 << 10)
    plan = plan_window(documents, policy, options.pack_rules(), seed=options.seed)
    layout = ShardLayout.of(options.pack_rules(), options.writing, policy, carried)
    return checked(plan.packs, layout), layout


@given(st.data(), st.booleans(), st.lists(st.integers(0, 40), max_size=12))
def test_every_column_has_the_same_values_in_either_type(
    data: st.DataObject, labels: bool, words: list[int]
) -> None:
    options = data.draw(configs(labels=labels))
    documents = make_documents(words, tokenizer())
    carried: tuple[Column, ...] = ()
    [tokens], starts = documents.tokens.memory, np.cumsum(documents.length) - documents.length
    documents = replace(documents, tokens=Pointers.into(tokens.astype(np.uint16), starts))
    if labels:
        mask = [[bool(bit % 3) for bit in range(length)] for length in documents.length.tolist()]
        documents = with_columns(documents, mask, as_mask=data.draw(st.booleans()))
        carried = labelled_columns()
    names: Any = data.draw(st.sampled_from(["packprep", "hf"]))
    (wide, _), (narrow, layout) = (
        table(replace(options, token_type=kind, names=names), documents, carried)
        for kind in ("int32", "uint16")
    )
    assert narrow.to_pylist() == wide.to_pylist()
    assert [column.name for column in layout.columns if column.dtype == "uint16"] == [*COMPACT]


BATCH = ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids")


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("labels", ["hf", "shifted", "none"])
def test_batches_are_the_same_bytes_and_of_int64(
    labels: Any, number: int, make: Callable[..., Pair]
) -> None:
    pair = make(number)
    assert read_manifest(pair[0]).ledger == read_manifest(pair[1]).ledger
    shards = [PackedShards(out, split="train") for out in pair]
    for one, other in zip(*map(MaxTextSource, shards), strict=True):
        assert {name: (v.dtype, v.tolist()) for name, v in one.items()} == {
            name: (v.dtype, v.tolist()) for name, v in other.items()
        }
    loaders = [PackedLoader(each, 3, labels=labels) for each in shards]
    pairs = list(zip(*loaders, strict=True))
    assert pairs
    for one, other in pairs:
        assert other.tokens.dtype == other.position_ids.dtype == np.int64
        for left, right in ((getattr(one, name), getattr(other, name)) for name in BATCH):
            if left is None or right is None:
                assert left is right
            else:
                assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("to", long_but({*READERS} - {"trl"}, sorted(READERS)))
def test_every_export_but_parquet_has_the_same_bytes(
    to: str, number: int, make: Callable[..., Pair], tmp_path: Path
) -> None:
    pair = make(number)
    columns = {column.name for column in read_manifest(pair[0]).columns}
    if to == "megatron" and columns & {"labels", "segment_lengths"}:
        pytest.skip("Megatron trains every token")
    for name, out in zip(("wide", "narrow"), pair, strict=True):
        export(out, str(tmp_path / name), to)
    for split in read_manifest(pair[0]).splits:
        assert READERS[to](tmp_path / "narrow", split) == stored_packs(pair[0], split, to)
    if to == "parquet":
        file = next((tmp_path / "narrow").rglob("*.parquet"))
        types = {field.name: field.type for field in pa.parquet.read_schema(file)}
        tokens = types["tokens"] if "tokens" in types else types["input_ids"]
        assert str(tokens.value_type) == "uint16"
        assert run("verify", tmp_path / "narrow").code == 0
        return
    wide, narrow = (bytes_in(tmp_path / name) for name in ("wide", "narrow"))
    own = {name for name in wide if name.rpartition("/")[2] in ("export.json", "paths.json")}
    assert {*wide} == {*narrow}
    assert {name for name in wide if wide[name] != narrow[name]} <= own


@pytest.mark.parametrize(
    ("name", "kind", "other"), [("text", "int32", "uint16"), ("uint16", "uint16", "int32")]
)
def test_an_output_is_replaced_and_appended_to_in_its_own_type_only(
    name: str, kind: str, other: str, zoo: Zoo, tmp_path: Path
) -> None:
    options = read_manifest(zoo[name]).data["inputs"]["options"]
    assert options.get("token_type", "int32") == kind  # the default is not recorded
    out = zoo.copy(name, tmp_path)
    before = bytes_in(out)
    same: dict[str, Any] = {"output": out, "shard_size": 30_000}
    more: dict[str, Any] = {
        "sources": (str(zoo.source("text")), str(zoo.sources("split")[1])),
        "append": True,
    }
    for settings in (same, same | more):
        with pytest.raises(ConfigError, match=f"token_type was '{kind}', now '{other}'"):
            build(again(zoo, token_type=other, **settings))
    assert bytes_in(out) == before
    grown = build(again(zoo, token_type=kind, **same, **more))
    assert grown.num_packs > read_manifest(zoo[name]).num_packs
    assert verify(out).sound


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_vocabulary_that_uint16_does_not_hold_is_refused(command: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": [70_000, 1]}])
    out = ("-o", tmp_path / "out") if command == "build" else ()
    ids = ("--input-ids-column", "ids", "--vocab-size", 70_001, "--token-type", "uint16")
    result = run(command, source, *ids, *out)
    assert result.code == 2
    assert_says(result.err, "the vocabulary has", 70_001, "uint16 holds", 65_536)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("vocabulary", "kind"), [(65_536, "uint16"), (65_537, "int32")])
def test_auto_is_the_smallest_type_that_holds_every_id(
    vocabulary: int, kind: str, tmp_path: Path
) -> None:
    rows = [[65_535, 0, 7], [vocabulary - 1]]
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": ids} for ids in rows])
    options = {"input_ids_column": "ids", "vocab_size": vocabulary, "order": "input"}
    out = tmp_path / "out"
    manifest = build(config(sources=[source], output=out, token_type="auto", **options))
    assert [column.dtype for column in manifest.columns if column.name in COMPACT] == [kind] * 2
    packs = PackedShards(out, verify=True)
    assert sorted(segment.tokens.tolist() for segment in packs[0].segments()) == sorted(rows)


def test_positions_of_longer_packs_stay_int32(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": [*range(10)] * 7_000}])
    options: dict[str, Any] = {"input_ids_column": "ids", "vocab_size": 10, "token_type": "uint16"}
    for max_length, kind in ((65_536, "uint16"), (70_000, "int32")):
        out = tmp_path / str(max_length)
        build(config(sources=[source], output=out, max_length=max_length, **options))
        packs = list(PackedShards(out, verify=True))
        longest = max(packs, key=lambda pack: len(pack.tokens))
        assert (str(longest.tokens.dtype), str(longest.position_ids.dtype)) == ("uint16", kind)
        assert longest.position_ids[-1] == max_length - 1


def test_verify_and_export_find_wrong_values_in_uint16(zoo: Zoo, tmp_path: Path) -> None:
    def edit(packs: Packs) -> None:
        packs[0]["tokens"][2] = 65_535
        packs[1]["position_ids"][1] += 1

    narrow = zoo.copy("uint16", tmp_path)
    plant(narrow, edit)
    found = {finding.what for finding in verify(narrow).findings}
    assert {"the id is 65535; expected 0 to 319", "position_ids has 2; expected 1"} <= found
    with pytest.raises(FormatError, match="the id is 65535; expected 0 to 319"):
        export(narrow, str(tmp_path / "out"), "npy")
    for name in ("manifest.json", "report.json", "build.yaml"):
        (narrow / name).unlink()
    assert run("verify", narrow, "--vocab-size", 320).code == 1


def test_a_shard_of_another_type_than_its_manifest_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    narrow = zoo.copy("uint16", tmp_path)
    wide, own = (read_manifest(zoo[name]).shards("train")[0] for name in ("text", "uint16"))
    shutil.copy(zoo["text"] / wide.path, narrow / own.path)
    assert not verify(narrow).sound
    with pytest.raises(FormatError):
        PackedShards(narrow, verify=True)[0]
