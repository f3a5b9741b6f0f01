"""One line in the trainer: one process builds, the others wait for it, none hangs."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datasets import DatasetDict
from tokenizers import Tokenizer

import packprep as packprep
from packprep import BuildConfig, ConfigError, InputError, in_trainer
from packprep.exports.export import export
from packprep.run.build import make
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import refused

OPTIONS: dict[str, Any] = {"ids": "ids", "tokenizer": 100, "max_length": 16}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "s.jsonl", [{"ids": [row + 2] * 5} for row in range(40)])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Outputs of all builds."""
    made = list[str]()

    def noted(job: Any, *arguments: Any) -> Any:
        made.append(job.config.output)
        return make(job, *arguments)

    monkeypatch.setattr(in_trainer, "make", noted)
    return made


def opened(source: Any, cache: Path, **options: Any) -> Any:
    return packprep.shards(source, cache_dir=cache, **OPTIONS | options)


def outputs(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name != "digests"]


def test_the_rows_are_those_of_a_build_with_the_names_of_trainers(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    rows: Any = packprep.dataset(source, cache_dir=cache, **OPTIONS)
    places: Any = {"sources": [str(source)], "output": str(tmp_path / "out"), "columns": "hf"}
    packprep.build(BuildConfig(**places, **OPTIONS))
    [folder] = outputs(cache)
    for path in (tmp_path / "out").glob("*.arrow"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert {"input_ids", "labels", "position_ids"} <= {*rows.column_names}
    assert sum(map(len, rows["input_ids"])) == 200
    held: Any = packprep.dataset(source, cache_dir=cache, holdout=0.5, **OPTIONS)
    assert isinstance(held, DatasetDict)
    split = opened(source, cache, holdout=0.5, split="validation")
    assert [len(pack["tokens"]) for pack in split] == [*map(len, held["validation"]["input_ids"])]


def test_processes_that_start_at_once_build_once(
    source: Path, cache: Path, builds: list[str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = {each.path for each in pool.map(lambda _: opened(source, cache), range(8))}
    assert len(paths) == len(builds) == len(outputs(cache)) == 1


def test_an_export_for_a_trainer_is_made_once_from_the_packs(
    source: Path, cache: Path, builds: list[str], tmp_path: Path
) -> None:
    def prepared(to: str | None) -> Path:
        return in_trainer.prepared(source, cache_dir=cache, to=to, **OPTIONS)

    with refused(ConfigError, "lama-factory", "llama-factory"):
        prepared("lama-factory")
    assert builds == []
    with ThreadPoolExecutor(8) as pool:
        [folder] = {*pool.map(prepared, ["llama-factory"] * 8)}
    packs = prepared(None)
    assert (len(builds), folder.parent) == (1, packs.parent)
    export(str(packs), "llama-factory", str(tmp_path / "same"))
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    assert {path.suffix for path in files} == {".arrow", ".json"}
    for name, path in files.items():
        assert path.read_bytes() == (tmp_path / "same" / name).read_bytes()


def test_a_second_start_reads_no_source_and_a_copy_is_known_by_its_contents(
    source: Path, cache: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(source, cache).path
    copy = source.with_name("copy.jsonl")
    copy.write_bytes(source.read_bytes())
    assert opened(copy, cache).path == first
    kept = {path: path.stat().st_mtime_ns for path in (cache / "digests").iterdir()}
    assert opened(source, cache, num_proc=1).path == first
    assert {path: path.stat().st_mtime_ns for path in (cache / "digests").iterdir()} == kept
    assert len(kept) == 2
    assert len(builds) == 1
    source.write_text(source.read_text() * 2)
    assert sum(len(pack["tokens"]) for pack in opened(source, cache)) == 400


def test_all_that_decides_the_bytes_decides_the_name(
    tmp_path: Path, cache: Path, builds: list[str]
) -> None:
    names = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for name in names:
        write_jsonl(name, [{"messages": [{"role": "user", "content": name.name}]}])
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    file = next(save_tokenizer(tmp_path / "tokenizer").parent.rglob("tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(file))
    options = {"messages": "messages", "chat_template": str(template), "train_on": "all"}
    seen = set()

    def make() -> None:
        seen.add(packprep.shards(names, tokenizer, cache_dir=cache, **options).path)

    make()
    tokenizer.enable_padding()  # a call of the trainer, which changes no id
    make()
    assert len(seen) == 1
    tokenizer.add_tokens(["more"])
    make()
    template.write_text("{{messages  }} ")
    make()
    options["max_length"] = "65"
    make()
    names.reverse()
    make()
    names[1].write_bytes(names[1].read_bytes().replace(b"a.json", b"c.json"))
    make()
    assert len(seen) == len(builds) == 6


@pytest.mark.parametrize(
    ("sources", "options", "error", "words"),
    [
        ("no.jsonl", {}, InputError, ["no.jsonl"]),
        ("-", {}, ConfigError, ["standard input"]),
        (None, {"max_length": 1}, ConfigError, ["max_length", "1"]),
        (None, {"tokenizer": object()}, InputError, ["object"]),
    ],
)
def test_a_call_that_cannot_be_built_is_refused(
    sources: Any, options: Any, error: type[Exception], words: list[str], source: Path, cache: Path
) -> None:
    with refused(error, *words):
        opened(sources or source, cache, **options)
    assert not cache.exists() or not [*cache.glob("*/manifest.json")]


def test_a_cache_that_cannot_be_written_serves_what_it_has(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused(ConfigError, f"{source}/cache", "cache_dir", "PACKPREP_CACHE"):
        opened(source, source / "cache")
    first = opened(source, cache).path
    os.utime(source)  # so its digest is not known
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert opened(source, cache).path == first


PROGRAM = """
import sys
import packprep as packprep
rows = packprep.dataset(sys.argv[1], 100, cache_dir=sys.argv[2], ids="ids", max_length=16)
print(len(rows))
"""


def test_another_process_finishes_what_a_killed_one_began(tmp_path: Path, cache: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [{"ids": [7] * 5} for _ in range(100_000)])

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", PROGRAM, str(source), str(cache)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = start()
    while not [*cache.glob("*.incomplete/job.json")]:
        assert first.poll() is None
        time.sleep(0.001)
    first.kill()
    first.communicate()
    others = [start() for _ in range(3)]
    assert len({process.communicate(timeout=90)[0] for process in others}) == 1
    assert [process.returncode for process in others] == [0, 0, 0]
    [folder] = outputs(cache)
    assert json.loads((folder / "manifest.json").read_text())
