"""Files of token ids by other tools make the packs of the same ids in JSON lines."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.schemas import Manifest
from packprep.schemas.errors import FormatError
from packprep.sources.reading import RowPlace
from packprep.sources.source import Source
from packprep.sources.token_files import layout
from packprep.support.errors import InputError
from tests.helpers.corpus import resolved, rows_in, save_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config
from tests.helpers.token_files import (
    WRITERS,
    write_datatrove,
    write_dolma,
    write_megatron,
    write_npy,
)

VOCABULARY = 50_257
DOCUMENTS = [[5, 6, 7], [], [50_256], [0, 1], [8] * 9, [], [2, 3, 4, 5]]
OURS: list[Callable[..., Path]] = [write_megatron, write_dolma, write_npy, write_datatrove]


def documents_of(count: int, seed: int = 0) -> list[list[int]]:
    """Documents of 0 to 40 ids."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 41, count)
    return [random.integers(0, VOCABULARY, size).tolist() for size in sizes]


def write_ids(path: Path, documents: list[list[int]]) -> Path:
    return write_jsonl(path, [{"ids": ids} for ids in documents])


def source_of(path: Path, **options: Any) -> tuple[Source, BuildConfig]:
    settings = config(sources=[path], vocab_size=VOCABULARY, **options)
    (source,) = resolved(settings, path.parent)
    return source, settings


def rows(source: Source, settings: BuildConfig, *place: Any) -> Any:
    """Tables of the file, as a build reads them."""
    return rows_in(source, settings, Path("scratch"), *place, vocab_size=VOCABULARY)


def ids_of(path: Path, *place: Any, **options: Any) -> list[list[int]]:
    tables = rows(*source_of(path, **options), *place)
    return [ids for table in tables for ids in table["ids"].to_pylist()]


def made(output: Path) -> list[bytes]:
    """Bytes of the shards."""
    return [path.read_bytes() for path in sorted(output.glob("data-*.arrow"))]


def packed(source: Path, output: Path, **options: Any) -> Manifest:
    small = {"vocab_size": VOCABULARY, "max_length": 8, "overflow": "split"}
    return build(config(**{"sources": [source], "output": output, **small, **options}))


@pytest.mark.parametrize("writer", WRITERS)
def test_each_writer_is_read_with_the_ids_that_it_was_given(tmp_path: Path, writer: str) -> None:
    wide = "i4" if "megatron" in writer else "u4"
    for dtype in ("u2", wide):
        assert ids_of(WRITERS[writer](tmp_path / dtype, DOCUMENTS, dtype)) == DOCUMENTS


@pytest.mark.parametrize("writer", WRITERS)
def test_a_build_has_the_bytes_of_the_same_ids_in_json_lines(tmp_path: Path, writer: str) -> None:
    packed(write_ids(tmp_path / "x.jsonl", DOCUMENTS), tmp_path / "a", input_ids_column="ids")
    manifest = packed(WRITERS[writer](tmp_path / "in", DOCUMENTS), tmp_path / "b")
    assert made(tmp_path / "b") == made(tmp_path / "a")
    (source,) = read_report(tmp_path / "b")["sources"]
    assert (source["documents"]["in"], source["documents"]["empty"]) == (7, 2)
    assert manifest.data["inputs"]["options"]["input_ids_column"] == "input_ids"
    assert verify(tmp_path / "b", level="full").sound


def test_every_type_of_whole_numbers_is_read(tmp_path: Path) -> None:
    documents = [[1, 2, 100], [], [7]]
    for dtype in ("u1", "i1", "i2", "i4", "i8", "u2"):
        assert ids_of(write_megatron(tmp_path, documents, dtype)) == documents
    in_packs = write_megatron(tmp_path, DOCUMENTS, index=[0, 3, 3, 7])
    assert ids_of(in_packs) == DOCUMENTS  # a sequence is a document
    assert ids_of(write_npy(tmp_path, DOCUMENTS, ">u4")) == DOCUMENTS  # of the other byte order


def test_megatron_files_have_several_names_and_no_token_file_needs_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_megatron(tmp_path, DOCUMENTS)
    for name in ("x.bin", "x.idx", "x", "."):
        settings = config(sources=name, vocab_size=9, input_ids_column="input_ids")
        assert [source.name for source in resolved(settings, tmp_path)] == ["x.bin"]
    for name in ("x.bin", "x.idx", "x", "y.npy", "*.ds", "s3://bucket/x.bin"):
        assert config(sources=name, vocab_size=9).input_ids_column == "input_ids"


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
    for name in (tmp_path, tmp_path / "[dftx]*"):
        found = resolved(config(sources=name, vocab_size=9, input_ids_column="input_ids"), tmp_path)
        names = [Path(source.name).name for source in found]
        assert names == ["dolma.npy", "flat.npy", "trove.ds", "x.bin"]


def test_the_digest_is_of_the_tokens_and_of_the_files_beside_them(tmp_path: Path) -> None:
    before, _ = source_of(write_megatron(tmp_path, DOCUMENTS))
    assert before.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    joined = [DOCUMENTS[0] + DOCUMENTS[2], *DOCUMENTS[3:]]  # the same .bin
    after, _ = source_of(write_megatron(tmp_path, joined))
    assert before.sha256 != after.sha256


def test_the_loss_of_datatrove_is_a_mask(tmp_path: Path) -> None:
    loss = [[0 if id_ % 2 else 1 for id_ in ids] for ids in DOCUMENTS]
    table = [{"ids": ids, "mask": mask} for ids, mask in zip(DOCUMENTS, loss, strict=True)]
    lines = write_jsonl(tmp_path / "x.jsonl", table)
    packed(lines, tmp_path / "b", input_ids_column="ids", labels_column="mask")
    written = write_datatrove(tmp_path / "in", DOCUMENTS, loss=loss)
    packed(written, tmp_path / "a", labels_column="loss_mask")
    assert made(tmp_path / "a") == made(tmp_path / "b")


@pytest.mark.parametrize(
    ("write", "missing", "left", "words"),
    [
        (write_megatron, "x.idx", "x.bin", ["x.bin has no index, so its documents are not known"]),
        (write_megatron, "x.bin", "x.idx", ["x.idx is an index without its tokens; expected "]),
        (write_npy, "x.offsets.npy", "x.npy", ["x.npy has no offsets", "x.csv.gz"]),
        (write_datatrove, "x.ds.index", "x.ds", ["x.ds.index beside it"]),
    ],
)
def test_a_missing_half_is_named(
    tmp_path: Path, write: Any, missing: str, left: str, words: list[str]
) -> None:
    write(tmp_path, DOCUMENTS)
    (tmp_path / missing).unlink()
    with refused(InputError, *words):
        ids_of(tmp_path / left)


def test_token_files_have_no_other_columns_no_text_and_no_compression(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "in", DOCUMENTS)
    (tmp_path / "x.bin.gz").write_bytes(b"x")
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    with refused(InputError, "has no column 'score'; it has input_ids"):
        packed(tmp_path / "in" / "x.ds", tmp_path / "out", carry="score")
    with refused(InputError, "x.ds holds token ids, and this build reads text"):
        build(config(sources=tmp_path / "in", output=tmp_path / "out", tokenizer=tokenizer))
    with refused(InputError, "x.bin.gz is compressed; unpack it"):
        ids_of(tmp_path / "x.bin.gz", input_ids_column="ids")


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_TOKENS", 4)
    written = write_megatron(tmp_path, DOCUMENTS)
    source, settings = source_of(written)
    tables, unwatched = rows(source, settings), rows(replace(source, files=()), settings)
    next(tables), next(unwatched)
    written.write_bytes(written.read_bytes()[:20])
    with refused(InputError, "x.bin has changed since the build began", 38):
        list(tables)
    with refused(FormatError, "x.bin ends within the", "it was cut while it was read"):
        list(unwatched)


def test_reading_may_begin_at_rows_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_TOKENS", 300)
    documents = documents_of(100)
    file = write_megatron(tmp_path, documents)
    source, _ = source_of(file)
    assert source.format.row_begins is not None
    begins, count = source.format.row_begins(source, 1_000)
    assert (count, len(begins) >= 3) == (100, True)
    for row, byte in begins:
        assert ids_of(file, RowPlace(row, byte)) == documents[row:]


@given(data=st.data())
def test_damage_is_refused_and_never_another_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = data.draw(st.sampled_from(OURS))(folder, DOCUMENTS)
    victim = folder / data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    victim.write_bytes(content)
    with contextlib.suppress(InputError, FormatError):
        for table in rows(*source_of(path)):
            for ids, problem in zip(
                *table.select(["ids", "problem"]).to_pydict().values(), strict=True
            ):
                assert all(0 <= id_ < VOCABULARY for id_ in ids)
                assert not (ids and problem)
    shutil.rmtree(folder)
