"""Builds whose output is in S3.

The bytes of a build in a directory, whoever builds it, however often it is killed.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep import BuildConfig, build
from packprep.execute import stages
from packprep.execute.append import open_output
from packprep.execute.pipeline import build_share
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output import publish, remote_lock, sign_off
from packprep.output import remote as storeoutput
from packprep.output.publish import RECORD
from packprep.output.remote import StoreOutput
from packprep.schemas import Manifest, RemoteOutput, canonical_json, read_manifest
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.file_lock import Held
from tests.helpers import command
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.store_servers import StoreServer, Tap

ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path: Path, bucket: str) -> dict[str, Any]:
    """A build of some ten units, three windows and a dozen shards, of two files."""
    for number in range(2):
        write_jsonl(tmp_path / f"{number}.jsonl", texts(80, seed=number))
    return {
        "sources": tuple(str(tmp_path / f"{number}.jsonl") for number in range(2)),
        "output": f"{bucket}/data/packed",
        "tokenizer": str(save_tokenizer(tmp_path / "tokenizer")),
        "engine": "hf",
        "max_length": 64,
        "num_proc": 1,
        "unit_size": 5_000,
        "window": 15_000,
        "shard_size": 20_000,
        "work_dir": str(tmp_path / "work"),
    }


def local(corpus: dict[str, Any], **options: Any) -> Manifest:
    """Output of the same build in a directory."""
    output = str(Path(corpus["work_dir"]).with_name("local"))
    return build(BuildConfig(**corpus | options | {"output": output, "work_dir": None}))


def check_there(corpus: dict[str, Any], expected: Manifest) -> None:
    """The output is whole, its readers take it, and nothing is left of its build."""
    url = corpus["output"]
    assert RemoteOutput(url).manifest.data == expected.data
    for split, counts in expected.splits.items():
        cache = Path(corpus["work_dir"]).with_name("cache")
        assert len(PackedShards(url, split=split, cache_dir=cache, verify=True)) == counts.packs
    rows = load_from_disk(url).num_rows
    assert (sum(rows.values()) if isinstance(rows, dict) else rows) == expected.num_packs
    assert Store(f"{url}.incomplete").list() == {}
    assert not Path(corpus["work_dir"]).exists() or list(Path(corpus["work_dir"]).iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"holdout": 0.2, "order": "input"},
        {"packs_multiple_of": 8},
        {"materialize": "index"},
    ],
)
def test_a_build_in_a_store_has_the_bytes_of_one_in_a_directory(
    corpus: dict[str, Any], options: dict[str, Any]
) -> None:
    expected = local(corpus, **options)
    assert len([entry for entry in expected.files if entry.is_shard]) > 5
    assert build(BuildConfig(**corpus | options)).data == expected.data
    check_there(corpus, expected)


def test_an_index_in_s3_reads_through_a_cache_of_any_size_or_from_a_folder(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    local(corpus)
    packs = [
        pack.tokens.tolist() for pack in PackedShards(Path(corpus["work_dir"]).with_name("local"))
    ]
    build(BuildConfig(**corpus, materialize="index"))
    for size in (None, 1):
        cache = tmp_path / f"cache-{size}"
        index = PackedShards(corpus["output"], cache_dir=cache, cache_size=size)
        assert [pack.tokens.tolist() for pack in index] == packs
    kept = corpus | {"output": corpus["output"] + "-kept", "keep_tokens": str(tmp_path / "store")}
    build(BuildConfig(**kept, materialize="index"))
    (tmp_path / "store").rename(tmp_path / "moved")
    moved = PackedShards(kept["output"], cache_dir=tmp_path / "cache", store=tmp_path / "moved")
    assert [pack.tokens.tolist() for pack in moved] == packs


@pytest.mark.parametrize("options", [{}, {"materialize": "index"}])
def test_tasks_of_an_array_and_one_of_them_twice_make_the_same_bytes_in_s3(
    corpus: dict[str, Any], options: dict[str, Any]
) -> None:
    expected = local(corpus, **options)
    corpus |= options
    for index in ("1", "0", "1"):
        build_share(BuildConfig(**corpus, executor="array", task_index=index, num_tasks=2))
        assert list(Store(f"{corpus['output']}.incomplete").list("")) != []
        assert Store(corpus["output"]).list() == {}
    build(BuildConfig(**corpus, executor="array", task_index="merge"))
    check_there(corpus, expected)


def test_no_shard_is_ever_on_this_machine(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[str] = []

    def looked(staging: Path, folder: str, moves: dict[str, str]) -> Any:
        here.extend(path.relative_to(staging).as_posix() for path in staging.rglob("*.arrow"))
        return publish.prepared(staging, folder, moves)

    monkeypatch.setattr(storeoutput, "prepared", looked)
    build(BuildConfig(**corpus))
    assert here
    assert all(name.startswith("tokens/") for name in here)


def test_the_same_command_again_does_nothing_and_other_settings_are_refused(
    corpus: dict[str, Any],
) -> None:
    first = build(BuildConfig(**corpus))
    before = Store(corpus["output"]).list()
    assert build(BuildConfig(**corpus)) == first
    assert Store(corpus["output"]).list() == before
    with pytest.raises(
        ConfigError,
        match=r"packed was built with other settings .max_length was 64, now 128.; choose",
    ):
        build(BuildConfig(**corpus | {"max_length": 128}))
    with pytest.raises(ConfigError, match="an output in a store cannot be replaced at once"):
        build(BuildConfig(**corpus | {"max_length": 128}, overwrite=True))
    with pytest.raises(ConfigError, match="append cannot change an output in a store"):
        BuildConfig(**corpus, append=True)
    check_there(corpus, first)


def test_an_output_is_a_folder_that_holds_nothing_else(corpus: dict[str, Any], bucket: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is a bucket; give a folder in it, such as [a-z0-9]+://.*/packed"
    ):
        build(BuildConfig(**corpus | {"output": bucket}))
    Store(corpus["output"]).write("thesis.txt", b"mine")
    with pytest.raises(
        ConfigError,
        match=r"packed contains thesis.txt and is not an output of packprep; choose another",
    ):
        build(BuildConfig(**corpus))
    with pytest.raises(
        ConfigError,
        match=r"s3://\*\*\*@bucket/packed holds credentials; put them into the environment",
    ):
        build(BuildConfig(**corpus | {"output": "s3://key:secret@bucket/packed"}))
    with pytest.raises(ConfigError, match="work_dir is for an output in a store"):
        BuildConfig(output="packed", work_dir="here")
    assert list(Store(bucket).list()) == ["data/packed/thesis.txt"]


def stopped(
    corpus: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: int,
    after: bool = False,
) -> None:
    """A build that ends at a call of a method of Store, as if the process had died there."""
    real, calls = getattr(Store, name), [0]

    def dies(store: Store, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            raise RuntimeError("killed")
        result = real(store, *arguments)
        if calls[0] == call:
            raise RuntimeError("killed")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Store, name, dies)
        with pytest.raises(RuntimeError, match="killed"):
            build(BuildConfig(**corpus))


def test_an_unfinished_output_of_other_settings_is_discarded_with_overwrite_only(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(corpus, monkeypatch, "writing", 3)
    other = corpus | {"max_length": 128}
    with pytest.raises(ConfigError, match=r"max_length was 64, now 128.*add --overwrite to start"):
        build(BuildConfig(**other))
    check_there(corpus, build(BuildConfig(**other, overwrite=True)))
    assert Store(corpus["output"] + ".incomplete").list() == {}


def test_a_half_published_output_is_finished_by_the_same_build_anywhere_and_refused_to_another(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped(corpus, monkeypatch, "copy_to", 3)
    url = corpus["output"]
    assert 0 < len(Store(url).list()) < 10
    for reader in (lambda: PackedShards(url), lambda: load_from_disk(url)):
        with pytest.raises(
            (FileNotFoundError, ValueError), match=r"does not exist|is neither a|not found"
        ):
            reader()
    with pytest.raises(
        ConfigError, match=r"is being published by a build with other settings .max_length was 64"
    ):
        build(BuildConfig(**corpus | {"max_length": 128, "work_dir": str(tmp_path / "other")}))
    with monkeypatch.context() as patch:
        patch.setattr(storeoutput, "prepared", None)  # what was written down is enough
        build(BuildConfig(**corpus | {"work_dir": str(tmp_path / "elsewhere")}))
    build(BuildConfig(**corpus))  # finds it done, and takes away its own directory
    check_there(corpus, local(corpus))


def test_a_build_that_wakes_up_after_another_one_has_published_changes_nothing(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another of the same, and another of other settings.

    It had a stale lock, and all its shards in the store.
    """
    stopped(corpus, monkeypatch, "create", 3, after=True)
    output = StoreOutput(BuildConfig(**corpus))
    mine = json.loads(output.work.read(RECORD))
    record = publish.Publication(**mine)
    output.work.delete([RECORD])
    other = build(BuildConfig(**corpus | {"max_length": 128, "work_dir": str(tmp_path / "other")}))
    before = output.store.list()
    with pytest.raises(
        StoppedError, match="was published by another build meanwhile; run the same command again"
    ):
        publish.begin(output.store, output.work, record)
    assert output.store.list() == before
    assert output.work.list() == {}
    assert RemoteOutput(corpus["output"]).manifest == other


def test_a_build_of_the_same_takes_over_what_another_one_has_begun_to_publish(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped(corpus, monkeypatch, "create", 3, after=True)  # the lock takes two
    work = Store(f"{corpus['output']}.incomplete")
    theirs = publish.pending(work)
    assert theirs is not None
    work.delete([RECORD])
    stopped(corpus | {"work_dir": str(tmp_path / "other")}, monkeypatch, "create", 3)
    work.create(
        RECORD,
        canonical_json(
            {"shards": theirs.shards, "files": theirs.files, "manifest": theirs.manifest}
        ),
    )
    published = build(BuildConfig(**corpus | {"work_dir": str(tmp_path / "other")}))
    assert published.sha256 == theirs.parsed.sha256, (
        "with the report of the first one, seconds and all"
    )


def test_shards_that_somebody_deletes_before_they_are_published_are_named(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(corpus, monkeypatch, "copy_to", 3)
    work = Store(f"{corpus['output']}.incomplete")
    work.delete([name for name in work.list() if name.endswith(".arrow")])
    with pytest.raises(
        ConfigError,
        match=r"a shard of .*packed was deleted before it was published .*delete .*://.*packed and",
    ):
        build(BuildConfig(**corpus))


def test_shards_that_are_not_as_their_receipts_say_are_written_again(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(corpus, monkeypatch, "create", 3)  # before anything is published
    work = Store(f"{corpus['output']}.incomplete")
    shards = [name for name in work.list() if name.endswith(".arrow")]
    assert len(shards) > 5
    content = bytearray(work.read(shards[0]))
    content[len(content) // 2] ^= 1
    work.write(shards[0], bytes(content))
    work.delete(shards[1:2])
    before = work.list()
    stopped(corpus, monkeypatch, "create", 3)
    written = [name for name, stored in work.list().items() if before.get(name) != stored]
    assert [name for name in written if name.endswith(".arrow")] == shards[:2]
    build(BuildConfig(**corpus))
    check_there(corpus, local(corpus))


def test_of_two_builds_one_is_refused_and_told_who_is_at_work(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    staging = tmp_path / "another machine"
    staging.mkdir()
    with open_output(BuildConfig(**corpus)).held(staging):
        with pytest.raises(
            Held,
            match=rf"data/packed is being built by process {os.getpid()} on .*, which holds [a-z]",
        ):
            build(BuildConfig(**corpus))
        with pytest.raises(Held, match="is being built by"):
            build_share(BuildConfig(**corpus, executor="array", task_index="0", num_tasks=2))
        shown = command.run("stats", corpus["output"], "--work-dir", corpus["work_dir"])
        assert (
            f"pid    {os.getpid()}" in shown.out and "running" in shown.out
        ) or "starting" in shown.out
    build(BuildConfig(**corpus))
    assert "packs of train" in command.run("stats", corpus["output"]).out


def test_a_build_that_was_passed_over_publishes_nothing(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine slept for minutes while it wrote, and another build began."""
    output = StoreOutput(BuildConfig(**corpus))
    real = sign_off.sign

    def sleeps(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(remote_lock, "STALE_AFTER", -1.0)
            patch.setattr(socket, "gethostname", lambda: "elsewhere")
            remote_lock.StoreLock(output.work, "out is being built", "another")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "sign", sleeps)
        with pytest.raises(
            StoppedError,
            match=r"packed is being built by process [0-9]+ on elsewhere now, because this",
        ):
            build(BuildConfig(**corpus))
    assert output.store.list() == {}
    assert publish.pending(output.work) is None


def test_a_working_directory_is_of_one_output(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    stopped(corpus, monkeypatch, "create", 3)
    with pytest.raises(
        ConfigError,
        match=r"packed.incomplete is an unfinished build of [a-z0-9]+://.*/data/packed; choose",
    ):
        build(BuildConfig(**corpus | {"output": f"{bucket}/packed"}))


@pytest.mark.usefixtures("new_clients")
def test_a_network_that_goes_away_ends_a_build_that_goes_on_later(
    corpus: dict[str, Any],
    store_server: StoreServer,
    store_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tap = Tap(store_environment)
    for name, value in tap.environment.items():
        monkeypatch.setenv(name, value)
    store_server.give_up_at_once(monkeypatch)
    tap.cut_at(60)
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in corpus.items() if key != "sources"
    ]
    ended = command.run("build", *corpus["sources"], *options, "-q")
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1), ended
    assert "the store says: " in ended.err
    assert "so run the same command to resume" in ended.err
    tap.cut = False
    assert command.run("build", *corpus["sources"], *options, "-q").code == 0
    check_there(corpus, local(corpus))
    tap.close()


@pytest.mark.usefixtures("new_clients", "s3_store")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {},
            "s3://nobody-has-this/packed.incomplete/lock.json: there is no such bucket; check the "
            "address",
        ),
        (
            {"AWS_ACCESS_KEY_ID": None},
            "Unable to locate credentials; check the address and the credentials",
        ),
    ],
)
def test_an_output_that_cannot_be_is_one_sentence(
    corpus: dict[str, Any],
    environment: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in environment:
        monkeypatch.delenv(name)
    options = [
        f"--{key.replace('_', '-')}={value}"
        for key, value in corpus.items()
        if key not in ("sources", "output")
    ]
    ended = command.run("build", *corpus["sources"], *options, "-o", "s3://nobody-has-this/packed")
    assert (ended.code, message in ended.err, ended.err.count("packprep: ")) == (2, True, 1), ended
    assert not Path(corpus["work_dir"]).exists() or list(Path(corpus["work_dir"]).iterdir()) == []


@pytest.mark.parametrize("protocol", ["memory", "sftp", "foo", "simplecache::s3"])
def test_a_store_that_no_test_has_run_with_is_refused_at_the_start(
    corpus: dict[str, Any], protocol: str
) -> None:
    url = f"{protocol}://bucket/packed"
    with pytest.raises(
        ConfigError,
        match=rf"{url} is in a store that packprep was not tested with, so two builds may mix .* "
        "add --unproven-store",
    ):
        build(BuildConfig(**corpus | {"output": url}))
    assert not Path(corpus["work_dir"]).exists() or list(Path(corpus["work_dir"]).iterdir()) == []


def test_a_store_that_is_not_proven_is_written_to_on_demand(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    unproven = corpus | {"output": "memory://bucket/packed", "unproven_store": True}
    assert build(BuildConfig(**unproven)).data == local(corpus).data
    assert Store("memory://bucket/packed.incomplete").list() == {}
    arguments = ["export", tmp_path / "local", "--to", "npy", "-o", "memory://bucket/exported"]
    refused = command.run(*arguments, "-q")
    assert (refused.code, "was not tested with" in refused.err) == (2, True), refused
    assert command.run(*arguments, "-q", "--unproven-store").code == 0
    assert Store("memory://bucket/exported").find("export.json") is not None


def test_a_store_that_no_package_opens_is_one_sentence(corpus: dict[str, Any]) -> None:
    import fsspec

    corpus |= {"unproven_store": True}
    fsspec.register_implementation("nothing", "no_such_package.Files", clobber=True)
    with pytest.raises(
        ConfigError,
        match=r"needs a package that is not installed: .*; run pip install the package that fsspec",
    ):
        build(BuildConfig(**corpus | {"output": "nothing://bucket/packed"}))
    with pytest.raises(
        ConfigError, match="it is not the address of a store: Protocol not known: foo; check"
    ):
        build(BuildConfig(**corpus | {"output": "foo://bucket/packed"}))


@pytest.fixture
def output(
    corpus: dict[str, Any], store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """An output in the store, and the same in a directory."""
    local(corpus)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store.put(f"{tmp_path / 'local'}/", corpus["output"] + "/", recursive=True)
    return corpus["output"], tmp_path / "local"


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "OUT"),
        ("verify", "OUT", "--level", "full", "--sample", "20"),
        ("show", "OUT", "--pack", "3"),
        ("show", "OUT", "--doc", "5"),
        ("show", "OUT", "--rows", "--pack", "3"),
        ("show", "OUT", "--find", "0.jsonl:3"),
        ("stats", "OUT"),
        ("stats", "OUT", "OUT"),
        ("check", "OUT", "--min-utilization", "0.5"),
    ],
    ids=" ".join,
)
def test_commands_say_of_an_output_in_s3_what_they_say_of_a_directory(
    output: tuple[str, Path], arguments: tuple[str, ...]
) -> None:
    remote, here = (
        command.run(*(str(place) if argument == "OUT" else argument for argument in arguments))
        for place in output
    )
    assert (remote.code, here.code) == (0, 0), (remote, here)
    assert remote.out.replace(output[0], "OUT") == here.out.replace(str(output[1]), "OUT")


def test_an_output_in_s3_can_be_merged_and_looked_at(
    output: tuple[str, Path], tmp_path: Path
) -> None:
    url, here = output
    assert command.run("merge", url, here, "-o", tmp_path / "both", "-q").code == 0
    assert read_manifest(tmp_path / "both").num_packs == 2 * read_manifest(here).num_packs
    assert command.run("report", url, "-o", tmp_path / "page.html").code == 0
    assert "packed" in (tmp_path / "page.html").read_text()
    plans = [command.run("plan", place, "--max-length", "32,64") for place in output]
    assert [plan.code for plan in plans] == [0, 0]
    rows = [
        [line.split()[:8] for line in plan.out.splitlines()[2:4]] for plan in plans
    ]  # behind them it says seconds
    assert rows[0] == rows[1]
    assert [row[0] for row in rows[0]] == ["32", "64"]
    refused = command.run("merge", url, "-o", f"{url}-small", "--shard-size", "1MB")
    assert refused.code == 2
    assert (
        "only packprep build writes to a store; give a local directory, and copy it" in refused.err
    )


def test_verify_reads_every_byte_in_the_bucket_and_keeps_none(
    output: tuple[str, Path], store: Any, tmp_path: Path
) -> None:
    url, _ = output
    shard, other = [name for name in Store(url).list() if name.endswith(".arrow")][:2]
    content = bytearray(Store(url).read(shard))
    content[len(content) // 2] ^= 4
    Store(url).write(shard, bytes(content))
    Store(url).write("note.txt", b"hello")
    Store(url).delete([other])
    found = json.loads(command.run("verify", url, "--json").out)
    kinds = {
        (finding["kind"], finding["file"]) for finding in found["findings"] if "file" in finding
    }
    assert {("sha256", shard), ("surplus file", "note.txt"), ("file", other)} <= kinds
    assert not found["sound"]
    assert not (tmp_path / "cache").exists()
    manifest = Store(url).read("manifest.json")
    Store(url).write("manifest.json", manifest[:-10] + b" " + manifest[-9:])
    damaged = command.run("verify", url)
    assert damaged.code == 1
    assert "manifest" in damaged.out
    assert command.run("verify", f"{url}/nothing").code == 2


def test_builds_that_are_killed_while_they_send_and_publish_go_on_to_the_same_bytes() -> None:
    """Few of the many that `python -m tests.faults.remote` does."""
    line = [
        sys.executable,
        "-m",
        "tests.faults.remote",
        "--kills",
        "2",
        "--parts",
        "1",
        "--seed",
        "3",
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [said.split(":")[1].split()[0] for said in done.stdout.splitlines()[:-1]] == ["2", "1"]


def test_an_output_in_a_store_may_have_the_names_of_hf(corpus: dict[str, Any]) -> None:
    stored = build(BuildConfig(**corpus | {"names": "hf"}))
    assert stored.data == local(corpus, names="hf").data
    assert verify(corpus["output"]).sound
    plain = local(corpus, overwrite=True)
    packs = PackedShards(corpus["output"], verify=True)
    expected = PackedShards(Path(corpus["work_dir"]).with_name("local"))
    assert len(packs) == plain.num_packs
    for pack, other in zip(packs, expected, strict=True):
        assert pack.tokens.tolist() == other.tokens.tolist()
        assert pack.cu_seqlens.tolist() == other.cu_seqlens.tolist()
