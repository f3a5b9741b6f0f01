"""Outputs on a hub of this machine, pushed by the hub's real client."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packprep.loaders import PackedShards
from packprep.reports.card import MARK
from packprep.schemas import read_manifest
from tests.helpers.command import Result, run
from tests.helpers.files import bytes_in
from tests.helpers.hub import TOKEN, Hub, connect, running
from tests.helpers.tiny_shards import numbered_shards

NAME = "user/packed"
URL = f"hf://datasets/{NAME}"
# of the hub's client, which passes bytes to httpx as `data`
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
long = pytest.mark.long


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


def refused(output: Path, code: int, words: str, *more: str) -> None:
    result = push(output, *more)
    assert (result.code, words in result.err) == (code, True), result


def commits(hub: Hub) -> int:
    return len(hub.branches[NAME]["main"])


def test_a_push_is_one_commit_of_every_file_and_a_card_and_the_same_again_changes_nothing(
    hub: Hub, packed: Path
) -> None:
    result = push(packed)
    commit = hub.branches[NAME]["main"][-1]
    assert result.out == f"{hub.url}/datasets/{NAME}: 7 files, 0.0 MB, commit {commit[:12]}\n"
    assert (result.code, result.err) == (0, "")
    assert commits(hub) == 2  # the empty repository, and the push
    assert hub.private[NAME]
    there = dict(hub.head(NAME))
    card = there.pop("README.md").decode()
    dry = push(packed, "--dry-run").out
    assert dry == f"{packed}: 7 files, 0.0 MB, ready for {NAME}\n\n{card}"
    assert there.pop(".gitattributes")
    assert there == bytes_in(packed)
    before = list(hub.uploads)
    assert "7 files, is there already, commit" in push(packed).out
    assert (hub.uploads, commits(hub)) == (before, 2)


def test_a_repository_may_be_public_and_a_branch_is_made(
    hub: Hub, packed: Path, tmp_path: Path
) -> None:
    result = push(packed, "--public", "--revision", "v1")
    assert result.out.startswith(f"{hub.url}/datasets/{NAME}/tree/v1: ")
    assert not hub.private[NAME]
    assert set(hub.head(NAME)) == {".gitattributes"}
    assert hub.head(NAME, "v1")["manifest.json"] == (packed / "manifest.json").read_bytes()
    assert len(PackedShards(f"{URL}@v1", cache_dir=tmp_path / "cache")) == 9


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
    refused(packed, 3, f"{NAME}: somebody else changed it during the push")
    assert hub.head(NAME) == other
    assert push(packed).code == 0
    assert hub.head(NAME).items() >= (bytes_in(packed) | {"other.txt": b"theirs"}).items()


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_without_rights_is_answered_with_the_way_to_log_in(
    hub: Hub, packed: Path, status: int
) -> None:
    hub.refuse = ("/preupload/", status)
    refused(packed, 2, f"{NAME}: the hub refuses access ({status}); run hf auth login, or set HF_T")


def test_another_output_is_replaced_only_with_overwrite_and_in_one_commit(
    hub: Hub, packed: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    numbered_shards(small, 4, shards=1, max_length=16)
    push(packed)
    hub.commit(NAME, hub.head(NAME) | {"LICENSE": b"mine"})
    identity = read_manifest(packed).identity[:12]
    refused(small, 2, f"{NAME} has another output, of identity {identity}; choose")
    assert push(small, "--overwrite").code == 0
    assert commits(hub) == 4
    there = hub.head(NAME)
    assert there.pop("LICENSE") == b"mine"
    assert there.keys() - {"README.md", ".gitattributes"} == bytes_in(small).keys()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("---\nlicense: mit\n---\n\nOur own words.\n", True),
        ("---\nlicense: mit\n---\n", False),
        (f"---\ntags: []\n---\n{MARK}\nold figures\n", False),
    ],
)
def test_a_card_that_somebody_wrote_is_kept_and_one_with_the_mark_is_written_again(
    hub: Hub, packed: Path, text: str, kept: bool
) -> None:
    hub.create(NAME)
    hub.commit(NAME, hub.head(NAME) | {"README.md": text.encode()})
    said = "README.md was changed on the hub and is kept; --dry-run prints a new one"
    assert (said in push(packed).out) is kept
    card = hub.head(NAME)["README.md"]
    assert card.endswith(b"Our own words.\n") if kept else b"# packed\n" in card


def _unfinished(packed: Path) -> None:
    packed.rename(f"{packed}.incomplete")


def _without_a_manifest(packed: Path) -> None:
    (packed / "manifest.json").unlink()


def _changed(packed: Path) -> None:
    shard = packed / "data-00001-of-00003.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_unfinished, "is not finished; run the same packprep build command to resume, then push"),
        (_without_a_manifest, "manifest.json"),
        (_changed, "data-00001-of-00003.arrow has sha256 "),
    ],
)
def test_an_output_that_is_not_finished_or_has_changed_is_refused(
    hub: Hub, packed: Path, harm: Callable[[Path], None], sentence: str, more: tuple[str, ...]
) -> None:
    harm(packed)
    refused(packed, 2, sentence, *more)
    assert all("manifest.json" not in commit for commit in hub.commits.values())


def test_a_dry_run_and_a_bad_name_ask_the_hub_nothing(hub: Hub, packed: Path) -> None:
    result = push(packed, "--dry-run")
    facts = json.loads(push(packed, "--dry-run", "--json").out)
    assert (facts["files"], facts["card"]) == (7, result.out.split("\n\n", 1)[1])
    named = run("push", packed, "some/thing/else", "-q")
    assert named.code == 2
    assert "NAME is 'some/thing/else', expected USER/NAME" in named.err
    assert hub.seen == []


def test_readers_take_the_repository_as_they_take_the_directory(
    hub: Hub, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    push(packed)
    expected = [pack.tokens.tolist() for pack in PackedShards(packed)]
    commit = hub.branches[NAME]["main"][-1]
    copy = snapshot_download(NAME, repo_type="dataset", local_dir=tmp_path / "copy")
    hub.buckets["user/bucket"] = {f"a/{name}": data for name, data in bytes_in(packed).items()}
    for place in (URL, f"{URL}@{commit}", copy, "hf://buckets/user/bucket/a"):
        shards = PackedShards(place, cache_dir=tmp_path / "cache", verify=True)
        assert [pack.tokens.tolist() for pack in shards] == expected
        assert shards.fingerprint == PackedShards(packed).fingerprint
    for line in ("verify OUT", "stats OUT", "show OUT --raw --pack 0", "show OUT --rows --pack 0"):
        there, here = (
            run(*(str(place) if word == "OUT" else word for word in line.split()))
            for place in (URL, packed)
        )
        assert (there.code, there.err) == (0, "")
        assert there.out.replace(URL, str(packed)).split() == here.out.split()
    (Path(copy) / "surplus.txt").write_text("x")
    assert run("verify", copy, "-q").out.startswith("surplus file  surplus.txt: ")
    hub.commit(NAME, hub.head(NAME) | {"data-00000-of-00003.arrow": b"no shard"})
    assert run("verify", URL, "-q").code == 1


@long
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
    here = os.environ | hub.environment | {"HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
