"""Builds whose output is in S3.

The bytes of a build in a directory, whoever builds it, however often it is killed.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep import BuildConfig, build
from packprep.execute import stages
from packprep.execute.pipeline import build_share
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output import remote_lock, sign_off
from packprep.output.remote import RECORD, Publication, StoreTarget
from packprep.output.staging import OUTPUT
from packprep.schemas import Manifest, RemoteOutput, canonical_json, read_manifest
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, PackprepError, StoppedError
from packprep.support.file_lock import Held
from tests.helpers import command
from tests.helpers.store_servers import Tap
from tests.helpers.zoo import Zoo

ROOT = Path(__file__).parents[2]
long = pytest.mark.long


class Work:
    """A build in the store of what a member of the zoo is, some ten units and three windows."""

    def __init__(self, folder: Path, bucket: str, zoo: Zoo, member: str = "split") -> None:
        self.folder, self.url = folder, f"{bucket}/data/packed"
        self.work_dir = folder / "work"
        self.local, self._options = zoo[member], zoo.config(member)
        self.expected = read_manifest(self.local)

    def config(self, **more: Any) -> BuildConfig:
        options = {"output": self.url, "work_dir": str(self.work_dir)} | more
        return replace(self._options, **options)

    def build(self, **more: Any) -> Manifest:
        return build(self.config(**more))

    def refuses(self, words: str, error: type[PackprepError] = ConfigError, **more: Any) -> None:
        with pytest.raises(error, match=words):
            self.build(**more)

    @property
    def target(self) -> StoreTarget[Manifest]:
        return StoreTarget(OUTPUT, self.url, str(self.work_dir), unproven_store=False)

    @property
    def unfinished(self) -> Store:
        return self.target.work

    @property
    def left_here(self) -> list[Path]:
        return list(self.work_dir.iterdir()) if self.work_dir.exists() else []

    def check(self, expected: Manifest | None = None) -> None:
        """The output is whole, its readers take it, and nothing is left of its build."""
        expected = expected or self.expected
        assert RemoteOutput(self.url).manifest.data == expected.data
        for split, counts in expected.splits.items():
            cached = self.folder / "cache"
            shards = PackedShards(self.url, split=split, cache_dir=cached, verify=True)
            assert len(shards) == counts.packs
        rows = load_from_disk(self.url).num_rows
        assert (sum(rows.values()) if isinstance(rows, dict) else rows) == expected.num_packs
        assert (self.unfinished.list(), self.left_here) == ({}, [])

    def dies_at(
        self, patch: pytest.MonkeyPatch, name: str, call: int, after: bool = False, **more: Any
    ) -> None:
        """Build until a call of a method of Store, as if the process had died there."""
        real, calls = getattr(Store, name), [0]

        def dies(store: Store, *arguments: Any) -> Any:
            calls[0] += 1
            result = None if calls[0] == call and not after else real(store, *arguments)
            if calls[0] == call:
                raise RuntimeError("killed")
            return result

        with patch.context() as patched:
            patched.setattr(Store, name, dies)
            with pytest.raises(RuntimeError, match="killed"):
                self.build(**more)

    def run(self, *more: str) -> command.Result:
        settings, there = self.local / "build.yaml", ("-o", self.url, "--work-dir", self.work_dir)
        return command.run("build", "-c", settings, *there, "-q", *more)


@pytest.fixture
def work(tmp_path: Path, bucket: str, zoo: Zoo) -> Work:
    return Work(tmp_path, bucket, zoo)


MEMBERS = ["split", *(pytest.param(name, marks=long) for name in ("index", "mix", "trees"))]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_build_in_a_store_has_the_bytes_of_one_in_a_directory(
    member: str, tmp_path: Path, bucket: str, zoo: Zoo
) -> None:
    work = Work(tmp_path, bucket, zoo, member)
    work.build()
    work.check()


@long
def test_an_index_in_s3_reads_through_a_cache_of_any_size_or_from_a_folder(
    tmp_path: Path, bucket: str, zoo: Zoo
) -> None:
    def packs(output: Any, **options: Any) -> list[list[int]]:
        shards = PackedShards(output, split="train", **options)
        return [shards[number].tokens.tolist() for number in range(0, len(shards), 25)]

    work, store, url = Work(tmp_path, bucket, zoo, "index"), tmp_path / "store", f"{bucket}/kept"
    expected = packs(work.local)
    work.build()
    for size in (None, 1):
        cached = tmp_path / f"cache-{size}"
        assert packs(work.url, cache_dir=cached, cache_size=size) == expected
    work.build(output=url, keep_tokens=str(store))
    moved = store.rename(tmp_path / "moved")
    assert packs(url, cache_dir=tmp_path / "cache", store=moved) == expected


@long
@pytest.mark.parametrize("member", ["split", "index"])
def test_tasks_of_an_array_and_one_of_them_twice_make_the_same_bytes_in_s3(
    member: str, tmp_path: Path, bucket: str, zoo: Zoo
) -> None:
    work = Work(tmp_path, bucket, zoo, member)
    for index in ("1", "1"):
        build_share(work.config(part=f"{index}/2"))
        assert list(work.unfinished.list("")) != []
        assert Store(work.url).list() == {}
    build_share(work.config(part="0/2"))  # the last one signs off
    assert build_share(work.config(part="1/2")) == {"task": 1, "tasks": 2}
    assert list(work.unfinished.list("")) == [], "a part that is late leaves no lock"
    work.build(part="merge")
    work.check()


def test_no_shard_is_ever_on_this_machine_and_the_same_command_again_does_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[str] = []

    real = StoreTarget.publish

    def noted(target: StoreTarget[Any], staging: Path, *rest: Any) -> Any:
        here.extend(path.relative_to(staging).as_posix() for path in staging.rglob("*.arrow"))
        return real(target, staging, *rest)

    monkeypatch.setattr(StoreTarget, "publish", noted)
    first = work.build()
    assert here
    assert all(name.startswith("tokens/") for name in here)
    before = Store(work.url).list()
    assert work.build() == first
    assert Store(work.url).list() == before
    work.refuses(r"was built with other settings .max_length was 64, now 128.", max_length=128)
    work.refuses("an output in a store cannot be replaced", max_length=128, overwrite=True)
    work.check(first)


def test_an_output_is_a_folder_that_holds_nothing_else(work: Work, bucket: str) -> None:
    work.refuses(r"is a bucket; give a folder in it, such as [a-z0-9]+://.*/packed", output=bucket)
    Store(work.url).write("thesis.txt", b"mine")
    work.refuses("packed contains thesis.txt and is not an output of packprep; choose another")
    secret = "s3://key:secret@bucket/packed"
    work.refuses(r"s3://\*\*\*@bucket/packed holds credentials; put them into", output=secret)
    assert list(Store(bucket).list()) == ["data/packed/thesis.txt"]


@long
def test_an_unfinished_output_of_other_settings_is_discarded_with_overwrite_only(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.dies_at(monkeypatch, "writing", 3)
    work.refuses(r"max_length was 64, now 128.*add overwrite to start", max_length=128)
    work.check(work.build(max_length=128, overwrite=True))


def test_a_half_published_output_is_finished_by_the_same_build_anywhere_and_refused_to_another(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.dies_at(monkeypatch, "copy_to", 3)
    there = Store(work.url).list()
    assert there
    assert "manifest.json" not in there
    for reader in (PackedShards, load_from_disk):
        with pytest.raises((FileNotFoundError, ValueError), match=r"exist|neither|not"):
            reader(work.url)
    other: dict[str, Any] = {"max_length": 128, "work_dir": str(work.folder / "other")}
    work.refuses("is being published by a build with other settings .max_length was 64", **other)
    with monkeypatch.context() as patch:
        patch.setattr(StoreTarget, "begin", None)  # what was written down is enough
        work.build(work_dir=str(work.folder / "elsewhere"))
    work.build()  # finds it done, and takes away its own directory
    work.check()


@long
def test_a_build_that_wakes_up_after_another_one_has_published_changes_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another of the same, and another of other settings.

    It had a stale lock, and all its shards in the store.
    """
    work.dies_at(monkeypatch, "create", 3, after=True)
    output = work.target
    record = Publication(**json.loads(output.work.read(RECORD)))
    output.work.delete([RECORD])
    other = work.build(max_length=128, work_dir=str(work.folder / "other"))
    before = output.files.list()
    with pytest.raises(StoppedError, match="was published by another build meanwhile; run the"):
        output.begin(record)
    assert (output.files.list(), output.work.list()) == (before, {})
    assert RemoteOutput(work.url).manifest == other


@long
def test_a_build_of_the_same_takes_over_what_another_one_has_begun_to_publish(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.dies_at(monkeypatch, "create", 3, after=True)  # the lock takes two
    output = work.target
    theirs = output.pending()
    assert theirs is not None
    work.unfinished.delete([RECORD])
    here = str(work.folder / "other")
    work.dies_at(monkeypatch, "create", 3, work_dir=here)
    facts = {"shards": theirs.shards, "files": theirs.files, "manifest": theirs.manifest}
    work.unfinished.create(RECORD, canonical_json(facts))
    # With the report of the first one, seconds and all.
    assert work.build(work_dir=here).sha256 == output.signed(theirs).sha256


@long
def test_shards_that_somebody_deletes_before_they_are_published_are_named(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.dies_at(monkeypatch, "copy_to", 3)
    names = [name for name in work.unfinished.list() if name.endswith(".arrow")]
    work.unfinished.delete(names)
    work.refuses("a shard of .*packed was deleted before it was published .*delete .*://.*packed")


@long
def test_shards_that_are_not_as_their_receipts_say_are_written_again(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.dies_at(monkeypatch, "create", 3)  # before anything is published
    shards = [name for name in work.unfinished.list() if name.endswith(".arrow")]
    assert len(shards) > 5
    content = bytearray(work.unfinished.read(shards[0]))
    content[len(content) // 2] ^= 1
    work.unfinished.write(shards[0], bytes(content))
    work.unfinished.delete(shards[1:2])
    before = work.unfinished.list()
    work.dies_at(monkeypatch, "create", 3)
    after = work.unfinished.list()
    written = [name for name, stored in after.items() if before.get(name) != stored]
    assert [name for name in written if name.endswith(".arrow")] == shards[:2]
    work.build()
    work.check()


@long
def test_of_two_builds_one_is_refused_and_told_who_is_at_work(work: Work) -> None:
    staging = work.folder / "another machine"
    staging.mkdir()
    with work.target.held(staging):
        words = rf"packed is being built by process {os.getpid()} on .*, which holds [a-z]"
        work.refuses(words, Held)
        with pytest.raises(Held, match="is being built by"):
            build_share(work.config(part="0/2"))
        shown = command.run("stats", work.url, "--work-dir", work.work_dir)
        assert (
            f"pid    {os.getpid()}" in shown.out and "running" in shown.out
        ) or "starting" in shown.out
    work.build()


@long
def test_a_build_that_was_passed_over_publishes_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine slept for minutes while it wrote, and another build began."""
    output = work.target
    real = sign_off.sign

    def sleeps(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(remote_lock, "STALE_AFTER", -1.0)
            patch.setattr(socket, "gethostname", lambda: "elsewhere")
            remote_lock.StoreLock(output.work, "out is being built", "another")
        return real(*arguments)

    monkeypatch.setattr(stages, "sign", sleeps)
    work.refuses("is being built by process [0-9]+ on elsewhere now, because this", StoppedError)
    assert output.files.list() == {}
    assert output.pending() is None


@long
def test_a_working_directory_is_of_one_output(
    work: Work, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    work.dies_at(monkeypatch, "create", 3)
    words = "packed.incomplete is an unfinished build of [a-z0-9]+://.*/data/packed; choose"
    work.refuses(words, output=f"{bucket}/packed")


@long
@pytest.mark.usefixtures("new_clients")
def test_a_network_that_goes_away_ends_a_build_that_goes_on_later(work: Work, tap: Tap) -> None:
    tap.cut_at(60)
    ended = work.run()
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1), ended
    assert "the store says: " in ended.err
    assert "so run the same command to resume" in ended.err
    tap.cut = False
    assert work.run().code == 0
    work.check()


@pytest.mark.parametrize("protocol", ["memory", "sftp", "foo", "simplecache::s3"])
def test_a_store_that_no_test_has_run_with_is_refused_at_the_start(
    work: Work, protocol: str
) -> None:
    url = f"{protocol}://bucket/packed"
    words = rf"{url} is in a store that packprep was not tested with, .* add unproven_store"
    work.refuses(words, output=url)
    assert work.left_here == []


def test_a_store_that_is_not_proven_is_written_to_on_demand(work: Work) -> None:
    url = "memory://bucket/packed"
    assert work.build(output=url, unproven_store=True).data == work.expected.data
    assert Store(f"{url}.incomplete").list() == {}
    arguments = ["export", url, "--to", "npy", "-o", "memory://bucket/exported", "-q"]
    refused = command.run(*arguments)
    assert (refused.code, "was not tested with" in refused.err) == (2, True), refused
    assert command.run(*arguments, "--unproven-store").code == 0
    assert Store("memory://bucket/exported").find("export.json") is not None


def test_a_store_that_no_package_opens_is_one_sentence(work: Work) -> None:
    import fsspec

    fsspec.register_implementation("nothing", "no_such_package.Files", clobber=True)
    for protocol, words in (
        ("nothing", "needs a package that is not installed: .*; run pip install the package"),
        ("foo", "it is not the address of a store: Protocol not known: foo; check"),
    ):
        work.refuses(words, output=f"{protocol}://bucket/packed", unproven_store=True)


@pytest.fixture
def output(
    work: Work, zoo: Zoo, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """An output in the store, and the same in a directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store.put(f"{zoo['split']}/", work.url + "/", recursive=True)
    return work.url, zoo["split"]


LINES = (
    *("verify OUT", "verify OUT --level full --sample 20", "stats OUT", "stats OUT OUT"),
    *("show OUT --pack 3", "show OUT --doc 5", "show OUT --pack 3 --rows"),
    *("show OUT --find a.jsonl:3", "check OUT --min-utilization 0.5", "plan OUT --max-length 64"),
)


def test_commands_say_of_an_output_in_s3_what_they_say_of_a_directory(
    output: tuple[str, Path], tmp_path: Path
) -> None:
    url, here = output
    for line in LINES:
        shown = []
        for place in output:
            result = command.done(*(str(place) if word == "OUT" else word for word in line.split()))
            shown.append(result.out.replace(str(place), "OUT").split())
        differ = [word for word, same in zip(*shown, strict=True) if word != same]
        assert len(differ) <= 2 * line.startswith("plan"), line  # which says seconds
    assert command.run("merge", url, here, "-o", tmp_path / "both", "-q").code == 0
    assert read_manifest(tmp_path / "both").num_packs == 2 * read_manifest(here).num_packs
    assert command.run("report", url, "-o", tmp_path / "page.html").code == 0
    assert "packed" in (tmp_path / "page.html").read_text()
    refused = command.run("merge", url, "-o", f"{url}-small", "--shard-size", "1MB")
    assert (refused.code, "only packprep build writes to a store" in refused.err) == (2, True)


def test_verify_reads_every_byte_in_the_bucket_and_keeps_none(
    output: tuple[str, Path], tmp_path: Path
) -> None:
    there = Store(output[0])
    shard, other = [name for name in there.list() if name.endswith(".arrow")][:2]
    content = bytearray(there.read(shard))
    content[len(content) // 2] ^= 4
    there.write(shard, bytes(content))
    there.write("note.txt", b"hello")
    there.delete([other])
    verdict = verify(output[0])
    found = {(finding.kind, finding.file) for finding in verdict.findings}
    assert {("sha256", shard), ("surplus file", "note.txt"), ("file", other)} <= found
    assert not (tmp_path / "cache").exists()
    manifest = there.read("manifest.json")
    there.write("manifest.json", manifest[:-10] + b" " + manifest[-9:])
    damaged = command.run("verify", output[0])
    assert (damaged.code, "manifest" in damaged.out) == (1, True)
    assert command.run("verify", f"{output[0]}/nothing").code == 2


@long
def test_builds_that_are_killed_while_they_send_and_publish_go_on_to_the_same_bytes() -> None:
    """Few of the many that scripts/checks/soak_stores.py does."""
    few = ("--kills=2", "--parts=1", "--publishing=4", "--seed=3")
    line = [sys.executable, str(ROOT / "scripts/checks/soak_stores.py"), *few]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    small, publishing, large = (said.split()[2] for said in done.stdout.splitlines()[:-1])
    assert (small, int(publishing) > 1, large) == ("2", True, "1")
