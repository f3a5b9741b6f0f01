"""One line in the trainer: one process builds, the others wait for the file, none hangs."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datasets import DatasetDict

import packprep
from packprep import ConfigError, InputError, StoppedError, in_trainer
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.one_line import run_one_line
from tests.helpers.tiny_shards import GOLDEN

OPTIONS: dict[str, Any] = {"input_ids_column": "ids", "vocab_size": 100, "max_length": 16}
ELSEWHERE = {"host": "other", "process": 1, "machine": "other", "doing": "tokenize: 5 documents"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT": 0.05, "STALE": 0.5, "POLL": 0.01, "SAY": 0.1}.items():
        monkeypatch.setattr(in_trainer, name, seconds)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "s.jsonl", [{"ids": [row + 2] * 5} for row in range(40)])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Outputs of all builds. A build takes a moment, and makes a folder that reads as an output."""
    made: list[str] = []

    def build(config: Any, progress: Any) -> None:
        made.append(config.output)
        progress.advance("tokenize", 1, 2, "documents")
        time.sleep(0.1)
        shutil.copytree(GOLDEN / "v1-example", config.output)

    monkeypatch.setattr(packprep, "build", build)
    return made


def opened(source: Path, cache: Path, **options: Any) -> Any:
    return packprep.shards(str(source), cache_dir=cache, **OPTIONS | options)


def at_once(number: int, call: Callable[[], Any]) -> list[Any]:
    """Results of calls in threads that begin together."""
    barrier = threading.Barrier(number)

    def run(_: int) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def left(cache: Path) -> list[str]:
    """Names in a cache that are neither outputs nor pointers."""
    return [path.name for path in cache.iterdir() if "." in path.name and path.suffix != ".json"]


def lock_of(source: Path, cache: Path, builds: list[str]) -> Path:
    """Path of the first lock of a call, whose output is deleted."""
    opened(source, cache)
    build = Path(builds.pop())
    shutil.rmtree(cache)
    cache.mkdir()
    return build.with_suffix(".lock.0")


def test_the_rows_are_those_of_a_build_with_the_names_of_trainers(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    rows: Any = packprep.dataset(source, cache_dir=cache, **OPTIONS)
    config = packprep.BuildConfig(
        sources=[source], output=str(tmp_path / "out"), names="hf", **OPTIONS
    )
    packprep.build(config)
    (folder,) = cache.glob("*/")
    for path in (tmp_path / "out").glob("*.arrow"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert {"input_ids", "labels", "position_ids", "seq_lengths"} <= {*rows.column_names}
    assert sum(map(len, rows["input_ids"])) == 200
    held: Any = packprep.dataset(source, cache_dir=cache, holdout=0.5, **OPTIONS)
    assert isinstance(held, DatasetDict)
    assert [*held] == ["train", "validation"]
    split = opened(source, cache, holdout=0.5, split="validation")
    assert [len(pack.tokens) for pack in split] == [*map(len, held["validation"]["input_ids"])]


@pytest.mark.parametrize("_time", range(3))
def test_processes_that_start_at_once_build_once(
    _time: int, source: Path, cache: Path, builds: list[str]
) -> None:
    assert len({shards.path for shards in at_once(8, lambda: opened(source, cache))}) == 1
    assert len(builds) == 1
    assert left(cache) == []


@pytest.mark.parametrize("_time", range(3))
def test_one_of_many_processes_takes_over_from_one_that_died(
    _time: int, source: Path, cache: Path, builds: list[str]
) -> None:
    lock = lock_of(source, cache, builds)
    lock.write_text(json.dumps(ELSEWHERE))
    dead = lock.with_suffix(".1")
    dead.touch()  # it took over, and died before it wrote its name
    begun = time.monotonic()
    assert len({shards.path for shards in at_once(8, lambda: opened(source, cache))}) == 1
    assert time.monotonic() - begun >= in_trainer.STALE
    assert len(builds) == 1
    assert left(cache) == []


def test_a_process_that_ended_on_this_machine_is_replaced_at_once(
    source: Path, cache: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_trainer, "STALE", 1e9)
    lock = lock_of(source, cache, builds)
    content = {}

    def build(config: Any, progress: Any) -> None:
        content.update(json.loads(lock.read_bytes()))
        raise StoppedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(packprep, "build", build)
        with refused(StoppedError, "the disk is full"):
            opened(source, cache)
    if not content["machine"]:
        pytest.skip("needs /proc")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lock.write_text(json.dumps({**content, "process": ended.pid}))
    opened(source, cache)
    assert len(builds) == 1


def test_no_process_takes_over_from_one_that_lives_elsewhere(
    source: Path, cache: Path, builds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_of(source, cache, builds)
    lock.write_text(json.dumps(ELSEWHERE))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(opened, source, cache)
        for beat in range(20):
            time.sleep(in_trainer.STALE / 5)
            # A time that was set by another clock says nothing.
            lock.write_text(json.dumps(ELSEWHERE | {"beats": beat}))
            os.utime(lock, (0, 0))
        assert not waiting.done()
        assert builds == []
        lock.unlink()
        waiting.result()
    assert len(builds) == 1
    assert "waiting for process 1 on other: tokenize: 5 documents" in capsys.readouterr().err


def test_a_lock_changes_while_its_process_builds(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[bytes] = set()

    def build(config: Any, progress: Any) -> None:
        deadline = time.monotonic() + 10
        while len(seen) < 3 and time.monotonic() < deadline:
            seen.add(Path(config.output).with_suffix(".lock.0").read_bytes())
            time.sleep(0.01)
        shutil.copytree(GOLDEN / "v1-example", config.output)

    monkeypatch.setattr(packprep, "build", build)
    opened(source, cache)
    assert len(seen) >= 3
    assert len({*map(len, seen)}) == 1


def test_other_options_are_not_blocked(source: Path, cache: Path, builds: list[str]) -> None:
    lock = lock_of(source, cache, builds)
    lock.write_text(json.dumps(ELSEWHERE))
    opened(source, cache, max_length=32)
    assert len(builds) == 1
    assert lock.exists()


def test_a_second_start_reads_no_source_and_a_copy_is_known_by_its_contents(
    source: Path, cache: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(source, cache).path
    read: list[str] = []
    real = Path.open

    def noted(path: Path, *arguments: Any, **options: Any) -> Any:
        read.append(path.name)
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", noted)
    assert opened(source, cache, num_proc=1).path == first
    assert "s.jsonl" not in read
    (source.parent / "copy").mkdir()
    copy = source.parent / "copy" / "s.jsonl"
    copy.write_bytes(source.read_bytes())
    assert opened(copy, cache).path == first
    assert "s.jsonl" in read
    assert len(builds) == 1


@pytest.mark.parametrize("change", ["source", "tokenizer", "template", "option", "order"])
def test_all_that_decides_the_bytes_decides_the_name(
    change: str, tmp_path: Path, cache: Path, builds: list[str]
) -> None:
    names = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for name in names:
        write_jsonl(name, [{"messages": [{"role": "user", "content": name.name}]}])
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    options = {"messages_column": "messages", "chat_template": template, "max_length": 64}

    def path() -> Any:
        return packprep.shards(names, tokenizer, cache_dir=cache, **options).path

    before = path()
    if change == "source":
        names[1].write_bytes(names[1].read_bytes().replace(b"b.json", b"c.json"))
    elif change == "tokenizer":
        file = next(file for file in tokenizer.parent.rglob("tokenizer.json"))
        file.write_text(file.read_text() + " ")
    elif change == "template":
        template.write_text("{{messages  }}")
    elif change == "option":
        options["max_length"] = 65
    else:
        names.reverse()
    assert path() != before
    assert len(builds) == 2


def test_a_loaded_tokenizer_counts_by_what_it_does(
    tmp_path: Path, cache: Path, builds: list[str]
) -> None:
    from tokenizers import Tokenizer

    source = write_jsonl(tmp_path / "s.jsonl", [{"text": "a"}])
    saved = save_tokenizer(tmp_path / "tokenizer")
    file = str(next(saved.parent.rglob("tokenizer.json")))
    for change in (lambda one: None, lambda one: one.enable_padding(), lambda one: None):
        tokenizer = Tokenizer.from_file(file)
        change(tokenizer)
        packprep.shards(source, tokenizer, cache_dir=cache)
    assert len(builds) == 1
    tokenizer.add_tokens(["more"])
    packprep.shards(source, tokenizer, cache_dir=cache)
    assert len(builds) == 2


def test_a_source_that_changes_while_it_is_built_is_refused_and_leaves_no_output(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(config: Any, progress: Any) -> None:
        shutil.copytree(GOLDEN / "v1-example", config.output)
        source.write_text(source.read_text() * 2)

    with monkeypatch.context() as patch:
        patch.setattr(packprep, "build", build)
        with refused(InputError, str(source), "changed"):
            opened(source, cache)
    assert [*cache.iterdir()] == []
    assert sum(len(pack.tokens) for pack in opened(source, cache)) == 400


def test_what_a_killed_build_left_of_other_contents_is_built_again(
    source: Path, cache: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_of(source, cache, builds)
    monkeypatch.undo()
    output = str(lock.with_suffix("").with_suffix(".build"))
    packprep.build(packprep.BuildConfig(sources=[source], output=output, **OPTIONS))
    source.write_text(source.read_text().replace("2", "3"))
    assert opened(source, cache)[0].tokens.min() >= 3


@pytest.mark.parametrize(
    ("sources", "tokenizer", "options", "words"),
    [
        ("no.jsonl", None, {}, ["no.jsonl", "hub:ORG/SET@REVISION"]),
        ("hub:org/set", None, {}, ["hub:org/set", "@REVISION"]),
        ("s3://bucket/a.jsonl", None, {}, ["s3://bucket/a.jsonl", "packprep build"]),
        (None, "org/model", {}, ["org/model", "NAME@REVISION"]),
        (None, object(), {}, ["object", "fast tokenizer"]),
        (None, None, {"max_length": 1}, ["max_length", "1"]),
    ],
)
def test_a_call_that_cannot_be_kept_is_refused(
    sources: str | None, tokenizer: Any, options: Any, words: list[str], source: Path, cache: Path
) -> None:
    with refused(ConfigError, *words):
        packprep.shards(sources or source, tokenizer, cache_dir=cache, **OPTIONS | options)
    assert not cache.exists()


def test_a_cache_that_cannot_be_made_is_refused(source: Path) -> None:
    with refused(ConfigError, f"{source}/cache", "cache_dir", "PACKPREP_CACHE"):
        opened(source, source / "cache")


def test_a_list_of_a_cache_says_what_is_there_and_how_to_delete_it(
    source: Path, cache: Path, builds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    opened(source, cache)
    assert "rm -r" in capsys.readouterr().err
    (cache / "abc.build").mkdir()
    command = [sys.executable, "-m", "packprep.in_trainer", str(cache)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 folders" in out
    assert str(source) in out
    assert "unfinished" in out


PROGRAM = """
import sys, packprep
from packprep import in_trainer
in_trainer.BEAT, in_trainer.STALE = 0.5, 5.0
rows = packprep.dataset(sys.argv[1], cache_dir=sys.argv[2], input_ids_column="ids",
                        vocab_size=100, max_length=16)
print(len(rows))
"""
MOUNTED = """
set -e
mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"
"$0" -c "$PROGRAM" "$1" "$2"
! "$0" -c "$PROGRAM" "$3" "$2" 2>&1 | grep ConfigError
mkdir -p "$4"
for size in 4k 8k 16k; do
  mount -t tmpfs -o size=$size tmpfs "$4"
  ! "$0" -c "$PROGRAM" "$1" "$4" 2>&1 | grep errors.StoppedError
done
"""


@pytest.mark.long
def test_a_cache_that_may_only_be_read_serves_what_it_has_and_a_full_one_says_so(
    source: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_jsonl(tmp_path / "other.jsonl", [{"ids": [5] * 5}])
    packprep.dataset(source, cache_dir=cache, **OPTIONS)
    os.utime(source)  # so it is known by its contents only
    command = ["unshare", "-Urm", "bash", "-c", MOUNTED, sys.executable]
    ran = subprocess.run(
        [*command, *map(str, (source, cache, other, tmp_path / "full"))],
        env=os.environ | {"PROGRAM": PROGRAM},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in ran.stderr or "permission denied" in ran.stderr:
        pytest.skip("this user may not mount")
    assert len(ran.stdout.splitlines()) >= 1, ran.stderr
    assert "ConfigError: the cache" in ran.stdout
    assert ran.stdout.count("StoppedError") == 3, ran.stdout
    assert ran.stdout.count("rm -r") == 3


@pytest.mark.long
def test_another_process_finishes_what_a_killed_one_began(source: Path, cache: Path) -> None:
    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", PROGRAM, str(source), str(cache)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = start()
    while not (cache.exists() and [*cache.glob("*.lock.0")]):
        assert first.poll() is None
        time.sleep(0.001)
    first.kill()
    first.communicate()
    others = [start() for _ in range(3)]
    assert len({process.communicate(timeout=60)[0] for process in others}) == 1
    assert [process.returncode for process in others] == [0, 0, 0]
    assert left(cache) == []


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["axolotl", "llamafactory", "torchtitan"])
def test_the_script_of_a_page_trains(trainer: str) -> None:
    """Those of transformers and TRL run with their pages."""
    if importlib.util.find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed; scripts/check_trainers runs this too")
    run_one_line(trainer)
