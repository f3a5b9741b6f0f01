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
from packprep.inspect.status import status
from packprep.output import directory as outputs
from packprep.output.staging import CLAIMS, staging_path
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from tests.helpers.command import run
from tests.helpers.corpus import build_options, texts


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    return build_options(
        tmp_path, {"a.jsonl": texts(100)}, unit_size=4_000, window=8_000, num_proc=1
    )


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
    stop_at(monkeypatch, corpus, window_files, "write_shard")
    found = status(output)
    assert (found["state"], found["stage"], found["documents"], found["windows"]) == (
        "stopped",
        "pack",
        100,
        0,
    )
    stop_at(monkeypatch, corpus, stages, "name_shards")
    found = status(output)
    assert (found["state"], found["stage"]) == ("stopped", "pack")
    assert found["windows"] == found["shards"] > 1
    stop_at(monkeypatch, corpus, outputs, "publish")
    assert status(output)["stage"] == "sign off"
    manifest = build(BuildConfig(**corpus))
    counts = {"documents": 100, "tokens": manifest.num_tokens, "packs": manifest.num_packs}
    assert status(output) == {"state": "finished"} | counts


def test_a_running_build_says_who_runs_it(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_at(monkeypatch, corpus, window_files, "write_shard")
    with locked(Path(corpus["output"]), "out is being built"):
        found = status(Path(corpus["output"]))
        assert (found["state"], found["pid"]) == ("running", os.getpid())
        shown = run("status", corpus["output"])
        assert shown.code == 0
        assert "running" in shown.out
        assert re.search(rf"pid +{os.getpid()}\n", shown.out)
    with locked(tmp_path / "other", "other is being built"):
        assert status(tmp_path / "other")["state"] == "starting"


def test_an_array_says_how_many_tasks_are_at_work_or_that_it_waits_for_more(
    corpus: dict[str, Any],
) -> None:
    output = Path(corpus["output"])
    build_share(BuildConfig(**corpus, executor="array", num_tasks=2, task_index="0"))
    found = status(output)
    assert found["state"] == "waiting"
    assert 0 < found["documents"] < 100
    with locked(member_path(output), "a task is at work"):
        found = status(output)
        assert (found["state"], found["tasks_at_work"]) == ("running", 1)
        assert "pid" not in found
        assert re.search(r"tasks at work +1\n", run("status", output).out)
    with locked(staging_path(output) / CLAIMS / "join", "a task is joining"):
        assert status(output)["state"] == "running"
    build(BuildConfig(**corpus, executor="array", num_tasks=2, task_index="merge"))
    assert status(output)["state"] == "finished"


def test_the_command_prints_json_and_knows_when_there_is_nothing(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    build(BuildConfig(**corpus))
    assert json.loads(run("status", corpus["output"], "--json").out) == status(
        Path(corpus["output"])
    )
    with pytest.raises(ConfigError, match="not an unfinished build; check the path"):
        status(tmp_path / "gone")
    assert run("status", tmp_path / "gone").code == 2
