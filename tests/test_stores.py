"""Sources, token stores and outputs at URLs: the bytes of folders, whatever fails and wherever."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from packprep import BuildConfig, build, pack, tokenize
from packprep.loaders import PackedLoader, PackedShards
from packprep.look.verify import verify
from packprep.run.parts import pack_part
from packprep.schemas.files import FormatError
from packprep.schemas.manifest import open_output
from packprep.schemas.remote import keep_within
from packprep.support.errors import ConfigError
from tests.conftest import Command
from tests.helpers.corpus import texts, write_jsonl
from tests.helpers.store_servers import StoreServer, Tap

SMALL: dict[str, Any] = {"max_length": 64, "window": "8KB", "shard_size": "10KB"}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"sources": "a.jsonl", "tokenizer": "in/tiny", "holdout": 0.2},
    "chats": {"sources": "in/openai.jsonl", "tokenizer": "in/chat", "messages": "messages"},
    "mix": {"sources": ["a.jsonl", "in/b.jsonl"], "tokenizer": "in/tiny", "weights": ["1", "3"]},
}
"""Builds of several windows and shards, or of chats. Their sources are files, which are sent."""


each_write = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
"""Numbers of writes, from 1 in this step."""


class KilledError(BaseException):
    """Ends a build as a signal would, as far as a process can do that to itself."""


class Memory:
    """The objects of a store in memory, and what writes to them.

    at: number of the write at which `strike` is called, before or after it is done.
    """

    WRITES = ("pipe_file", "put_file", "cp_file", "rm_file")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writes, self.at, self.after = list[str](), -1, False
        self.strike: Callable[[], None] = self.kill
        self.files = fsspec.filesystem("memory")
        self.files.store.clear()
        self.files.pseudo_dirs[:] = [""]
        for name in self.WRITES:
            patch.setattr(MemoryFileSystem, name, self._counted(getattr(MemoryFileSystem, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(files: Any, *values: Any, **options: Any) -> Any:
            place = values[real.__name__ in ("put_file", "cp_file")]
            self.writes.append(f"{real.__name__} {place}")
            now = len(self.writes) == self.at
            if now and not self.after:
                self.strike()
            try:
                return real(files, *values, **options)
            finally:
                if now and self.after:
                    self.strike()

        return call

    @staticmethod
    def kill() -> None:
        raise KilledError

    def arm(self, at: int, *, after: bool = False) -> None:
        self.writes, self.at, self.after = [], at, after

    def names(self, folder: str = "/b") -> list[str]:
        return sorted(name for name in self.files.store if name.startswith(folder))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record_inputs: Path) -> Memory:
    """An empty store; the working directory has the sources, and the cache is empty."""
    (tmp_path / "in").symlink_to(record_inputs)
    write_jsonl(tmp_path / "a.jsonl", texts(60, seed=1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Memory(monkeypatch)


@contextmanager
def machine(folder: Path) -> Iterator[None]:
    """Another working directory and another cache."""
    before, cache = Path.cwd(), os.environ["XDG_CACHE_HOME"]
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        yield
    finally:
        os.chdir(before)
        os.environ["XDG_CACHE_HOME"] = cache


def options_of(kind: str, sources: str = "") -> dict[str, Any]:
    """Options of a build. sources: folder or URL of the copies of its files; or the files."""
    options = SMALL | KINDS[kind]
    named = options["sources"]
    named = [str(Path(name).absolute()) for name in ([named] if isinstance(named, str) else named)]
    if sources:
        named = [sent(Path(name), f"{sources}/{Path(name).name}") for name in named]
    tokenizer = str(Path(options["tokenizer"]).absolute())
    return options | {"sources": [*named], "tokenizer": tokenizer}


def sent(path: Path, url: str) -> str:
    """Copy a file to a URL, which is returned."""
    client(url).put_file(str(path), url)
    return url


def client(url: str) -> Any:
    """fsspec's file system of a URL."""
    return fsspec.filesystem(url.partition("://")[0])


def digests(place: str) -> dict[str, str]:
    """Digests of the files of an output that its inputs decide."""
    return {file["path"]: file["sha256"] for file in open_output(place).manifest.data["files"]}


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.long)])
def base(request: pytest.FixtureRequest, memory: Memory) -> str:
    """URL of an empty folder: in memory, and of a server."""
    return "memory://b" if request.param == "memory" else request.getfixturevalue("bucket")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_at_urls_has_the_bytes_of_folders(kind: str, base: str, tmp_path: Path) -> None:
    build(BuildConfig(output="local", **options_of(kind)))
    remote = options_of(kind, f"{base}/in")
    out = build(BuildConfig(output=f"{base}/out", store=f"{base}/store", **remote))
    assert out.manifest.identity == open_output("local").manifest.identity
    assert digests(f"{base}/out") == digests("local")
    assert verify(f"{base}/out") == []
    packs = {key: SMALL[key] for key in SMALL} | {
        key: value for key, value in KINDS[kind].items() if key in ("holdout", "weights")
    }
    pack(BuildConfig(sources=[f"{base}/store"], output=f"{base}/again", **packs))
    assert digests(f"{base}/again") == digests("local")
    left = {path.name for path in tmp_path.iterdir()} - {"in", "a.jsonl", "cache", "local"}
    assert not left
    for split in out.manifest.splits:
        here, there = (PackedShards(p, split=split) for p in ("local", f"{base}/out"))
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("source", ["*.jsonl", "**/*.jsonl", "", "x.parquet", "tokens.npy"])
def test_urls_mean_the_files_that_names_mean(source: str, base: str, tmp_path: Path) -> None:
    import datasets

    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    for number, name in enumerate(("one.jsonl", "two.jsonl", "deep/three.jsonl")):
        write_jsonl(data / name, texts(5, seed=number))
    (data / "notes.md").write_text("no source")
    datasets.Dataset.from_dict({"text": texts(5, seed=9)}).to_parquet(str(data / "x.parquet"))
    options: dict[str, Any] = {"max_length": 64, "tokenizer": "in/tiny"}
    if source.endswith(".npy"):
        np.save(data / "tokens.npy", np.arange(200, dtype=np.uint16))
        np.save(data / "tokens.offsets.npy", np.array([0, 50, 200]))
        options["ids"] = "input_ids"
    for path in data.rglob("*.*"):
        sent(path, f"{base}/{path.relative_to(tmp_path)}")
    made = [
        build(BuildConfig(sources=[f"{place}/{source}".rstrip("/")], output=out, **options))
        for place, out in (("data", "local"), (f"{base}/data", "remote"))
    ]
    assert made[0].manifest.identity == made[1].manifest.identity
    assert digests("local") == digests("remote")


@each_write
def test_a_build_killed_at_any_write_resumes_on_another_machine(
    step: int, memory: Memory, tmp_path: Path
) -> None:
    options = options_of("text", "memory://b/in")
    with machine(tmp_path / "first"):
        memory.arm(-1)
        build(BuildConfig(output="memory://b/out", store="memory://b/store", **options))
    expected, writes = digests("memory://b/out"), len(memory.writes)
    assert writes > 30
    for at in range(1, writes + 1, step):
        memory.files.rm("/b/out", recursive=True)
        memory.files.rm("/b/store", recursive=True)
        config = BuildConfig(output="memory://b/out", store="memory://b/store", **options)
        memory.arm(at, after=at % 2 == 0)
        with machine(tmp_path / "first"), pytest.raises(KilledError):
            build(config)
        packed = {Path(name).stem for name in memory.names() if "/receipts/" in name}
        stored = {name for name in memory.names("/b/store") if name.endswith(".json")}
        if "/b/out/manifest.json" not in memory.names():
            with pytest.raises(FormatError, match="is not there"):
                open_output(config.output)
        memory.arm(-1)
        with machine(tmp_path / ("first" if at % 3 else "other")):
            build(config)
        assert digests(config.output) == expected
        assert verify(config.output) == []
        new = [name.removeprefix("put_file ") for name in memory.writes if "put_file " in name]
        assert not packed & {Path(name).stem.rpartition("-")[0] for name in new}
        assert not stored & {*new}
        assert not [name for name in memory.names() if ".incomplete" in name]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["cache"]


def test_parts_on_two_machines_make_an_output_at_a_url(memory: Memory, tmp_path: Path) -> None:
    options = options_of("mix", "memory://b/in")
    build(BuildConfig(output="local", **options))
    weights = options.pop("weights")
    packs = {"output": "memory://b/out", "weights": weights, **SMALL}
    for part in ("1/2", "0/2", "1/2"):
        with machine(tmp_path / part[0]):
            tokenize(BuildConfig(store="memory://b/store", part=part, **options))
    made = []
    for part in ("0/2", "1/2", "0/2"):
        with machine(tmp_path / part[0]):
            config = BuildConfig(sources=["memory://b/store"], part=part, **packs)
            made.append(pack_part(config) is not None)
    assert made == [False, True, True]
    assert digests("memory://b/out") == digests("local")
    assert verify("memory://b/out") == []
    assert not [name for name in memory.names() if ".incomplete" in name]


@each_write
def test_the_second_of_two_builds_finds_the_manifest(
    step: int, memory: Memory, tmp_path: Path
) -> None:
    options = options_of("text")
    config = BuildConfig(output="memory://b/out", num_proc=1, **options)
    memory.strike = lambda: _in(tmp_path / "other", lambda: build(config))
    build(replace(config, output="memory://b/first"))
    for at in range(
        1, len(memory.writes) + 1, step
    ):  # another build is done within each write of one
        if memory.names("/b/out"):
            memory.files.rm("/b/out", recursive=True)
        memory.arm(at, after=at % 2 == 0)
        try:
            build(config)
        except ConfigError as error:
            assert "of another making" in str(error)
        assert digests(config.output) == digests("memory://b/first")
        assert verify(config.output) == []
        assert not [name for name in memory.names() if ".incomplete" in name]
    other = replace(config, seed=7)
    for overwrite in (False, True):
        with pytest.raises(
            ConfigError, match=r"other settings or sources \(seed was default, now 7\)"
        ):
            build(replace(other, overwrite=overwrite))


def _in(folder: Path, do: Callable[[], Any]) -> None:
    with machine(folder):
        do()


def test_an_unfinished_build_of_other_settings_is_replaced_on_demand_only(
    memory: Memory, tmp_path: Path
) -> None:
    config = BuildConfig(output="memory://b/out", **options_of("text"))
    build(replace(config, seed=7, output="local"))
    build(replace(config, output="memory://b/count"))
    published = memory.writes.index("pipe_file /b/count/manifest.json")
    for at in (5, published):
        memory.arm(at)
        with machine(tmp_path / f"one-{at}"), pytest.raises(KilledError):
            build(config)
        memory.arm(-1)
        with machine(tmp_path / f"two-{at}"):
            with pytest.raises(ConfigError, match="is an unfinished build of other settings"):
                build(replace(config, seed=7))
            build(replace(config, seed=7, overwrite=True))
        assert digests("memory://b/out") == digests("local")
        assert verify("memory://b/out") == []
        with machine(tmp_path / f"one-{at}"), pytest.raises(ConfigError, match="other settings"):
            build(config)
        memory.files.rm("/b/out", recursive=True)


def test_a_store_that_overwrites_is_refused(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.pipe_file
    monkeypatch.setattr(
        MemoryFileSystem, "pipe_file", lambda files, path, value, **_: real(files, path, value)
    )
    with pytest.raises(ConfigError, match="overwrites a file when it is asked to create one"):
        build(BuildConfig(output="memory://b/out", **options_of("text")))
    assert memory.names() == []


def test_a_folder_of_other_files_is_no_place_for_an_output(memory: Memory) -> None:
    memory.files.pipe("/b/out/mine.txt", b"")
    with pytest.raises(ConfigError, match=r"has mine\.txt of another making"):
        build(BuildConfig(output="memory://b/out", **options_of("text")))
    assert memory.names() == ["/b/out/mine.txt"]


def test_a_source_is_fetched_again_and_must_be_the_same(memory: Memory) -> None:
    remote = options_of("mix", "memory://b/in")
    build(BuildConfig(output="local", **options_of("mix")))

    def evict() -> None:
        for path in Path("out.incomplete/scratch").rglob("*.jsonl"):
            path.unlink()

    def change() -> None:
        evict()
        memory.files.store["/b/in/a.jsonl"].write(b'{"text": "another"}\n')

    config = BuildConfig(output="memory://b/out", **remote)
    memory.strike = change
    memory.arm(1)
    with pytest.raises(ValueError, match=r"memory://b/in/a\.jsonl has changed since"):
        build(config)
    options_of("mix", "memory://b/in")
    memory.strike = evict
    memory.arm(1)
    build(config)
    assert digests("memory://b/out") == digests("local")
    options = options_of("text") | {"sources": ["memory://b/in/*.jsonl"]}
    everything = BuildConfig(output="memory://b/two", **options)
    memory.strike = memory.kill
    memory.arm(1)
    with pytest.raises(KilledError):
        build(everything)
    memory.files.rm("/b/in/b.jsonl")
    assert len(build(replace(everything, overwrite=True)).manifest.data["sources"]) == 1


@pytest.fixture
def shards(base: str) -> str:
    """An output of several shards."""
    return str(build(BuildConfig(output=f"{base}/out", **options_of("text"))).files)


def test_a_cache_has_the_size_that_is_asked_for(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/x.tmp").touch()
    os.utime(tmp_path / "c/x.tmp", (0, time.time()))  # begun long ago, and still written
    keep_within(tmp_path / "c", -1)
    (tmp_path / "c/x.tmp").unlink()
    monkeypatch.setattr("packprep.schemas.remote.RECENT", 0)
    manifest = open_output(shards).manifest
    sizes = [file.bytes for file in manifest.shards("train")]
    assert len(sizes) > 3
    opened = PackedShards(shards, split="train", cache_dir=tmp_path / "c", cache_size=2 * sizes[0])
    for _ in opened:
        kept = sum(path.stat().st_size for path in (tmp_path / "c").iterdir())
        assert kept <= max(2 * sizes[0], *sizes)
    loader = PackedLoader(opened, packs_per_batch=2)
    # One after the other: what fsspec keeps in memory is a file of one position for all threads.
    local = [*PackedLoader(PackedShards(shards, split="train"), packs_per_batch=2)]
    for batch, other in zip(loader, local, strict=True):
        assert (batch.tokens == other.tokens).all()


def test_damage_in_a_store_is_found_and_never_used(shards: str, tmp_path: Path) -> None:
    url = f"{shards}/{open_output(shards).manifest.shards('train')[0].path}"
    content = bytearray(client(url).cat_file(url))
    content[len(content) // 2] ^= 1
    PackedShards(shards, split="train", cache_dir=tmp_path / "before")[0]
    client(url).pipe_file(url, bytes(content))
    with pytest.raises(FormatError, match="has another digest"):
        list(PackedShards(shards, split="train", cache_dir=tmp_path / "after"))
    assert not [*(tmp_path / "after").rglob("*.tmp")]
    assert [finding.kind for finding in verify(shards)] == ["damaged file"]
    client(url).rm_file(url)
    with pytest.raises(FormatError, match="is missing"):
        PackedShards(shards, split="train")


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["build", "a.jsonl", "-o", "s3://key:secret@b/out"], 2, "s3://***@b/out has credentials"),
        (["build", "a.jsonl", "-o", "gs://b/out"], 2, "run pip install gcsfs"),
        (["build", "az://b/a.jsonl", "-o", "out"], 2, "run pip install adlfs"),
        (["build", "a.jsonl", "-o", "memory://b"], 2, "memory://b is a bucket"),
        (["build", "a.jsonl", "-o", "nowhere://b/out"], 2, "Protocol not known: nowhere"),
        (["build", "https://b/a.jsonl", "-o", "out"], 2, "is an address; download it"),
        (["build", "a.jsonl", "-o", "memory:///"], 2, "is a bucket"),
        (["build", "memory://b/none.jsonl", "-o", "out"], 2, "no file memory://b/none.jsonl"),
        (["build", "memory://b/*.jsonl", "-o", "out"], 2, "memory://b/*.jsonl has no file"),
        (["pack", "memory://b/none", "-o", "out"], 2, "memory://b/none has no tokens"),
        (["verify", "memory://b/none"], 1, "memory://b/none/manifest.json is not there"),
    ],
)
def test_what_is_wrong_with_a_url_is_one_sentence(
    command: list[str],
    code: int,
    words: str,
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
    run: Command,
) -> None:
    for name in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, name, None)
    options = ["--tokenizer", "in/tiny"] if command[0] == "build" else []
    said = run(*command, *options)
    assert said.code == code
    assert words in said.out + said.err
    assert "secret" not in said.err + said.out
    assert len((said.err or said.out.partition("\n")[0]).strip().splitlines()) == 1
    assert memory.names() == []


@each_write
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError("Access Denied"), 2, "check the credentials in the environment"),
        (TimeoutError("no answer from https://key:secret@host"), 3, "run the command again"),
    ],
)
def test_a_store_that_refuses_is_one_sentence_and_nothing_half_written(
    error: Exception,
    code: int,
    words: str,
    step: int,
    memory: Memory,
    run: Command,
) -> None:
    def strike() -> None:
        raise error

    memory.strike = strike
    command = ["build", "a.jsonl", "-o", "memory://b/out", "--tokenizer", "in/tiny", "-q"]
    assert run(*command).code == 0
    for at in range(1, len(memory.writes) + 1, step):
        if memory.names("/b/out"):
            memory.files.rm("/b/out", recursive=True)
        memory.arm(at)
        found = run(*command)
        if found.code:  # else what is left of the build was not deleted
            assert (found.code, words in found.err, found.err.count("\n")) == (code, True, 1)
            assert "secret" not in found.err
        memory.arm(-1)
        assert run(*command).code == 0
        assert verify("memory://b/out") == []


def command_of(base: str) -> list[str]:
    """A build of several windows and shards, without its output."""
    Path("small.yaml").write_text(json.dumps(SMALL | {"holdout": 0.2}))
    options = ["-c", str(Path("small.yaml").absolute()), "--store", f"{base}/store", "-q"]
    tokenizer = str(Path("in/tiny").absolute())
    command = [sys.executable, "-m", "packprep", "build", str(Path("a.jsonl").absolute())]
    return [*command, *options, "--tokenizer", tokenizer, "-o"]


@pytest.mark.long
def test_of_many_that_begin_one_goes_on(bucket: str, memory: Memory, tmp_path: Path) -> None:
    """Four builds of different seeds at once, of one URL."""
    command = [*command_of(bucket), f"{bucket}/out", "--seed"]
    for number in range(4):
        (tmp_path / f"m{number}").mkdir()
    running = [
        subprocess.Popen([*command, str(n)], cwd=tmp_path / f"m{n}", stderr=subprocess.PIPE)
        for n in range(4)
    ]
    said = [process.communicate()[1].decode() for process in running]
    codes = [process.returncode for process in running]
    assert sorted(codes) == [0, 2, 2, 2], said
    assert all("other settings" in text or "another making" in text for text in said if text)
    assert verify(f"{bucket}/out") == []
    assert not [name for name in client(bucket).find(bucket) if ".incomplete" in name]


@pytest.mark.long
def test_a_build_killed_at_a_request_resumes_on_another_machine(
    bucket: str, memory: Memory, tap: Tap, tmp_path: Path
) -> None:
    """By SIGKILL, before, within and after requests that write, spread over the build."""
    command, pids = command_of(bucket), list[int]()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def run(out: str, folder: str) -> int:
        process = subprocess.Popen([*command, out], cwd=tmp_path / folder)
        pids.append(process.pid)
        return process.wait()

    assert run(f"{bucket}/whole", "one") == 0
    expected = digests(f"{bucket}/whole")
    client(bucket).rm(f"{bucket}/store", recursive=True)
    tap.arm()
    assert run(f"{bucket}/count", "one") == 0
    pieces = [n for n, line in tap.requests if line.startswith(("PUT", "POST", "DELETE"))]
    kills = 0
    for number, at in enumerate(pieces[:: max(1, len(pieces) // 6)]):
        out, before = f"{bucket}/out-{number}", len(pids)
        client(bucket).rm(f"{bucket}/store", recursive=True)
        tap.arm(at, (number % 3) / 2, partial(_kill, pids, before))
        kills += run(out, "one") == -signal.SIGKILL
        tap.arm()
        client(bucket).invalidate_cache()
        if not client(bucket).exists(f"{out}/manifest.json"):
            with pytest.raises(FormatError, match="is not there"):
                open_output(out)
        assert run(out, "two" if number % 2 else "one") == 0
        assert digests(out) == expected
        assert verify(out) == []
    assert kills > 3
    assert not [name for name in client(bucket).find(bucket) if ".incomplete" in name]
    assert not [*(tmp_path / "two").iterdir()]


def _kill(pids: list[int], before: int) -> None:
    """Kill the process that is begun after so many others."""
    while len(pids) == before:
        time.sleep(0.001)
    os.kill(pids[-1], signal.SIGKILL)


@pytest.mark.long
def test_a_bucket_that_is_missing_is_one_sentence(
    bucket: str, memory: Memory, run: Command
) -> None:
    for command in (["a.jsonl", "-o", f"{bucket}-no/out"], [f"{bucket}-no/a.jsonl", "-o", "out"]):
        said = run("build", *command, "--tokenizer", "in/tiny", "-q")
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert f"{bucket}-no" in said.err


@pytest.mark.long
@pytest.mark.usefixtures("memory", "new_clients")
def test_a_network_that_goes_away_is_one_sentence(
    bucket: str, store_server: StoreServer, tap: Tap, run: Command
) -> None:
    store_server.file_system()  # the next clients go through the tap
    command = ["build", "a.jsonl", "-o", f"{bucket}/out", "--tokenizer", "in/tiny", "-q"]
    tap.cut = True
    said = run(*command)
    assert (said.code, said.err.count("\n")) == (3, 1)
    assert "run the command again" in said.err
    tap.cut = False
    assert run(*command).code == 0
    assert verify(f"{bucket}/out") == []
