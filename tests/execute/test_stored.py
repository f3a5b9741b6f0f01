"""Token stores: made by tokenize, packed by pack, whole or in parts, alone or several."""

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build, pack, tokenize
from packprep.config.verbs import PACK, TOKENIZE
from packprep.execute.pipeline import build_share, run, run_share
from packprep.execute.stored import of_pack, of_tokenize
from packprep.loaders import PackedShards
from packprep.output.staging import staging_path
from packprep.support.errors import ConfigError, InputError
from packprep.tokens import store_entries
from packprep.tokens.made_from import MadeFrom, read_made_from
from packprep.tokens.store_entries import StoreEntry
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused

TEXT: dict[str, Any] = {"engine": "hf", "unit_size": 2000}
PACKS: dict[str, Any] = {"max_length": 64, "window": 6000}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a.jsonl, b.jsonl and a tokenizer, which is the current one."""
    for seed, name in enumerate("ab"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": t} for t in texts(60, seed=seed)])
    save_tokenizer(tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tokens(*sources: str, store: str = "store", **options: Any) -> list[StoreEntry]:
    options = TEXT | {"tokenizer": "tokenizer"} | options
    return tokenize(BuildConfig(sources=sources, output=store, **options))


def documents(output: str) -> list[tuple[int, ...]]:
    """Token ids of each document, by its number."""
    pieces: dict[int, list[tuple[int, list[int]]]] = {}
    for each in PackedShards(output, split="train"):
        columns = each.columns
        cuts = columns["cu_seqlens"].tolist()
        for number, start, first, last in zip(
            columns["document_ids"].tolist(),
            columns["document_starts"].tolist(),
            cuts,
            cuts[1:],
            strict=False,
        ):
            pieces.setdefault(number, []).append((start, columns["tokens"][first:last].tolist()))
    return [
        tuple(token for _, piece in sorted(pieces[number]) for token in piece)
        for number in sorted(pieces)
    ]


def test_entries_are_packed_as_the_documents_of_one_build_whichever_came_first(
    files: Path,
) -> None:
    for store, order in (("store", "ab"), ("other", "ba")):
        for name in order:
            entries = tokens(f"{name}.jsonl", store=store)
        assert len(entries) == 2
    packed = [pack([store], output=f"of-{store}", **PACKS) for store in ("store", "other")]
    assert packed[0].data == packed[1].data
    sources = ("a.jsonl", "b.jsonl")
    built = build(BuildConfig(sources=sources, output="o", tokenizer="tokenizer", **TEXT | PACKS))
    assert documents("of-store") == documents("o")
    assert packed[0].ledger["tokens_in"] == built.ledger["tokens_in"]
    index = pack(["store"], output="index", materialize="index", **PACKS)
    assert index.data["inputs"]["sources"] == built.data["inputs"]["sources"]
    shutil.rmtree("store")  # an index of several entries has tokens of its own
    assert documents("index") == documents("o")


@pytest.mark.parametrize("order", ["0123", pytest.param("31120", marks=pytest.mark.long)])
def test_parts_in_any_order_make_the_bytes_of_one_command_and_the_last_one_signs(
    files: Path, order: str
) -> None:
    text: dict[str, Any] = {"sources": ("a.jsonl", "b.jsonl"), "tokenizer": "tokenizer", **TEXT}
    whole = build(BuildConfig(output="whole", **text, **PACKS)).data
    for number in order:
        run_share(of_tokenize(BuildConfig(output="store", part=f"{number}/4", **text)))
    assert not staging_path(Path("store")).exists()
    for number in order:
        run_share(of_pack(["store"], {"output": "out", "part": f"{number}/4", **PACKS}))
    assert pack(["store"], output="out", **PACKS).data == whole
    for number in order:
        done = build_share(BuildConfig(output="parts", part=f"{number}/4", **text, **PACKS))
    assert done["slices tokenized"] == done["slices"] > 4
    assert build(BuildConfig(output="parts", **text, **PACKS)).data == whole
    again = build_share(BuildConfig(output="parts", part="1/4", **text, **PACKS))
    assert again == {"task": 1, "tasks": 4}


def test_a_store_takes_new_sources_only_and_refuses_changed_ones(files: Path) -> None:
    [first] = tokens("a.jsonl")
    again = tokens("a.jsonl", "b.jsonl")
    assert [entry.as_dict()["sources"] for entry in again if entry.path != first.path] == [
        ["b.jsonl"]
    ]
    assert len(tokens("b.jsonl", "a.jsonl")) == 2
    tokens("a.jsonl", "b.jsonl", store="both")
    with refused(ConfigError, "a.jsonl is in", "pack one of them"):
        pack(["store", "both"], output="o", **PACKS)
    with refused(ConfigError, "another tokenizer", "choose another"):
        tokens("a.jsonl", eos="none")
    with refused(ConfigError, "unit_size was 2000, now 4000"):
        tokens("b.jsonl", unit_size=4000)
    write_jsonl(files / "a.jsonl", [{"text": "other"}])
    for name in ("a.jsonl", str(files / "a.jsonl")):
        with refused(ConfigError, f"{name} is in store already", "other content", "another output"):
            tokens(name)


def test_made_from_is_read_once_for_each_entry_and_a_tokenizer_is_in_memory_once(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens("a.jsonl")
    tokens("b.jsonl")
    read: list[Path] = []

    def reading(entry: Path) -> MadeFrom:
        read.append(entry)
        return read_made_from(entry)

    monkeypatch.setattr(store_entries, "read_made_from", reading)
    run(of_pack(["store"], {"output": "out", **PACKS}))
    assert sorted(read) == [entry.path for entry in store_entries.entries_in(Path("store"))]
    one, other = store_entries.entries_in(Path("store"))
    assert one.made_from.tokenizer is other.made_from.tokenizer


def test_sources_may_have_columns_of_their_own_and_weights(files: Path) -> None:
    write_jsonl(files / "c.jsonl", [{"body": text} for text in texts(60, seed=2)])
    tokens("a.jsonl")
    tokens("c.jsonl", text_column="body")
    mix = pack(["store"], output="mix", weights=(1, 3), max_tokens=2000, **PACKS)
    sources = ("a.jsonl", {"path": "c.jsonl", "text_column": "body"})
    options: dict[str, Any] = {"weights": (1, 3), "max_tokens": 2000, **TEXT, **PACKS}
    built = build(BuildConfig(sources=sources, output="o", tokenizer="tokenizer", **options))
    assert mix.data["inputs"] == built.data["inputs"]


def test_options_of_the_other_verb_are_refused_and_each_option_has_one() -> None:
    with refused(ConfigError, "max_length is an option of packprep pack"):
        of_tokenize(BuildConfig(sources=("a",), output="s", max_length=8))
    with refused(ConfigError, "bos is an option of packprep tokenize"):
        of_pack(["s"], {"bos": "none"})
    both = TOKENIZE & PACK
    assert both == {"executor", "max_memory", "max_tokens", "num_proc", "output", "part"}
    every = {field.name for field in fields(BuildConfig)}
    assert every - TOKENIZE - PACK == {"keep_tokens"}


def test_what_is_damaged_or_unfinished_is_refused_and_nothing_is_written(files: Path) -> None:
    [entry] = tokens("a.jsonl")
    file = sorted(entry.path.glob("unit-*.arrow"))[-1]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refused(InputError, file.name, "xxh3", f"delete store/{entry.path.name}"):
        pack(["store"], output="o", **PACKS)
    file.write_bytes(whole[:-1])
    with refused(InputError, file.name, len(whole) - 1):
        pack(["store"], output="o", **PACKS)
    file.write_bytes(whole)
    for name, advice in (("made_from.json", "run the command"), ("files.json", "unfinished")):
        (entry.path / name).rename(files / name)
        with refused(InputError, entry.path.name, advice):
            pack(["store"], output="o", **PACKS)
        (files / name).rename(entry.path / name)
    with refused(InputError, "tokenizer has no tokens", "packprep tokenize"):
        pack(["tokenizer"], output="o", **PACKS)
    assert not Path("o").exists()


def test_token_files_of_another_tool_are_packed_and_nothing_is_written_beside_them(
    files: Path,
) -> None:
    folder = files / "theirs"
    folder.mkdir()
    np.save(folder / "ids.npy", np.tile(np.array([5, 6, 7, 1], np.uint16), 50))
    np.save(folder / "ids.offsets.npy", np.arange(0, 201, 4))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    options = {"vocab_size": 320, **PACKS}
    manifest = pack([folder / "ids.npy"], output="o", **options)
    assert manifest.ledger["tokens_in"] == 200
    [source] = manifest.data["inputs"]["sources"]
    assert source["bytes"] == sum(map(len, before.values()))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
