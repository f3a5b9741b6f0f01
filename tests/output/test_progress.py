"""Progress of a build that is stopped, running, waiting for tasks, or finished."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import stages, window_files
from packprep.execute.array_tasks import member_path
from packprep.execute.pipeline import build_share
from packprep.output.build_facts import build_facts, resume_obstacle
from packprep.output.directory import LocalTarget
from packprep.output.progress import build_progress
from packprep.output.staging import CLAIMS, staging_path
from packprep.support.file_lock import locked
from tests.helpers.command import run
from tests.helpers.corpus import build_options, texts


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    return build_options(
        tmp_path, {"a.jsonl": texts(100)}, unit_size=4_000, window=8_000, num_proc=1
    )


def found(output: Any) -> dict[str, Any]:
    """Progress of an unfinished build."""
    progress = build_progress(output)
    assert progress is not None
    return progress


def stop_at(monkeypatch: pytest.MonkeyPatch, corpus: dict[str, Any], place: Any, name: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(place, name, fails)
        with pytest.raises(OSError, match="Input/output error"):
            build(BuildConfig(**corpus))


def test_a_stopped_build_says_how_far_it_came(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(corpus["output"])
    for place, name, stage in (
        (window_files, "write_shard", "pack"),
        (stages, "name_shards", "pack"),
        (LocalTarget, "publish", "sign off"),
    ):
        stop_at(monkeypatch, corpus, place, name)
        facts = found(output)
        assert (facts["state"], facts["stage"], facts["documents"]) == ("stopped", stage, 100)
        assert facts["windows"] == facts["shards"]
        assert bool(facts["windows"]) == (name != "write_shard")
    build(BuildConfig(**corpus))
    assert build_progress(output) is None


def test_a_running_build_says_who_runs_it(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_at(monkeypatch, corpus, window_files, "write_shard")
    with locked(Path(corpus["output"]), "out is being built"):
        facts = found(corpus["output"])
        assert (facts["state"], facts["pid"]) == ("running", os.getpid())
        shown = run("stats", corpus["output"])
        assert (shown.code, "running" in shown.out) == (0, True)
        assert re.search(rf"pid +{os.getpid()}\n", shown.out)
        asked = json.loads(run("stats", corpus["output"], "--json").out)["progress"]
        changing = "seconds_since_last_file"
        assert asked | {changing: 0} == found(corpus["output"]) | {changing: 0}
    with locked(tmp_path / "other", "other is being built"):
        assert found(tmp_path / "other")["state"] == "starting"
    assert build_progress(tmp_path / "gone") is None


def test_an_array_says_how_many_tasks_are_at_work_or_that_it_waits_for_more(
    corpus: dict[str, Any],
) -> None:
    output = Path(corpus["output"])
    build_share(BuildConfig(**corpus, part="0/2"))
    assert found(output)["state"] == "waiting"
    assert 0 < found(output)["documents"] < 100
    with locked(member_path(output), "a task is at work"):
        facts = found(output)
        assert (facts["state"], facts["tasks_at_work"], "pid" in facts) == ("running", 1, False)
        assert re.search(r"tasks at work +1\n", run("stats", output).out)
    with locked(staging_path(output) / CLAIMS / "join", "a task is joining"):
        assert found(output)["state"] == "running"
    build(BuildConfig(**corpus, part="merge/2"))
    assert build_progress(output) is None


INPUTS: Any = {
    "options": {"max_length": 64, "on_error": "stop"},
    "sources": [{"sha256": "a"}, {"sha256": "b"}],
    "tokenizer": {"sha256": "t"},
}
FACTS = build_facts(INPUTS, names=["a.jsonl", "b.jsonl"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"max_length": 32, "on_error": "stop"}}, "max_length was 64, now 32"),
        ({"sources": [{"sha256": "a"}, {"sha256": "c"}]}, "b.jsonl changed"),
        ({"sources": [{"sha256": "a"}]}, "2 source files before, 1 now"),
        ({"tokenizer": {"sha256": "u"}}, "another tokenizer"),
        ({"mix": []}, "other mix"),
        ({"options": {"max_length": 64, "on_error": "skip"}}, ""),
        ({}, ""),
    ],
)
def test_a_change_of_the_inputs_is_named_and_on_error_may_change(
    changed: dict[str, Any], words: str
) -> None:
    new = build_facts(INPUTS | changed, names=["a.jsonl", "b.jsonl"])
    assert resume_obstacle(FACTS, new) == words


def test_a_build_of_another_version_is_not_resumed_unless_it_says_nothing_of_it() -> None:
    streams = FACTS["random_streams"]
    other: Any = FACTS | {"random_streams": streams | {"holdout": "00" * 16}}
    assert resume_obstacle(other, FACTS) == "packprep draws other random bits now: holdout"
    fewer = {name: bits for name, bits in streams.items() if name != "holdout"}
    assert resume_obstacle(FACTS | {"random_streams": fewer}, FACTS) == ""
    older: Any = {key: value for key, value in FACTS.items() if key != "random_streams"}
    assert resume_obstacle(older | {"staging_version": 2}, FACTS).startswith(
        "staging version was 2"
    )
    assert resume_obstacle({"inputs": INPUTS}, FACTS) == ""  # a manifest names no versions
