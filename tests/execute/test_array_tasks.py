"""Tasks of a job array make the bytes that one process makes.

Whenever, however often and in any order they run.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.config.grammar.settings import ExecutorSetting, PartSetting
from packprep.execute.array_tasks import array_share, member_path
from packprep.execute.pipeline import AHEAD, build_share
from packprep.output.staging import CLAIMS, at_work, staging_path
from packprep.schemas import check_files, read_manifest
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.file_lock import locked
from tests.helpers import command, warm
from tests.helpers.corpus import build_options, texts, write_jsonl
from tests.helpers.errors import refused


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """A build of 11 units and 4 windows, of three files."""
    files = {f"{number}.jsonl": texts(80, seed=number) for number in range(3)}
    return build_options(tmp_path, files, engine="hf", num_proc=1, unit_size=5_000, window=15_000)


def share(corpus: dict[str, Any], index: int, **options: Any) -> dict[str, Any]:
    return build_share(array(corpus, str(index), **options))


def array(corpus: dict[str, Any], index: str, **options: Any) -> BuildConfig:
    return BuildConfig(**{"part": f"{index}/5"} | corpus | options)


def local(corpus: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The data of the manifest that one process makes."""
    output = str(Path(corpus["output"]).with_name("local"))
    return build(BuildConfig(**corpus | options | {"output": output})).data


def merge(corpus: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The data of the tasks' output, whose files match it; nothing is left beside it."""
    manifest = build(array(corpus, "merge", **options))
    output = Path(corpus["output"])
    assert check_files(output, read_manifest(output), "sha256") == []
    assert manifest.run["executor"] == "array"
    assert not staging_path(output).exists()
    return manifest.data


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 9_000},
        *(
            pytest.param(options, marks=pytest.mark.long)
            for options in (
                {"holdout": 0.2, "order": "input"},
                {"limit": 100},
                {"weights": "1,1,1", "epochs": 2},
                {"packs_multiple_of": 8},
            )
        ),
    ],
    ids=str,
)
def test_five_tasks_make_the_bytes_of_one_process_where_options_decide_what_they_do(
    corpus: dict[str, Any], options: dict[str, Any]
) -> None:
    done = [share(corpus, index, **options) for index in (3, 1, 4, 3, 0, 2)]
    assert done[3]["slices tokenized here"] == 0
    if "max_tokens" in options:
        assert done[-1]["slices tokenized"] < done[-1]["slices"], "tasks end where the tokens do"
    else:
        assert done[-1]["slices tokenized"] == done[-1]["slices"] >= 5
    if "packs_multiple_of" in options:  # that takes the whole input
        assert done[-1]["windows written"] == 0
    else:
        assert done[-1]["windows written"] == done[-1]["windows"]
    assert not staging_path(Path(corpus["output"])).exists(), "the last task signed off"
    assert merge(corpus, **options) == local(corpus, **options)
    assert share(corpus, 1, **options) == {"task": 1, "tasks": 5}
    assert not staging_path(Path(corpus["output"])).exists()


@pytest.mark.parametrize("with_tasks", [False, True])
def test_merging_or_a_local_build_does_what_no_task_has_done(
    corpus: dict[str, Any], with_tasks: bool
) -> None:
    share(corpus, 2)
    file = next((staging_path(Path(corpus["output"])) / "tokens").glob("unit-*.arrow"))
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))  # damaged, so it is made again
    done = merge(corpus) if with_tasks else build(BuildConfig(**corpus)).data
    assert done == local(corpus)


def test_builds_and_tasks_keep_out_of_each_others_way(corpus: dict[str, Any]) -> None:
    output, other = Path(corpus["output"]), "max_length was 64, now 128"
    share(corpus, 0)
    with refused(ConfigError, "unfinished build with other settings", other):
        share(corpus, 1, max_length=128)
    with locked(member_path(output), "a task is at work"):
        assert len(at_work(output)) == 1
        with refused(ConfigError, "being built by tasks of an array", f"process {os.getpid()} on "):
            build(BuildConfig(**corpus))
        for more in ({}, {"overwrite": True}):
            with refused(ConfigError, "tasks with other settings", other):
                share(corpus, 1, max_length=128, **more)
    with locked(output, "out is being built"), refused(StoppedError, "built or signed off by"):
        share(corpus, 1)
    assert at_work(output) == {}
    share(corpus, 1, max_length=128, overwrite=True)
    options = {"max_length": 128, "overwrite": True}
    assert merge(corpus, **options) == local(corpus, max_length=128)
    with refused(ConfigError, "one task of an array makes no manifest"):
        build(array(corpus, "0"))


def test_a_bad_row_is_named_whichever_task_finds_it(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", 500)
    write_jsonl(tmp_path / "1.jsonl", [*texts(60, seed=1), {"text": 7}])
    with refused(InputError, "1.jsonl row 60 (line 61)"):
        for index in range(5):
            share(corpus, index)
    for index in range(5):
        share(corpus, index, on_error="skip")
    assert merge(corpus, on_error="skip") == local(corpus, on_error="skip")


def test_what_another_task_works_on_is_left_to_it(corpus: dict[str, Any]) -> None:
    share(corpus, 1)
    claims = staging_path(Path(corpus["output"])) / CLAIMS
    with locked(claims / "tokenize-0-1", "claimed"):
        assert share(corpus, 0)["slices tokenized"] == 4
    assert share(corpus, 0)["slices tokenized"] == 5


def arguments(corpus: dict[str, Any], index: object, *more: str) -> list[str]:
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in corpus.items() if key != "sources"
    ]
    return ["build", *corpus["sources"], *options, f"--part={index}/5", *more]


def task(corpus: dict[str, Any], index: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(warm.command("packprep", *arguments(corpus, index, "-q")))


@pytest.mark.long
def test_two_tasks_at_once_and_one_that_is_killed_make_the_same_bytes(
    corpus: dict[str, Any],
) -> None:
    for number in (0, 1, 2):  # more to do, so that there is something to kill
        write_jsonl(Path(corpus["sources"][number]), texts(400, seed=number))
    killed = task(corpus, 0)
    receipts = staging_path(Path(corpus["output"])) / "tokens"
    while killed.poll() is None and not list(receipts.glob("*.json")):
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    together = [task(corpus, 0), task(corpus, 0), task(corpus, 1)]
    assert [each.wait() for each in together] == [0, 0, 0]
    assert merge(corpus) == local(corpus)


@pytest.mark.long
def test_merging_waits_for_tasks_at_work(corpus: dict[str, Any]) -> None:
    share(corpus, 0)
    with locked(member_path(Path(corpus["output"])), "a task is at work"):
        merging = task(corpus, "merge")
        time.sleep(4)
        assert merging.poll() is None
    assert merging.wait() == 0
    assert read_manifest(Path(corpus["output"])).data == local(corpus)


SLURM = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "5"}
AWS = {"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3"}


@pytest.mark.parametrize(
    ("environment", "part", "expected"),
    [
        (SLURM | {"SLURM_ARRAY_TASK_STEP": "2"}, "auto", (2, 5)),
        (SLURM, "auto/5", (4, 5)),
        (SLURM | {"SLURM_ARRAY_TASK_COUNT": "1"}, "auto/9", (7, 9)),
        (KUBERNETES, "auto/4", (3, 4)),
        (AWS, "auto", (3, 4)),
        (SLURM, "1/2", (1, 2)),
        ({}, "auto", "needs the number of this task: give part I/N"),
        (KUBERNETES, "auto", "needs the number of tasks: give"),
        ({}, "5/5", "from part, is 5, expected 0 to 4"),
        (KUBERNETES, "auto/3", "from JOB_COMPLETION_INDEX, is 3, expected 0 to 2"),
    ],
)
def test_schedulers_say_which_task_this_is(
    environment: dict[str, str], part: str, expected: tuple[int, int] | str
) -> None:
    task = PartSetting.parse("part", part)
    if isinstance(expected, str):
        with refused(ConfigError, expected):
            array_share(task, environment)
    else:
        index, total, said = array_share(task, environment)
        assert (index, total) == expected
        assert said == ("--part" if part == "1/2" else next(iter(environment)))


def test_the_command_prints_what_a_task_did(corpus: dict[str, Any]) -> None:
    # One window is of the two units of this task.
    done = command.done(*arguments(corpus, 2, "--seed=11", "--json"))
    assert "task 2 of 5, from --part" in done.err
    assert json.loads(done.out)["share"] == {
        "task": 2,
        "tasks": 5,
        "slices tokenized here": 2,
        "windows written here": 1,
        "units": 11,
        "slices": 11,
        "slices tokenized": 2,
        "windows": 4,
        "windows written": 1,
    }


def test_the_executors_are_those_that_the_pipeline_tells_apart() -> None:
    assert {*ExecutorSetting.words()} == {"local", "isolated", "array", *AHEAD}


@pytest.mark.parametrize("name", sorted({*ExecutorSetting.words()} - {"array"}))
def test_only_a_job_array_has_tasks(name: str) -> None:
    said = "local" if name == "isolated" else name
    with refused(ConfigError, f"executor {said} has no tasks; use packprep.build"):
        build_share(BuildConfig(sources=("a.jsonl",), output="out", executor=name))
