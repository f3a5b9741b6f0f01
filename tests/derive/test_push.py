"""Outputs on a hub of this machine, pushed by the hub's real client."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedShards
from packprep.reports.card import MARK
from packprep.schemas import read_manifest
from tests.helpers.command import Result, run
from tests.helpers.hub import TOKEN, Hub, connect, running
from tests.helpers.numbered_shards import numbered_shards

NAME = "user/packed"
# of the hub's client, which passes bytes to httpx as `data`
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running() as hub:
        connect(hub, monkeypatch)
        yield hub


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """An output of 9 packs in 3 shards."""
    numbered_shards(tmp_path / "packed", 9)
    return tmp_path / "packed"


def push(output: Path, *more: str) -> Result:
    result = run("push", output, NAME, "-q", *more)
    assert TOKEN not in result.out + result.err
    return result


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def test_a_push_is_one_commit_of_every_file_and_a_card(hub: Hub, packed: Path) -> None:
    result = push(packed)
    commit = hub.branches[NAME]["main"][-1]
    assert result.out == f"{hub.url}/datasets/{NAME}: 7 files, 0.0 MB, commit {commit[:12]}\n"
    assert (result.code, result.err) == (0, "")
    assert len(hub.branches[NAME]["main"]) == 2  # the empty repository, and the push
    assert hub.private[NAME]
    there = hub.head(NAME)
    card = there.pop("README.md").decode()
    dry = push(packed, "--dry-run").out
    assert dry == f"{packed}: 7 files, 0.0 MB, ready for {NAME}\n\n{card}"
    assert there.pop(".gitattributes")
    assert there == files_of(packed)


def test_an_output_larger_than_one_step_of_the_progress_is_still_one_commit(
    hub: Hub, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.derive.push._TOGETHER", 3000)
    push(packed)
    batches = [request for request in hub.seen if request.endswith("/objects/batch")]
    assert len(batches) == 3
    assert len(hub.branches[NAME]["main"]) == 2
    assert hub.head(NAME).items() >= files_of(packed).items()


def test_a_second_push_changes_nothing(hub: Hub, packed: Path) -> None:
    push(packed)
    before = list(hub.uploads)
    result = push(packed)
    assert "7 files, is there already, commit" in result.out
    assert (hub.uploads, len(hub.branches[NAME]["main"])) == (before, 2)


def test_a_repository_may_be_public_and_a_branch_is_made(
    hub: Hub, packed: Path, tmp_path: Path
) -> None:
    result = push(packed, "--public", "--revision", "v1")
    assert result.out.startswith(f"{hub.url}/datasets/{NAME}/tree/v1: ")
    assert not hub.private[NAME]
    assert set(hub.head(NAME)) == {".gitattributes"}
    assert hub.head(NAME, "v1")["manifest.json"] == (packed / "manifest.json").read_bytes()
    assert len(PackedShards(f"hf://datasets/{NAME}@v1", cache_dir=tmp_path / "cache")) == 9


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_push_shows_readers_nothing_and_the_next_one_sends_the_rest(
    hub: Hub, packed: Path, at: int
) -> None:
    command = [sys.executable, "-m", "packprep", "push", str(packed), NAME]
    started: list[Any] = []
    calls = 0

    def strike() -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            started[0].send_signal(signal.SIGKILL)
            started[0].wait()
        if calls >= at:
            raise ConnectionError

    hub.strike = strike
    started.append(
        subprocess.Popen(
            command,
            env=os.environ | hub.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    out, error = started[0].communicate()
    assert started[0].returncode == -signal.SIGKILL, error
    assert TOKEN.encode() not in out + error
    assert [set(hub.head(NAME)), len(hub.branches[NAME]["main"])] == [{".gitattributes"}, 1]
    sent = list(hub.uploads)
    hub.strike = lambda: None
    assert push(packed).code == 0
    assert len(hub.uploads) == len(set(hub.uploads)) == 3
    assert hub.uploads[: len(sent)] == sent
    assert hub.head(NAME).items() >= files_of(packed).items()


def test_a_hub_that_fails_at_the_commit_is_a_stop_and_no_shard_is_sent_twice(
    hub: Hub, packed: Path
) -> None:
    hub.refuse = ("/commit/", 500)
    result = push(packed)
    assert result.code == 3
    assert f"packprep: {NAME}: the hub does not answer: " in result.err
    assert "run the same command to resume" in result.err
    assert set(hub.head(NAME)) == {".gitattributes"}
    hub.refuse = ("", 0)
    assert push(packed).code == 0
    assert len(hub.uploads) == 3


def test_a_push_beside_another_one_is_refused_by_the_commit(hub: Hub, packed: Path) -> None:
    hub.create(NAME)
    other = hub.head(NAME) | {"other.txt": b"theirs"}

    def strike() -> None:
        hub.strike = lambda: None
        hub.commit(NAME, other)

    hub.strike = strike
    result = push(packed)
    assert result.code == 3
    assert f"{NAME}: somebody else changed it during the push" in result.err
    assert hub.head(NAME) == other
    assert push(packed).code == 0
    assert hub.head(NAME).items() >= (files_of(packed) | {"other.txt": b"theirs"}).items()


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_without_rights_is_answered_with_the_way_to_log_in(
    hub: Hub, packed: Path, status: int
) -> None:
    hub.refuse = ("/preupload/", status)
    result = push(packed)
    assert result.code == 2
    assert result.err == (
        f"packprep: {NAME}: the hub refuses access ({status}); run hf auth login, or set HF_TOKEN "
        "to a token that may write to it\n"
    )


def test_another_output_is_replaced_only_with_overwrite_and_in_one_commit(
    hub: Hub, packed: Path, tmp_path: Path
) -> None:
    numbered_shards(tmp_path / "small", 4, shards=1, max_length=16)
    push(packed)
    hub.commit(NAME, hub.head(NAME) | {"LICENSE": b"mine"})
    refused = push(tmp_path / "small")
    assert refused.code == 2
    identity = read_manifest(packed).identity[:12]
    assert f"{NAME} has another output, of identity {identity}; choose" in refused.err
    assert push(tmp_path / "small", "--overwrite").code == 0
    assert len(hub.branches[NAME]["main"]) == 4
    there = hub.head(NAME)
    assert there.pop("LICENSE") == b"mine"
    assert there.keys() - {"README.md", ".gitattributes"} == files_of(tmp_path / "small").keys()


def test_a_card_that_somebody_wrote_is_kept(hub: Hub, packed: Path) -> None:
    hub.create(NAME)
    hub.commit(NAME, hub.head(NAME) | {"README.md": b"---\nlicense: mit\n---\n\nOur own words.\n"})
    result = push(packed)
    assert result.out.splitlines()[1] == (
        "README.md was changed on the hub and is kept; --dry-run prints a new one"
    )
    assert hub.head(NAME)["README.md"].endswith(b"Our own words.\n")


def test_a_card_with_the_mark_or_without_text_is_written_again(hub: Hub, packed: Path) -> None:
    for text in ("---\nlicense: mit\n---\n", f"---\ntags: []\n---\n{MARK}\nold figures\n"):
        hub.create(NAME)
        hub.commit(NAME, hub.head(NAME) | {"README.md": text.encode()})
        push(packed)
        assert b"# packed\n" in hub.head(NAME)["README.md"]


def _unfinished(packed: Path) -> None:
    packed.rename(f"{packed}.incomplete")


def _without_a_manifest(packed: Path) -> None:
    (packed / "manifest.json").unlink()


def _changed(packed: Path) -> None:
    shard = packed / "data-00001-of-00003.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_unfinished, "is not finished; run the same packprep build command to resume, then push"),
        (_without_a_manifest, "manifest.json"),
        (_changed, "data-00001-of-00003.arrow has sha256 "),
    ],
)
def test_an_output_that_is_not_finished_or_has_changed_is_refused(
    hub: Hub, packed: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    harm(packed)
    result = push(packed)
    assert result.code == 2
    assert sentence in result.err
    assert all("manifest.json" not in commit for commit in hub.commits.values())


def test_a_dry_run_checks_the_files_and_asks_the_hub_nothing(hub: Hub, packed: Path) -> None:
    result = push(packed, "--dry-run")
    assert (result.code, hub.seen) == (0, [])
    assert result.out.startswith(f"{packed}: 7 files, 0.0 MB, ready for {NAME}\n\n---\ntags:\n")
    facts = json.loads(push(packed, "--dry-run", "--json").out)
    assert (facts["files"], facts["card"]) == (7, result.out.split("\n\n", 1)[1])
    _changed(packed)
    result = push(packed, "--dry-run")
    assert (result.code, hub.seen) == (2, [])
    assert "data-00001-of-00003.arrow has sha256 " in result.err


def test_a_bad_name_is_refused_before_anything_is_asked(hub: Hub, packed: Path) -> None:
    result = run("push", packed, "some/thing/else", "-q")
    assert (result.code, hub.seen) == (2, [])
    assert "NAME is 'some/thing/else', expected USER/NAME" in result.err


def test_the_loader_and_verify_read_the_repository(hub: Hub, packed: Path, tmp_path: Path) -> None:
    push(packed)
    url = f"hf://datasets/{NAME}"
    there = PackedShards(url, cache_dir=tmp_path / "cache", verify=True)
    assert [pack.tokens.tolist() for pack in there] == [
        pack.tokens.tolist() for pack in PackedShards(packed)
    ]
    first = PackedShards(f"{url}@{hub.branches[NAME]['main'][-1]}", cache_dir=tmp_path / "cache")
    assert first.fingerprint == there.fingerprint
    assert run("verify", url, "-q").code == 0
    damaged = hub.head(NAME) | {"data-00000-of-00003.arrow": b"no shard"}
    hub.commit(NAME, damaged)
    assert run("verify", url, "-q").code == 1


@pytest.mark.parametrize(
    "command", [("stats",), ("show", "--raw", "--pack", "0"), ("show", "--rows", "--pack", "0")]
)
def test_a_command_reads_the_repository_as_it_reads_the_directory(
    hub: Hub, packed: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(packed.parent / "cache"))
    push(packed)
    url = f"hf://datasets/{NAME}"
    there, here = (run(command[0], output, *command[1:]) for output in (url, packed))
    assert (there.code, there.err) == (0, "")
    assert there.out.replace(url, str(packed)) == here.out


def test_a_download_of_the_repository_is_an_output(hub: Hub, packed: Path, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    push(packed)
    copy = snapshot_download(NAME, repo_type="dataset", local_dir=tmp_path / "copy")
    assert len(PackedShards(copy, verify=True)) == 9
    assert run("verify", copy, "-q").code == 0
    (Path(copy) / "surplus.txt").write_text("x")
    assert run("verify", copy, "-q").out.startswith("surplus file  surplus.txt: ")


def test_an_output_in_a_bucket_is_read_where_it_is(hub: Hub, packed: Path, tmp_path: Path) -> None:
    hub.buckets["user/bucket"] = {f"a/{name}": data for name, data in files_of(packed).items()}
    shards = PackedShards("hf://buckets/user/bucket/a", cache_dir=tmp_path / "cache", verify=True)
    assert shards.fingerprint == PackedShards(packed).fingerprint


def test_datasets_loads_and_streams_the_repository(hub: Hub, packed: Path, tmp_path: Path) -> None:
    """In a process of its own, as datasets keeps the address of the hub from its import on."""
    push(packed)
    code = """
from datasets import load_dataset, load_from_disk
whole = load_dataset("user/packed", split="train")
stream = load_dataset("user/packed", split="train", streaming=True)
saved = load_from_disk("hf://datasets/user/packed")
assert whole["tokens"][:] == [row["tokens"] for row in stream] == saved["tokens"][:]
print(len(whole))
"""
    home = {"HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | hub.environment | home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
