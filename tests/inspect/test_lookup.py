"""From a pack to its rows and back, on the command line and in Python."""

import json
from pathlib import Path

import pytest

from packprep import build
from packprep.inspect.lookup import document_number, find_documents, find_pack
from packprep.inspect.policy import Sources
from packprep.schemas import FormatError, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of several shards and splits, from two sources."""
    folder = tmp_path_factory.mktemp("lookup")
    (folder / "docs").mkdir()
    write_jsonl(folder / "docs" / "a.jsonl", texts(50))
    write_jsonl(folder / "b.jsonl", texts(20, seed=1))
    tokenizer = save_tokenizer(folder / "tok")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for output, columns in (("out", "position_ids,document_ids,document_starts"), ("bare", "")):
            build(
                config(
                    sources=["docs/a.jsonl", "b.jsonl"],
                    output=output,
                    tokenizer=str(tokenizer),
                    max_length=64,
                    shard_size="10KB",
                    holdout=0.2,
                    columns=columns,
                )
            )
    return folder


@pytest.fixture
def out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder / "out"


def error_of(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.code, result.out) == (2, ""), result
    assert result.err.count("\n") == 1
    return result.err.removeprefix("packprep: ").rstrip("\n")


def test_every_pack_is_found_by_its_number_in_the_split_and_in_its_shard(out: Path) -> None:
    manifest = read_manifest(out)
    number = 0
    assert len(manifest.shards("train")) > 1
    for shard, entry in enumerate(manifest.shards("train")):
        for in_shard, stored in enumerate(packs_of(out, shard)):
            pack = find_pack(out, manifest, number)
            assert (pack.number, pack.shard, pack.split) == (number, entry.path, "train")
            assert pack.columns["tokens"].tolist() == stored["tokens"]
            assert [(s.document, s.start) for s in pack.segments] == list(
                zip(stored["document_ids"], stored["document_starts"], strict=True)
            )
            again = find_pack(out, manifest, in_shard, shard=Path(entry.path).name)
            assert again.columns["tokens"].tolist() == stored["tokens"]
            assert again.number == number
            number += 1
    assert number == manifest.splits["train"].packs


def test_every_document_is_found_with_all_its_tokens(out: Path) -> None:
    manifest = read_manifest(out)
    for document, text in enumerate([*texts(50), *texts(20, seed=1)]):
        segments = find_documents(out, manifest, [document])
        assert bool(segments) == bool(text)
        at = 0
        for segment in segments:
            assert (segment.document, segment.start) == (document, at)
            at += segment.real


def test_a_name_is_a_source_and_row_or_the_end_of_its_path_or_a_document_id(out: Path) -> None:
    sources = Sources(read_manifest(out))
    for name, number in (
        ("docs/a.jsonl:7", 7),
        ("a.jsonl:7", 7),
        ("b.jsonl:0", 50),
        ("b.jsonl:19", 69),
        ("69", 69),
    ):
        assert document_number(sources, name) == number
    for name, message in (
        ("b.jsonl:20", "b.jsonl has 20 rows, numbered from 0; there is no row 20"),
        ("70", "there is no document 70; the sources have 70 rows, numbered from 0"),
        ("b.json:1", "this output has no source b.json; did you mean 'b.jsonl'?"),
        ("b.jsonl", "'b.jsonl' is not SOURCE:ROW, for instance docs/a.jsonl:17"),
        ("jsonl:1", "this output has no source jsonl"),
    ):
        with pytest.raises(ConfigError) as error:
            document_number(sources, name)
        assert str(error.value).startswith(message)


def test_two_sources_of_one_name_ask_for_more_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "a.jsonl", ["some text"])
    build(
        config(
            sources=["x/a.jsonl", "y/a.jsonl"],
            output="out",
            tokenizer=str(save_tokenizer(tmp_path / "tok")),
        )
    )
    sources = Sources(read_manifest("out"))
    with pytest.raises(ConfigError, match=r"a\.jsonl matches 2 sources \(x/a.jsonl, y/a.jsonl\)"):
        document_number(sources, "a.jsonl:0")
    assert document_number(sources, "y/a.jsonl:0") == 1


def test_rows_of_a_pack_name_file_and_row_of_each_segment(out: Path) -> None:
    pack = find_pack(out, read_manifest(out), 1)
    rows = json.loads(run("show", "out", "--rows", "--pack", 1, "--json").out)
    assert [row["document"] for row in rows] == [segment.document for segment in pack.segments]
    for row in rows:
        first = 0 if row["source"] == "docs/a.jsonl" else 50
        assert row["document"] == first + row["row"]
    (one,) = json.loads(run("show", "out", "--rows", "--pack", 1, "--segment", 0, "--json").out)
    assert one == rows[0]
    lines = run("show", "out", "--rows", "--pack", 1).out.splitlines()
    assert lines[0].split()[:5] == ["split", "pack", "segment", "tokens", "from"]
    assert len(lines) == len(rows) + 1


def test_a_row_that_is_found_has_its_packs_and_there_it_is_again(out: Path) -> None:
    long = max(range(50), key=lambda row: len(texts(50)[row]))
    rows = json.loads(run("show", "out", "--find", f"a.jsonl:{long}", "--json").out)
    assert len(rows) > 1
    for row in rows:
        found = run(
            "show",
            "out",
            "--rows",
            "--pack",
            row["pack"],
            "--segment",
            row["segment"],
            "--split",
            row["split"],
            "--json",
        )
        assert json.loads(found.out) == [row]
        found = run(
            "show",
            "out",
            "--rows",
            "--pack",
            row["pack_in_shard"],
            "--shard",
            row["shard"],
            "--split",
            row["split"],
            "--json",
        )
        assert row in json.loads(found.out)


def test_a_row_in_no_pack_is_said_to_be_in_none(out: Path) -> None:
    empty = texts(50).index("")
    result = run("show", "out", "--find", f"docs/a.jsonl:{empty}")
    assert (result.code, result.out) == (
        0,
        f"docs/a.jsonl row {empty} is in no pack: it was empty, skipped or dropped; report.json "
        "counts which\n",
    )
    assert run("show", "out", "--find", empty, "--json").out == "[]\n"


def test_wrong_usage_of_show_is_a_sentence(out: Path) -> None:
    packs = read_manifest(out).splits["train"].packs
    assert error_of("show", "out", "--find", 1, "--doc", 1).startswith("--pack, --doc and --find")
    assert error_of("show", "out", "--rows", "--pack", packs) == (
        f"split train has no pack {packs}; it has {packs} packs, numbered from 0"
    )
    assert error_of("show", "out", "--rows", "--pack", 0, "--segment", 99).startswith("pack 0 has ")
    assert error_of("show", "out", "--rows", "--pack", 0, "--split", "test").startswith(
        "there is no split 'test'"
    )
    assert error_of("show", "out", "--rows", "--pack", 0, "--shard", "data-0.arrow").startswith(
        "split train has no shard"
    )
    assert error_of("show", "nowhere", "--rows", "--pack", 0).startswith(
        "nowhere/manifest.json does not exist"
    )
    assert error_of("show", "bare", "--find", 3).startswith(
        "the shards of bare have no document_ids"
    )


def test_a_pack_without_document_ids_is_shown_without_rows(out: Path) -> None:
    (row, *_) = json.loads(run("show", "bare", "--rows", "--pack", 0, "--json").out)
    assert (row["document"], row["source"], row["row"]) == (None, None, None)


def test_a_pack_with_wrong_boundaries_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts(20))
    output = tmp_path / "out"
    build(
        config(
            sources=[tmp_path / "a.jsonl"],
            output=str(output),
            tokenizer=str(save_tokenizer(tmp_path / "tok")),
        )
    )
    plant(output, lambda packs: packs[0]["cu_seqlens"].__setitem__(0, 1))
    with pytest.raises(
        FormatError, match=r"data-00000-of-00001.arrow pack 0: cu_seqlens are .* start at 0"
    ):
        find_pack(output, read_manifest(output), 0)
    shard = output / "data-00000-of-00001.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:100] + bytes(len(content) - 100))
    with pytest.raises(FormatError):
        find_pack(output, read_manifest(output), 0)


def test_sources_that_do_not_add_up_are_refused(out: Path, tmp_path: Path) -> None:
    manifest = read_manifest(out)
    data = json.loads(json.dumps(manifest.data))
    data["sources"][1]["first_document"] = 49
    (tmp_path / "other").mkdir()
    changed = write_manifest(tmp_path / "other", data, manifest.run)
    with pytest.raises(FormatError, match="is not the number of documents"):
        Sources(changed)
