"""Files of token ids by other tools make the packs of the same ids in JSON lines."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.execute import places, window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.preview.estimate import estimate
from packprep.schemas import Manifest
from packprep.schemas.errors import FormatError
from packprep.sources.carried import RowShape
from packprep.sources.reading import RowPlace, read_rows
from packprep.sources.resolve import resolve
from packprep.sources.token_files import layout
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import disk_fails, save_tokenizer
from tests.helpers.token_files import (
    WRITERS,
    write_datatrove,
    write_dolma,
    write_megatron,
    write_npy,
)

VOCABULARY = 50_257
DOCUMENTS = [[5, 6, 7], [], [50_256], [0, 1], [8] * 9, [], [2, 3, 4, 5]]
SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "max_length": 8, "overflow": "split"}


def documents_of(count: int, seed: int = 0) -> list[list[int]]:
    """Documents of 0 to 40 ids."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 41, count)
    return [random.integers(0, VOCABULARY, size).tolist() for size in sizes]


def write_ids(path: Path, documents: list[list[int]]) -> Path:
    path.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    return path


def ids_of(path: Path, **options: Any) -> list[list[int]]:
    """The ids of each row, as a build reads them."""
    config = BuildConfig(sources=(str(path),), vocab_size=VOCABULARY, **options)
    (source,) = resolve(config, path.parent)
    tables = read_rows(source, config, path.parent, RowShape(vocab_size=VOCABULARY))
    rows: list[Any] = [ids for table in tables for ids in table["ids"].to_pylist()]
    return rows


def made(output: Path) -> list[bytes]:
    """Bytes of the shards."""
    return [path.read_bytes() for path in sorted(output.glob("data-*.arrow"))]


def packed(source: Path, output: Path, **options: Any) -> Manifest:
    return build(BuildConfig(sources=(str(source),), output=str(output), **SMALL | options))


@pytest.mark.parametrize("dtype", ["u2", "i4"])
@pytest.mark.parametrize("writer", WRITERS)
def test_each_writer_is_read_with_the_ids_that_it_was_given(
    tmp_path: Path, writer: str, dtype: str
) -> None:
    dtype = "u4" if dtype == "i4" and "megatron" not in writer else dtype
    assert ids_of(WRITERS[writer](tmp_path, DOCUMENTS, dtype)) == DOCUMENTS


@pytest.mark.parametrize("writer", WRITERS)
def test_a_build_has_the_bytes_of_the_same_ids_in_json_lines(tmp_path: Path, writer: str) -> None:
    packed(write_ids(tmp_path / "x.jsonl", DOCUMENTS), tmp_path / "a", input_ids_column="ids")
    manifest = packed(WRITERS[writer](tmp_path / "in", DOCUMENTS), tmp_path / "b")
    assert made(tmp_path / "b") == made(tmp_path / "a")
    (source,) = read_report(tmp_path / "b")["sources"]
    assert (source["documents"]["in"], source["documents"]["empty"]) == (7, 2)
    assert manifest.data["inputs"]["options"]["input_ids_column"] == "input_ids"
    assert verify(tmp_path / "b", level="full").sound


@settings(max_examples=30, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), max_size=9).filter(any)
)
def test_any_documents_come_back_from_each_format(
    documents: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    for write in (write_megatron, write_dolma, write_npy, write_datatrove):
        assert ids_of(write(folder / write.__name__, documents)) == documents
    shutil.rmtree(folder)


def test_sequences_are_documents_so_that_packs_of_a_document_index_come_apart(
    tmp_path: Path,
) -> None:
    written = write_megatron(tmp_path, DOCUMENTS, index=[0, 3, 3, 7])
    assert ids_of(written) == DOCUMENTS


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "u2"])
def test_every_type_of_whole_numbers_of_megatron_is_read(tmp_path: Path, dtype: str) -> None:
    documents = [[1, 2, 100], [], [7]]
    assert ids_of(write_megatron(tmp_path, documents, dtype)) == documents


def test_numbers_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    assert ids_of(write_npy(tmp_path, DOCUMENTS, ">u4")) == DOCUMENTS


@pytest.mark.parametrize("name", ["x.bin", "x.idx", "x", "."])
def test_megatron_files_are_named_by_either_of_them_or_by_what_they_share(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_megatron(tmp_path, DOCUMENTS)
    config = BuildConfig(sources=(name,), vocab_size=9, input_ids_column="input_ids")
    assert [source.name for source in resolve(config, tmp_path)] == ["x.bin"]


@pytest.mark.parametrize("name", ["x.bin", "x.idx", "x", "y.npy", "*.ds", "s3://bucket/x.bin"])
def test_a_build_of_token_files_needs_no_column(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_megatron(tmp_path, DOCUMENTS)
    assert BuildConfig(sources=(name,), vocab_size=9).input_ids_column == "input_ids"


def test_a_folder_has_a_source_for_each_file_of_tokens_and_none_for_those_beside_it(
    tmp_path: Path,
) -> None:
    write_megatron(tmp_path, DOCUMENTS)
    write_dolma(tmp_path, DOCUMENTS, name="dolma")
    write_npy(tmp_path, DOCUMENTS, name="flat")
    (tmp_path / "flat.label_mask.npy").write_bytes(bytes(18))
    write_datatrove(tmp_path, DOCUMENTS, name="trove", loss=DOCUMENTS[:0])
    np.save(tmp_path / "embeddings.npy", np.zeros((2, 3)))  # no token file: it has no offsets
    (tmp_path / "model.bin").write_bytes(b"weights")
    expected = ["dolma.npy", "flat.npy", "trove.ds", "x.bin"]
    for name in (tmp_path, tmp_path / "[dftx]*"):
        config = BuildConfig(sources=(str(name),), vocab_size=9, input_ids_column="input_ids")
        found = resolve(config, tmp_path)
        assert [Path(source.name).name for source in found] == expected


def test_the_digest_is_of_the_tokens_and_of_the_files_beside_them(tmp_path: Path) -> None:
    config = BuildConfig(sources=(str(write_megatron(tmp_path, DOCUMENTS)),), vocab_size=9)
    (before,) = resolve(config, tmp_path)
    assert before.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    write_megatron(tmp_path, [DOCUMENTS[0] + DOCUMENTS[2], *DOCUMENTS[3:]])  # the same .bin
    (after,) = resolve(config, tmp_path)
    assert before.sha256 != after.sha256


def test_the_loss_of_datatrove_is_a_mask(tmp_path: Path) -> None:
    loss = [[0 if id_ % 2 else 1 for id_ in ids] for ids in DOCUMENTS]
    written = write_datatrove(tmp_path / "in", DOCUMENTS, loss=loss)
    rows = [{"ids": ids, "mask": mask} for ids, mask in zip(DOCUMENTS, loss, strict=True)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed(written, tmp_path / "a", loss_mask_column="loss_mask")
    packed(tmp_path / "x.jsonl", tmp_path / "b", input_ids_column="ids", loss_mask_column="mask")
    assert made(tmp_path / "a") == made(tmp_path / "b")


def test_a_mask_is_missing_without_a_loss(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column 'loss_mask'; it has input_ids"):
        packed(
            write_datatrove(tmp_path / "in", DOCUMENTS),
            tmp_path / "a",
            loss_mask_column="loss_mask",
        )


def test_an_id_outside_of_the_vocabulary_is_an_error_with_its_place(tmp_path: Path) -> None:
    written = write_megatron(tmp_path, [[1], [1, 2, 9_000, 3]])
    with pytest.raises(
        InputError, match=r"x.bin row 1: 'input_ids' has 9000 at 2, expected 0 to 8,191"
    ):
        packed(written, tmp_path / "out", vocab_size=8192)
    written = write_megatron(tmp_path, [[1], [1, -2]], "i4")
    with pytest.raises(InputError, match=r"x.bin row 1: 'input_ids' has -2 at 1, expected 0 to"):
        packed(written, tmp_path / "out")


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    written = write_megatron(tmp_path, [[1], [1, 2, 9_000, 3], [4]])
    packed(written, tmp_path / "out", vocab_size=8192, on_error="skip")
    (source,) = read_report(tmp_path / "out")["sources"]
    assert source["documents"]["skipped"] == {"bad_ids": 1}
    tokens = [
        ids.tolist() for pack in PackedShards(tmp_path / "out") for *_, ids in pack.segments()
    ]
    assert sorted(tokens) == [[1], [4]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text_template": "{a}"}, "text_template is for text and has no meaning"),
        ({"carry": ("score",)}, "has no column 'score'; it has input_ids"),
    ],
)
def test_options_that_token_files_cannot_have_are_refused(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises((ConfigError, InputError), match=expected):
        packed(write_megatron(tmp_path, DOCUMENTS), tmp_path / "out", **options)


def test_a_folder_of_token_files_in_a_build_of_text_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "in", DOCUMENTS)
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    options: dict[str, Any] = {"sources": (str(tmp_path / "in"),), "output": str(tmp_path / "out")}
    with pytest.raises(
        InputError, match=r"x.bin holds token ids, and this build reads text; give --input-ids"
    ):
        build(BuildConfig(**options, tokenizer=tokenizer))


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("x.idx", "x.bin has no index, so its documents are not known; expected "),
        ("x.bin", "x.idx is an index without its tokens; expected "),
    ],
)
def test_a_missing_half_is_named(tmp_path: Path, missing: str, expected: str) -> None:
    write_megatron(tmp_path, DOCUMENTS)
    (tmp_path / missing).unlink()
    (left,) = tmp_path.iterdir()
    with pytest.raises(InputError, match=expected):
        ids_of(left)


def test_a_flat_file_needs_a_file_with_its_documents(tmp_path: Path) -> None:
    written = write_npy(tmp_path, DOCUMENTS)
    (tmp_path / "x.offsets.npy").unlink()
    with pytest.raises(InputError, match=r"x.npy has no offsets.*x.offsets.npy .*or .*x.csv.gz"):
        ids_of(written)


def test_an_index_of_datatrove_is_needed(tmp_path: Path) -> None:
    written = write_datatrove(tmp_path, DOCUMENTS)
    (tmp_path / "x.ds.index").unlink()
    with pytest.raises(InputError, match=r"expected .*x.ds.index beside it, which datatrove"):
        ids_of(written)


def test_a_compressed_file_of_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin.gz").write_bytes(b"x")
    with pytest.raises(InputError, match=r"x.bin.gz is compressed; unpack it, with the files"):
        ids_of(tmp_path / "x.bin.gz", input_ids_column="ids")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_TOKENS", 4)
    written = write_megatron(tmp_path, DOCUMENTS)
    config = BuildConfig(sources=(str(written),), vocab_size=VOCABULARY)
    (source,) = resolve(config, tmp_path)
    tables = read_rows(source, config, tmp_path, RowShape(vocab_size=VOCABULARY))
    unwatched = read_rows(
        replace(source, files=()), config, tmp_path, RowShape(vocab_size=VOCABULARY)
    )
    next(tables), next(unwatched)
    written.write_bytes(written.read_bytes()[:20])
    with pytest.raises(InputError, match=r"x.bin has changed since the build began \(it had 38 "):
        list(tables)
    with pytest.raises(FormatError, match=r"x.bin ends within the .* it was cut while it was read"):
        list(unwatched)


MANY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_length": 64,
    "unit_size": 5_000,
    "window": 15_000,
    "num_proc": 1,
}


@pytest.fixture
def many(tmp_path: Path) -> dict[str, Any]:
    """A build of a file of each format, of several units and windows."""
    writers: list[Callable[..., Path]] = [write_megatron, write_dolma, write_datatrove]
    sources = [
        str(write(tmp_path / write.__name__, documents_of(200, seed)))
        for seed, write in enumerate(writers)
    ]
    return MANY | {"sources": sources, "output": str(tmp_path / "out")}


@pytest.mark.parametrize(
    "options",
    [{}, {"holdout": 0.2}, {"weights": "50,30,20"}, {"limit": 300}, {"min_document_tokens": 3}],
)
def test_tasks_of_an_array_make_the_bytes_of_one_process(
    many: dict[str, Any], tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_BEGINS_EVERY", 1_000)
    monkeypatch.setattr(layout, "_TOKENS", 300)
    here = build(BuildConfig(**many | options | {"output": str(tmp_path / "here")}))
    array = many | options | {"executor": "array", "num_tasks": 2}
    for index in ("1", "0"):
        build_share(BuildConfig(**array, task_index=index))
    assert build(BuildConfig(**array, task_index="merge")).data == here.data
    assert verify(tmp_path / "out", level="full").sound


def test_reading_may_begin_at_rows_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_TOKENS", 300)
    documents = documents_of(100)
    config = BuildConfig(sources=(str(write_megatron(tmp_path, documents)),), vocab_size=VOCABULARY)
    (source,) = resolve(config, tmp_path)
    assert source.format.row_begins is not None
    begins, rows = source.format.row_begins(source, 1_000)
    assert rows == 100
    assert len(begins) >= 3
    for row, byte in begins:
        tables = read_rows(
            source, config, tmp_path, RowShape(vocab_size=VOCABULARY), RowPlace(row, byte)
        )
        assert [ids for table in tables for ids in table["ids"].to_pylist()] == documents[row:]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damage_is_a_sentence_and_never_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    writers: list[Callable[..., Path]] = [write_megatron, write_dolma, write_npy, write_datatrove]
    write = data.draw(st.sampled_from(writers))
    path = write(folder, DOCUMENTS)
    victim = folder / data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    victim.write_bytes(content)
    verdict = verify(path, vocab_size=VOCABULARY)
    try:
        read = ids_of(path)
    except (InputError, FormatError):
        assert not verdict.sound
    else:  # a row with an id outside of the vocabulary has a problem and no ids
        assert (sum(map(len, read)) == verdict.tokens) == verdict.sound
    shutil.rmtree(folder)


def test_a_build_that_was_stopped_resumes_to_the_same_bytes(
    many: dict[str, Any], tmp_path: Path
) -> None:
    here = build(BuildConfig(**many | {"output": str(tmp_path / "here")}))
    with disk_fails(window_files, "write_shard", 2):
        build(BuildConfig(**many))
    assert build(BuildConfig(**many)).data == here.data


def test_token_files_are_appended_and_mixed_with_rows_of_other_formats(
    many: dict[str, Any], tmp_path: Path
) -> None:
    more = write_ids(tmp_path / "more.jsonl", documents_of(50, 9))
    first, *_ = many["sources"]
    sources = [first, {"path": str(more), "input_ids_column": "ids"}]
    build(BuildConfig(**many | {"sources": sources}))
    before = len(PackedShards(tmp_path / "out"))
    more = write_megatron(tmp_path / "late", documents_of(60, 11))
    build(BuildConfig(**many | {"sources": [*sources, str(more)]}, append=True))
    assert len(PackedShards(tmp_path / "out")) > before
    assert verify(tmp_path / "out").sound


def test_an_estimate_counts_the_tokens_of_files_that_it_reads_to_the_end(
    many: dict[str, Any],
) -> None:
    tokens = sum(len(ids) for seed in range(3) for ids in documents_of(200, seed))
    prediction = estimate(BuildConfig(**many))["prediction"]
    assert prediction["tokens_in"] == tokens


def test_the_command_reads_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_megatron(tmp_path, DOCUMENTS)
    answer = run("build", "x", "-o", "out", "--vocab-size", "50257", "--max-length", "16")
    assert answer.code == 0
    assert "documents           7 (2 empty)" in answer.out
