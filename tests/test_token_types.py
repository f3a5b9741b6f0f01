"""Tokens and positions as uint16: half of the bytes, and the same values everywhere."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig, build, pack_dataset
from packprep.derive.merge import merge
from packprep.exports.export import export
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import MaxTextSource, PackedLoader, PackedShards, batch_from_rows
from packprep.output.shard_writer import ShardLayout, column_bytes, iterate_batches
from packprep.packing.kernels.gather import Pointers
from packprep.schemas import Column, FormatError, check_batch, check_files, read_manifest
from packprep.support.errors import ConfigError
from packprep.windows.planner import plan_window
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, tiny_tokenizer, write_jsonl
from tests.helpers.documents import labelled_columns, make_documents, tokenizer, with_columns
from tests.helpers.export_readers import READERS, stored_packs
from tests.helpers.files import config
from tests.helpers.planted import Packs, plant
from tests.test_laws import configs

COMPACT = ("tokens", "position_ids")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"columns": ""},
    {"stride": 8, "overflow": "split"},
    {"pad_segment_to_multiple": 8, "packs_multiple_of": 7, "remainder": "fill"},
    {"holdout": 0.3, "overflow": "split", "continuation_bos": True},
    {"names": "hf"},
]
of_options = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults"
)


def built(folder: Path, token_type: str, name: str = "", **options: Any) -> Path:
    source = folder / "text.jsonl"
    if not source.exists():
        write_jsonl(source, texts(60))
    wanted = {"max_length": 64, "overflow": "truncate", "window": 15_000} | options
    out = folder / (name or token_type)
    saved = save_tokenizer(folder / "tok")
    build(config(sources=[source], output=out, tokenizer=saved, token_type=token_type, **wanted))
    return out


def both(folder: Path, **options: Any) -> tuple[Path, Path]:
    return built(folder, "int32", "wide", **options), built(folder, "uint16", "narrow", **options)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """`both`, built once for all tests, which must not change them."""
    made: dict[str, tuple[Path, Path]] = {}

    def build_once(options: dict[str, Any]) -> tuple[Path, Path]:
        key = json.dumps(options)
        if key not in made:
            made[key] = both(tmp_path_factory.mktemp("pair"), **options)
        return made[key]

    return build_once


def content(out: Path) -> dict[str, bytes]:
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def splits(out: Path) -> list[str]:
    return [*read_manifest(out).splits]


def table(
    settings_of_build: BuildConfig, documents: Any, carried: Any = ()
) -> tuple[pa.Table, ShardLayout]:
    policy = tokenizer(tokens=1 << 10)
    plan = plan_window(documents, policy, settings_of_build, seed=settings_of_build.seed)
    layout = ShardLayout.from_config(settings_of_build, policy, carried)
    batches = list(iterate_batches(plan.packs, layout))
    for batch in batches:
        limits = {"max_length": layout.max_length, "vocab_size": layout.vocab_size}
        check_batch(batch, layout.columns, **limits, where="the batch")
    return pa.Table.from_batches(batches, schema=layout.schema), layout


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
    names = data.draw(st.sampled_from(["packprep", "hf"]))
    (wide, _), (narrow, layout) = (
        table(config(**vars(options) | {"token_type": kind, "names": names}), documents, carried)
        for kind in ("int32", "uint16")
    )
    assert narrow.to_pylist() == wide.to_pylist()
    assert [column.name for column in layout.columns if column.dtype == "uint16"] == [*COMPACT]


@of_options
def test_a_build_in_uint16_is_sound_and_reads_as_the_one_in_int32(
    options: dict[str, Any], pair: Any
) -> None:
    wide, narrow = pair(options)
    manifest = read_manifest(narrow)
    types = {column.name: column.dtype for column in manifest.columns}
    assert {name for name in types if types[name] == "uint16"} == {*COMPACT} & {*types}
    assert manifest.ledger == read_manifest(wide).ledger
    assert verify(narrow).sound
    for split in splits(narrow):
        shards = [PackedShards(out, split=split, verify=True) for out in (wide, narrow)]
        assert len(shards[0]) == len(shards[1]) > 0
        for one, other in zip(*shards, strict=True):
            assert {name: other.columns[name].dtype for name in types} == types
            for name in types:
                assert one.columns[name].tolist() == other.columns[name].tolist(), name
            pieces = [[segment.tokens.tolist() for segment in p.segments()] for p in (one, other)]
            assert pieces[0] == pieces[1]
            assert one.position_ids.tolist() == other.position_ids.tolist()


@of_options
@pytest.mark.parametrize("labels", ["hf", "shifted", "none"])
def test_batches_are_the_same_bytes_and_of_int64(
    options: dict[str, Any], labels: Any, pair: Any
) -> None:
    wide, narrow = pair(options)
    split = "train" if "holdout" in options else None
    loaders = [PackedLoader(PackedShards(o, split=split), 3, labels=labels) for o in (wide, narrow)]
    pairs = list(zip(*loaders, strict=True))
    assert pairs
    for one, other in pairs:
        assert other.tokens.dtype == other.position_ids.dtype == np.int64
        for name in ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids"):
            left, right = getattr(one, name), getattr(other, name)
            if left is None or right is None:
                assert left is right
            else:
                assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())


@pytest.mark.parametrize("to", sorted(set(READERS) - {"parquet"}))
def test_every_export_but_parquet_has_the_same_bytes(to: str, pair: Any, tmp_path: Path) -> None:
    for number, options in enumerate(OPTIONS if to != "megatron" else OPTIONS[:2]):
        folder, outputs = tmp_path / str(number), pair(options)
        for out in outputs:
            export(out, str(folder / out.name), to)
        wide, narrow = (content(folder / name) for name in ("wide", "narrow"))
        assert {*wide} == {*narrow}
        for name in wide:
            if name.rpartition("/")[2] not in ("export.json", "paths.json"):
                assert wide[name] == narrow[name], name
        for split in splits(outputs[0]):
            assert READERS[to](folder / "narrow", split) == stored_packs(outputs[0], split, to)


def test_parquet_keeps_the_types_of_the_shards(pair: Any, tmp_path: Path) -> None:
    _, narrow = pair({})
    export(narrow, str(tmp_path / "out"), "parquet")
    assert READERS["parquet"](tmp_path / "out", "train") == stored_packs(narrow, "train")
    [file] = (tmp_path / "out").rglob("*.parquet")
    assert str(pa.parquet.read_schema(file).field("tokens").type.value_type) == "uint16"
    assert run("verify", tmp_path / "out").code == 0


@of_options
def test_renamed_outputs_are_builds_with_those_names_and_back_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options = {key: value for key, value in options.items() if key != "names"}
    plain = built(tmp_path, "uint16", "plain", **options)
    hf = built(tmp_path, "uint16", "hf", names="hf", **options)
    before = content(plain)
    manifest = merge([plain], plain, names="hf", overwrite=True)
    assert manifest.data == read_manifest(hf).data
    assert check_files(plain, manifest, "sha256") == []
    merge([plain], plain, names="packprep", overwrite=True)
    after = content(plain)
    shards = [name for name in before if name.endswith(".arrow")]
    assert [after[name] for name in shards] == [before[name] for name in shards]


def test_every_command_reads_both_types_alike(pair: Any) -> None:
    wide, narrow = pair({"stride": 8, "overflow": "split"})
    for arguments in (
        ("verify", "{}"),
        ("verify", "{}", "--level", "full"),
        ("show", "{}", "--pack", "1"),
        ("show", "{}", "--pack", "1", "--raw"),
        ("show", "{}", "--find", "3"),
        ("show", "{}", "--rows", "--pack", "2", "--json"),
        ("stats", "{}", "--json"),
        ("report", "{}", "--json", "-o", "{}.html"),
        ("push", "{}", "a/b", "--dry-run"),
    ):
        printed = []
        for out in (wide, narrow):
            result = run(*(word.format(out) for word in arguments))
            assert result.code == 0, result.err
            printed.append(_same(result.out, out))
        assert printed[0] == printed[1], arguments


_DIFFER = ("bytes", "kB", "sha256", "identity", "second", "measured", *COMPACT, "token_type")


def _same(text: str, out: Path) -> Any:
    """Output of a command without facts that differ: path, types, bytes, digests, speeds."""
    text = text.replace(str(out), "OUT").replace(out.name, "OUT")
    if text.startswith("{"):
        return _without(json.loads(text))
    words = (*_DIFFER, "digest")
    return [line for line in text.splitlines() if not any(word in line for word in words)]


def _without(value: Any) -> Any:
    if not isinstance(value, dict):
        return [_without(each) for each in value] if isinstance(value, list) else value
    kept = {key: each for key, each in value.items() if not any(word in key for word in _DIFFER)}
    return {key: _without(each) for key, each in kept.items()}


def test_shards_are_cut_by_their_bytes_in_either_type(pair: Any, tmp_path: Path) -> None:
    wide, narrow = pair({})
    for out in (wide, narrow):
        merge([out], tmp_path / f"{out.name}-small", shard_size=9_000)
    small = [read_manifest(tmp_path / f"{out.name}-small") for out in (wide, narrow)]
    assert len(small[0].shards("train")) > len(small[1].shards("train")) > 1
    assert {str(column.dtype) for column in small[1].columns if column.name in COMPACT} == {
        "uint16"
    }


def test_outputs_of_different_types_are_not_merged(tmp_path: Path) -> None:
    wide, narrow = both(tmp_path)
    with pytest.raises(
        ConfigError,
        match="differ in token_type: int32 and uint16; build one of them again",
    ):
        merge([wide, narrow], tmp_path / "all")
    auto = built(tmp_path, "auto")
    assert merge([narrow, auto], tmp_path / "same").num_packs == 2 * read_manifest(auto).num_packs


def test_appended_files_have_the_type_of_the_output(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_length": 64, "tokenizer": save_tokenizer(tmp_path / "tok")}
    sources = [write_jsonl(tmp_path / f"{n}.jsonl", texts(20, seed=n)) for n in range(3)]
    outputs = {kind: tmp_path / f"out-{kind}" for kind in ("int32", "uint16")}
    for kind, out in outputs.items():
        build(config(sources=sources[:1], output=out, token_type=kind, **options))
    for kind, other in (("int32", "uint16"), ("uint16", "int32")):
        out = outputs[kind]
        for number in (1, 2):  # the second time, it is a merged output
            more = options | {"sources": sources[: number + 1], "output": out, "append": True}
            before = content(out)
            with pytest.raises(
                ConfigError,
                match=f"was built with other settings \\(token_type was '{kind}', now '{other}'\\)",
            ):
                build(config(**more, token_type=other))
            assert content(out) == before
            assert build(config(**more, token_type=kind)).num_packs > 0
        assert verify(out).sound


def test_merged_outputs_of_mixed_spelling_are_appended_to_by_their_type(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_length": 64, "tokenizer": save_tokenizer(tmp_path / "tok")}
    sources = [write_jsonl(tmp_path / f"{n}.jsonl", texts(20, seed=n)) for n in range(3)]
    for kind, source in zip(("auto", "uint16"), sources, strict=False):
        build(config(sources=[source], output=tmp_path / kind, token_type=kind, **options))
    out = tmp_path / "all"
    merge([tmp_path / "auto", tmp_path / "uint16"], out)
    more = options | {"sources": sources[2:], "output": out, "append": True}
    with pytest.raises(ConfigError, match="token_type was 'uint16', now 'int32'"):
        build(config(**more))
    assert build(config(**more, token_type="auto")).num_packs > 0


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_vocabulary_that_uint16_does_not_hold_is_refused(command: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": [70_000, 1]}])
    out = ("-o", tmp_path / "out") if command == "build" else ()
    result = run(
        command,
        source,
        *("--input-ids-column", "ids", "--vocab-size", 70_001, "--token-type", "uint16", *out),
    )
    assert (result.code, result.err.strip()) == (
        2,
        "packprep: the vocabulary has 70,001 ids, and token_type uint16 holds 65,536; choose auto "
        "or int32",
    )
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


def test_bytes_are_what_a_plan_says_and_half_of_those_of_int32(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": [7] * 900}] * 40)
    given_to = (source, "--input-ids-column", "ids", "--vocab-size", 50_257, "--max-length", 1800)
    taken = {}
    for kind in ("int32", "uint16"):
        out = tmp_path / kind
        assert run("build", *given_to, "--token-type", kind, "-o", out).code == 0
        manifest = read_manifest(out)
        counts = manifest.splits["train"]
        taken[kind] = column_bytes(manifest.columns, counts.tokens, counts.segments, counts.packs)
        planned = run("plan", *given_to, "--token-type", kind, "--strategy", "best_fit", "--json")
        frames = json.loads(planned.out)["plans"][0]["bytes"] - taken[kind]  # of Arrow
        assert 0 < frames < 0.01 * taken[kind]
        assert abs(read_report(out)["bytes"] - taken[kind] - frames) <= 64
        again = run("plan", out, "--max-length", 1800, "--token-type", kind, "--json")
        assert {plan["bytes"] for plan in json.loads(again.out)["plans"]} >= {taken[kind] + frames}
    tokens = 40 * 900
    assert taken["int32"] - taken["uint16"] == 4 * tokens
    assert taken["uint16"] <= 4.1 * tokens


def test_a_plan_of_an_output_knows_its_vocabulary(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "ids.jsonl", [{"ids": [7] * 900}] * 40)
    planned = {}
    for vocabulary in (65_536, 65_537):
        out = tmp_path / str(vocabulary)
        ids = ("--input-ids-column", "ids", "--vocab-size", vocabulary)
        assert run("build", source, *ids, "--max-length", 1800, "-o", out).code == 0
        given_to = (out, "--max-length", 1800, "--strategy", "best_fit", "--token-type", "auto")
        planned[vocabulary] = json.loads(run("plan", *given_to, "--json").out)["plans"][0]["bytes"]
    assert planned[65_537] - planned[65_536] == 4 * 40 * 900


def test_records_of_maxtext_are_the_same_in_either_type(pair: Any) -> None:
    for options in OPTIONS[2:4]:
        sources = [MaxTextSource(PackedShards(out)) for out in pair(options)]
        for one, other in zip(*sources, strict=True):
            assert {name: (v.dtype, v.tolist()) for name, v in one.items()} == {
                name: (v.dtype, v.tolist()) for name, v in other.items()
            }


def test_the_default_is_int32_and_is_not_recorded(tmp_path: Path) -> None:
    given_type = built(tmp_path, "int32")
    options = read_manifest(given_type).data["inputs"]["options"]
    assert "token_type" not in options
    assert read_manifest(built(tmp_path, "uint16")).data["inputs"]["options"] == options | {
        "token_type": "uint16"
    }


def test_an_output_of_the_other_type_is_not_replaced_without_being_asked(tmp_path: Path) -> None:
    out = built(tmp_path, "int32", "out")
    with pytest.raises(ConfigError, match="token_type was 'int32', now 'uint16'"):
        built(tmp_path, "uint16", "out")
    assert built(tmp_path, "int32", "out") == out


def test_pack_dataset_makes_the_columns_of_a_build(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": texts(60)})
    options: dict[str, Any] = {"max_length": 64, "overflow": "truncate", "bos": "<s>"}
    packed = pack_dataset(rows, tiny_tokenizer(), eos="</s>", token_type="uint16", **options)
    assert packed.features["tokens"].feature.dtype == "uint16"
    assert packed.features["position_ids"].feature.dtype == "uint16"
    whole = built(tmp_path, "uint16", "whole", window=4_000_000_000)
    assert packed.to_list() == datasets.load_from_disk(str(whole)).to_list()


@pytest.mark.parametrize("kind", [None, "numpy", "torch"])
def test_rows_of_datasets_have_the_same_values_in_every_format(kind: str | None, pair: Any) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    rows = [datasets.load_from_disk(str(out)).with_format(kind) for out in pair({})]
    batches = [batch_from_rows(list(data)) for data in rows]
    for name in ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids"):
        left, right = (getattr(batch, name) for batch in batches)
        assert (left.dtype, left.tolist()) == (right.dtype, right.tolist())
    for one, other in zip(*rows, strict=True):
        assert [int(token) for token in one["tokens"]] == [int(token) for token in other["tokens"]]


def test_a_dataset_without_a_manifest_is_read_and_verified_in_uint16(tmp_path: Path) -> None:
    wide, narrow = both(tmp_path)
    packs = [pack.tokens.tolist() for pack in PackedShards(wide)]
    for name in ("manifest.json", "report.json", "build.yaml"):
        (narrow / name).unlink()
    assert [pack.tokens.tolist() for pack in PackedShards(narrow)] == packs
    assert run("verify", narrow, "--vocab-size", 320).code == 0
    assert run("verify", narrow, "--vocab-size", 3).code == 1


def _too_large(packs: Packs) -> None:
    packs[0]["tokens"][2] = 65_535


def _off_by_one(packs: Packs) -> None:
    packs[0]["position_ids"][1] += 1


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (_too_large, "the id is 65535; expected 0 to 319"),
        (_off_by_one, "position_ids has 2; expected 1"),
    ],
)
def test_verify_finds_wrong_values_in_uint16(
    edit: Callable[[Packs], None], what: str, tmp_path: Path
) -> None:
    _, narrow = both(tmp_path)
    plant(narrow, edit)
    verdict = verify(narrow)
    assert what in {finding.what for finding in verdict.findings}
    if edit is _too_large:
        with pytest.raises(FormatError, match="have the token id 65535; expected 0 to 319"):
            export(narrow, str(tmp_path / "out"), "npy")


def test_a_shard_of_another_type_than_its_manifest_is_refused(tmp_path: Path) -> None:
    wide, narrow = both(tmp_path)
    [entry] = read_manifest(narrow).shards("train")
    shutil.copy(wide / entry.path, narrow / entry.path)
    assert not verify(narrow).sound
    with pytest.raises(FormatError):
        PackedShards(narrow)
