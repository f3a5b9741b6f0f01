"""Stores that are merged into one: it is packed as all of them are, and has each source once."""

import os
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, pack, tokenize
from packprep.derive import stores
from packprep.derive.stores import merge_stores
from packprep.support.errors import ConfigError, InputError
from packprep.tokens.store_entries import ORDER, USED, StoreEntry
from tests.helpers.command import done, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import bytes_in

TEXT: dict[str, Any] = {"engine": "hf", "unit_size": 2000, "tokenizer": "tokenizer"}
PACKS: dict[str, Any] = {"max_length": 64, "window": 6000}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a tokenizer, and files a, b and c, the first two with a store each."""
    monkeypatch.chdir(tmp_path)
    save_tokenizer(tmp_path / "tokenizer")
    for seed, name in enumerate("abc"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": t} for t in texts(60, seed=seed)])
    for name in "ab":
        store_of(name, name)
    return tmp_path


def store_of(files: str, store: str, **options: Any) -> list[StoreEntry]:
    sources = tuple(f"{name}.jsonl" for name in files)
    return tokenize(BuildConfig(sources=sources, output=store, **TEXT | options))


def merged(*names: str) -> list[list[str]]:
    """Names of the sources of each entry of a merge."""
    entries = merge_stores([*map(Path, names)], Path("merged"))
    return [[source.name for source in entry.made_from.sources] for entry in entries]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_merged_store_is_packed_as_all_of_its_stores_in_their_order(
    order: tuple[str, str],
) -> None:
    of_both = pack(order, output="of-both", weights=(1, 3), **PACKS)
    done("merge", *order, "-o", "merged", "-q")
    assert pack(["merged"], output="of-merged", weights=(1, 3), **PACKS).data == of_both.data
    assert run("verify", "merged").code == 0
    store_of("abc", "merged")  # what is added comes after them
    assert pack(["merged"], output="of-all", **PACKS).run["source_paths"] == [
        f"{name}.jsonl" for name in (*order, "c")
    ]


def test_its_files_are_those_of_its_stores_linked_and_it_outlives_them(folder: Path) -> None:
    [one] = store_of("a", "a")
    before = bytes_in("a", without=USED) | bytes_in("b", without=USED)
    merged("a", "b")
    after = bytes_in("merged")
    assert {name: content for name, content in after.items() if name != ORDER} == before
    for path in one.path.iterdir():
        if path.name != USED:
            assert path.samefile(folder / "merged" / one.path.name / path.name)
    expected = pack(["a", "b"], output="of-both", **PACKS).data
    for path in (*Path("a").rglob("*"), *Path("b").rglob("*")):
        if path.is_file():
            path.unlink()
    assert pack(["merged"], output="of-merged", **PACKS).data == expected


def test_a_source_that_several_stores_have_is_in_it_once() -> None:
    store_of("ab", "both")
    said = done("merge", "a", "both", "b", "a", "-o", "merged").err
    assert "3 of 4 entries are in another store too" in said
    assert len(pack(["merged"], output="out", **PACKS).data["inputs"]["sources"]) == 2


def test_sources_in_two_entries_and_other_content_tokenizers_and_options_are_refused() -> None:
    store_of("ab", "ab")
    store_of("bc", "bc")
    with refused(ConfigError, "b.jsonl is in ab/", "bc/"):
        merged("ab", "bc")
    store_of("c", "none", eos="none")
    with refused(ConfigError, "differ", "tokenizer"):
        merged("a", "none")
    write_jsonl(Path("d.jsonl"), [{"text": t, "body": "x"} for t in texts(9)])
    store_of("d", "text")
    store_of("d", "body", text_column="body")
    with refused(ConfigError, "d.jsonl is in text/", "body/"):
        merged("text", "body")
    write_jsonl(Path("a.jsonl"), [{"text": "other"}])
    store_of("a", "changed")
    with refused(ConfigError, "a.jsonl is in a/", "other content", "without merging them"):
        merged("a", "changed")
    assert not Path("merged").exists()
    assert not Path("merged.incomplete").exists()


def test_the_same_merge_again_does_nothing_and_every_other_place_is_refused() -> None:
    merged("a", "b")
    before = bytes_in("merged")
    assert "has these entries already" in done("merge", "a", "b", "-o", "merged").err
    assert bytes_in("merged") == before
    Path("file").write_text("")
    for names, output in ((("b", "a"), "merged"), (("a", "b"), "a"), (("a", "b"), "file")):
        with refused(ConfigError, f"{output} exists already"):
            merge_stores([*map(Path, names)], Path(output))
    Path("empty").mkdir()
    assert len(merge_stores([Path("a"), Path("b")], Path("empty"))) == 2


def test_a_merge_that_stops_leaves_no_store_and_the_same_command_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linked: list[Path] = []

    def fails(source: Path, path: Path) -> None:
        os.link(source, path)
        linked.append(path)
        if len(linked) == 7:
            raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "link_file", fails)
        with pytest.raises(OSError, match="stopped"):
            merged("a", "b")
    assert len(linked) == 7
    assert not Path("merged").exists()
    assert merged("a", "b") == [["a.jsonl"], ["b.jsonl"]]
    assert not Path("merged.incomplete").exists()


def test_damage_of_an_entry_or_of_the_order_is_refused_and_found(folder: Path) -> None:
    merged("b", "a")
    order = folder / "merged" / ORDER
    right = order.read_bytes()
    order.write_bytes(right.replace(b'["', b'["0', 1))
    found = run("verify", "merged")
    assert (found.code, f"{Path('merged', ORDER)} cannot be read" in found.out) == (1, True)
    with refused(InputError, ORDER, "has changed since it was written", "delete it"):
        pack(["merged"], output="out", **PACKS)
    order.unlink()  # as the sentence says
    assert pack(["merged"], output="out", **PACKS).run["source_paths"] == ["a.jsonl", "b.jsonl"]
    [entry] = store_of("b", "b")
    tokens = entry.path / entry.files[0].name
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.unlink()  # it is a link
    tokens.write_bytes(content)
    with refused(InputError, str(tokens), "tokenize its sources again"):
        merge_stores([Path("a"), Path("b")], Path("of-damaged"))
    assert not Path("of-damaged").exists()


def test_stores_are_not_merged_with_outputs_and_have_no_options_of_shards() -> None:
    pack(["a"], output="out", **PACKS)
    for line, words in (
        ("merge a out -o merged", ("a is a token store", "out is not")),
        ("merge a b -o merged --names hf", ("--names is for outputs", "leave it out")),
        ("merge a b -o merged --shard-size 1MB", ("--shard-size is for outputs",)),
        ("merge a b -o merged --store b", ("--store is for outputs",)),
        ("merge a b -o merged --overwrite", ("--overwrite is for outputs",)),
    ):
        result = run(*line.split())
        assert result.code == 2
        assert all(each in result.err for each in words), result.err
    assert not Path("merged").exists()
