"""Shards of a build that still runs, read in the order of the finished output."""

import json
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.loaders import PackedBatch, PackedLoader, PackedShards
from packprep.schemas import FormatError
from packprep.schemas.storage import running
from tests.helpers.corpus import build_options, texts

# In input order a window is written as soon as its text is tokenized.
SIZES = {"unit_size": 6_000, "window": 12_000, "shard_size": 8_000, "order": "input"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A build of many windows of two or three shards each, of one file."""
    return build_options(tmp_path, {"a.jsonl": texts(400)}, engine="hf", num_proc=2, **SIZES)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build counts as dead at once."""
    monkeypatch.setattr(running, "_PATIENCE", 0.3)
    monkeypatch.setattr(running, "_STALE", 0.0)


def run_build(options: dict[str, Any]) -> "subprocess.Popen[bytes]":
    code = f"import packprep; packprep.build(packprep.BuildConfig(**{options!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@contextmanager
def paused(options: dict[str, Any], windows: int = 2) -> Iterator["subprocess.Popen[bytes]"]:
    """A build that stands still once it has written so many windows."""
    process = run_build(options)
    receipts = Path(options["output"] + ".incomplete", "receipts")
    try:
        wait_until(lambda: len([*receipts.glob("train-?????.json")]) >= windows)
        process.send_signal(signal.SIGSTOP)
        assert not Path(options["output"]).exists(), "the build is not done"
        yield process
    finally:
        process.kill()
        process.wait()


def ids(batch: PackedBatch) -> list[int]:
    numbers: list[int] = np.asarray(batch.document_ids).tolist()
    return numbers


def rest_of(loader: PackedLoader) -> list[list[int]]:
    return [ids(batch) for batch in loader]


def finished(options: dict[str, Any], **settings: Any) -> list[list[int]]:
    """Batches of the finished output."""
    shards = PackedShards(options["output"])
    assert not shards.growing
    return rest_of(PackedLoader(shards, 3, shuffle=False, **settings))


@pytest.mark.parametrize("remainder", ["drop", "fill"])
def test_batches_of_a_running_build_are_those_of_the_finished_output(
    options: dict[str, Any], remainder: Any
) -> None:
    with paused(options) as process:
        shards = PackedShards(options["output"], follow=True)
        loader = PackedLoader(shards, 3, shuffle=False, remainder=remainder)
        batches = iter(loader)
        first = [ids(batch) for batch in islice(batches, 4)]
        assert shards.growing
        with pytest.raises(TypeError, match="can be counted when its build is finished"):
            len(loader)
        assert "still being built" in repr(loader)
        process.send_signal(signal.SIGCONT)
        taken = first + [ids(batch) for batch in batches]
        assert process.wait() == 0
    assert len(shards) == len(PackedShards(options["output"]))
    assert taken == finished(options, remainder=remainder)
    assert len(loader) == len(taken) > 20
    assert rest_of(loader) == taken, "the second epoch too"


def test_packs_can_be_iterated_and_read_by_number(options: dict[str, Any]) -> None:
    with paused(options) as process:
        shards = PackedShards(options["output"], follow=True)
        packs = iter(shards)
        tokens = [next(packs).tokens.tolist(), shards[1].tokens.tolist()]
        process.send_signal(signal.SIGCONT)
        tokens += [pack.tokens.tolist() for pack in islice(packs, 1, None)]
    assert tokens == [pack.tokens.tolist() for pack in PackedShards(options["output"])]
    with pytest.raises(IndexError):
        shards[len(tokens)]


def test_all_ranks_have_the_same_steps_of_a_running_build(options: dict[str, Any]) -> None:
    def loaders(**settings: Any) -> list[PackedLoader]:
        shards = [PackedShards(options["output"], **settings) for _ in range(2)]
        return [
            PackedLoader(each, 3, rank=rank, world_size=2, shuffle=False)
            for rank, each in enumerate(shards)
        ]

    with paused(options) as process:
        batches = [iter(loader) for loader in loaders(follow=True)]
        first = [[ids(batch) for batch in islice(each, 2)] for each in batches]
        process.send_signal(signal.SIGCONT)
        taken = [
            begun + [ids(batch) for batch in each]
            for begun, each in zip(first, batches, strict=True)
        ]
        assert process.wait() == 0
    assert taken == [rest_of(loader) for loader in loaders()]
    assert len(taken[0]) == len(taken[1])


def test_a_state_resumes_in_the_build_and_in_the_finished_output_at_another_world_size(
    options: dict[str, Any],
) -> None:
    with paused(options) as process:
        loader = PackedLoader(PackedShards(options["output"], follow=True), 3, shuffle=False)
        for _ in islice(loader, 4):
            state = loader.state_dict()
        again = PackedLoader(PackedShards(options["output"], follow=True), 1, shuffle=False)
        again.load_state_dict(state)
        one = ids(next(iter(again)))
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    whole = finished(options)
    assert whole[4][: len(one)] == one
    resumed = PackedLoader(PackedShards(options["output"]), 3, shuffle=False)
    resumed.load_state_dict(state)
    assert rest_of(resumed) == whole[4:]
    pair = [
        PackedLoader(PackedShards(options["output"]), 1, shuffle=False, rank=rank, world_size=3)
        for rank in range(3)
    ]
    for each in pair:
        each.load_state_dict(state)
    steps = [[*chain.from_iterable(map(ids, step))] for step in zip(*pair, strict=True)]
    assert steps == whole[4:]


@pytest.mark.usefixtures("impatient")
def test_a_killed_build_is_a_sentence_after_its_last_pack_and_resumes_later(
    options: dict[str, Any],
) -> None:
    out = options["output"]
    with paused(options) as process:
        process.kill()
        process.wait()
        loader = PackedLoader(PackedShards(out, follow=True), 3, shuffle=False)
        taken: list[list[int]] = []
        with pytest.raises(FormatError) as error:
            taken.extend(ids(batch) for batch in loader)
        assert str(error.value) == (
            f"{out} is not finished, and no build of it is running; repeat the command of the "
            "build to resume it, then resume from the loader's state"
        )
        state = loader.state_dict()
    build(BuildConfig(**options))
    whole = finished(options)
    assert 2 < len(taken) < len(whole)
    assert taken == whole[: len(taken)]
    resumed = PackedLoader(PackedShards(out, follow=True), 3, shuffle=False)
    resumed.load_state_dict(state)
    assert rest_of(resumed) == whole[len(taken) :]


def test_a_build_that_was_killed_and_resumed_goes_on(options: dict[str, Any]) -> None:
    with paused(options) as process:
        loader = PackedLoader(PackedShards(options["output"], follow=True), 3, shuffle=False)
        batches = iter(loader)
        taken = [ids(next(batches))]
        process.kill()
        process.wait()
        again = run_build(options)
        taken += [ids(batch) for batch in batches]
        assert again.wait() == 0
    assert taken == finished(options)


def test_a_build_that_failed_is_a_sentence(options: dict[str, Any]) -> None:
    with Path(options["sources"][0]).open("a") as file:
        file.write(json.dumps({"text": "x " * 5000}) + "\n")
    options |= {"max_length": 1024, "overflow": "error"}
    with paused(options) as process:
        shards = PackedShards(options["output"], follow=True)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 1
        with pytest.raises(FormatError) as error:
            list(shards)
    text, where = str(error.value), f"{options['sources'][0]} row 400"
    assert text.startswith(f"the build of {options['output']} failed: {where} has ")
    assert text.endswith("; build it again, then resume from the loader's state")


def test_another_build_in_the_same_place_is_not_followed(options: dict[str, Any]) -> None:
    with paused(options) as process:
        shards = PackedShards(options["output"], follow=True)
        process.kill()
        process.wait()
        build(BuildConfig(**options | {"restart": True, "max_length": 32}))
        with pytest.raises(FormatError) as error:
            shards.grow(10**6)
    assert str(error.value) == (
        f"{options['output']} is another output than the build that was followed; open it again"
    )


def test_worker_processes_follow_too(options: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    with paused(options) as process:
        loader = PackedLoader(PackedShards(options["output"], follow=True), 3, shuffle=False)
        batches = iter(loader.dataloader(num_workers=1, prefetch_factor=1))
        taken = [ids(next(batches))]
        process.send_signal(signal.SIGCONT)
        taken += [ids(batch) for batch in batches]
    assert taken == finished(options)


def test_a_finished_output_is_opened_like_any_other(options: dict[str, Any]) -> None:
    build(BuildConfig(**options))
    followed, plain = (PackedShards(options["output"], follow=each) for each in (True, False))
    assert not followed.growing
    assert (len(followed), followed.fingerprint) == (len(plain), plain.fingerprint)
    assert len(pickle.loads(pickle.dumps(followed))) == len(plain)
    assert len(PackedLoader(followed, 3)) > 20


def test_what_needs_the_whole_output_is_refused(options: dict[str, Any]) -> None:
    with paused(options):
        shards = PackedShards(options["output"], follow=True)
        with pytest.raises(ValueError, match="its last shards are not known; choose shuffle=False"):
            PackedLoader(shards, 3)
        with pytest.raises(ValueError, match="is still being built; follow cannot verify it"):
            PackedShards(options["output"], follow=True, verify=True)
    with pytest.raises(ValueError, match="is in a store, where a build cannot be followed"):
        PackedShards("s3://bucket/packed", follow=True)


def test_packings_of_several_epochs_are_read_when_they_are_finished(
    options: dict[str, Any],
) -> None:
    repacked = options | {"order": "shuffle", "epochs": 2, "repack": True}
    with paused(repacked), pytest.raises(ValueError, match="wait until it is finished"):
        PackedShards(options["output"], follow=True)


@pytest.mark.usefixtures("impatient")
def test_without_a_build_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not finished, and no build of it is running"):
        PackedShards(tmp_path / "out", follow=True)
    assert [*tmp_path.iterdir()] == []
