"""Tasks of a job array make the bytes that one process makes.

Whenever, however often and in any order they run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute.array_tasks import array_share, at_work, member_path
from packprep.execute.pipeline import build_share
from packprep.output.staging import CLAIMS, PLACES, staging_path
from packprep.schemas import check_files, read_manifest
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.file_lock import locked
from tests.helpers import command
from tests.helpers.corpus import build_options, texts, write_jsonl

ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """A build of 11 units and 4 windows, of three files."""
    files = {f"{number}.jsonl": texts(80, seed=number) for number in range(3)}
    return build_options(tmp_path, files, engine="hf", num_proc=1, unit_size=5_000, window=15_000)


def share(corpus: dict[str, Any], index: int, **options: Any) -> dict[str, Any]:
    return build_share(array(corpus, str(index), **options))


def array(corpus: dict[str, Any], index: str, **options: Any) -> BuildConfig:
    return BuildConfig(**{"num_tasks": 5} | corpus | options, executor="array", task_index=index)


def local(corpus: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The data of the manifest that one process makes."""
    output = str(Path(corpus["output"]).with_name("local"))
    return build(BuildConfig(**corpus | options | {"output": output})).data


def merge(corpus: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The data that the tasks' output has in the end.

    Its files match it, and nothing is left beside it.
    """
    manifest = build(array(corpus, "merge", **options))
    output = Path(corpus["output"])
    assert check_files(output, read_manifest(output), "sha256") == []
    assert manifest.run["executor"] == "array"
    assert not staging_path(output).exists()
    return manifest.data


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"holdout": 0.2, "order": "input"},
        {"max_tokens": 9_000},
        {"limit": 100},
        {"weights": "50,30,20"},
    ],
)
def test_five_tasks_in_any_order_and_one_of_them_twice_make_the_bytes_of_one_process(
    corpus: dict[str, Any], options: dict[str, Any]
) -> None:
    done = [share(corpus, index, **options) for index in (3, 1, 4, 3, 0, 2)]
    assert done[3]["slices tokenized here"] == 0
    if "max_tokens" in options:
        assert done[-1]["slices tokenized"] < done[-1]["slices"], "tasks end where the tokens do"
    else:
        assert done[-1]["slices tokenized"] == done[-1]["slices"] >= 5
    assert (
        done[-1]["windows written"] == done[-1]["windows"]
    )  # none where they need the whole input
    assert merge(corpus, **options) == local(corpus, **options)


def test_windows_whose_units_are_there_are_written_while_others_are_tokenized(
    corpus: dict[str, Any],
) -> None:
    done = [share(corpus, index, order="input", num_tasks=2) for index in (0, 1)]
    assert 0 == done[0]["windows written"] < done[1]["windows written"] == done[1]["windows"] > 3
    assert merge(corpus, order="input") == local(corpus, order="input")


def test_merging_does_what_no_task_has_done(corpus: dict[str, Any]) -> None:
    share(corpus, 2)
    assert merge(corpus) == local(corpus)


def test_options_that_need_the_whole_input_are_left_to_merging(corpus: dict[str, Any]) -> None:
    for index in range(5):
        assert share(corpus, index, packs_multiple_of=8)["windows written"] == 0
    assert merge(corpus, packs_multiple_of=8) == local(corpus, packs_multiple_of=8)


def test_a_task_after_the_end_finds_nothing_to_do(corpus: dict[str, Any]) -> None:
    merge(corpus)
    assert share(corpus, 1) == {"task": 1, "tasks": 5}
    assert not staging_path(Path(corpus["output"])).exists()


def test_the_number_of_units_is_written_down(corpus: dict[str, Any]) -> None:
    share(corpus, 0)
    places = json.loads((staging_path(Path(corpus["output"])) / PLACES).read_bytes())
    assert places["units"] == len(places["slices"]) == 11
    assert places["documents"] == 240


def test_a_local_build_goes_on_with_what_tasks_have_done(corpus: dict[str, Any]) -> None:
    share(corpus, 1)
    assert build(BuildConfig(**corpus)).data == local(corpus)


def test_tasks_of_another_build_are_refused(corpus: dict[str, Any]) -> None:
    share(corpus, 0)
    with pytest.raises(
        ConfigError, match=r"unfinished build with other settings .max_length was 64, now 128"
    ):
        share(corpus, 1, max_length=128)


def test_builds_and_tasks_keep_out_of_each_others_way(corpus: dict[str, Any]) -> None:
    output = Path(corpus["output"])
    share(corpus, 0)
    with locked(member_path(output), "a task is at work"):
        assert len(at_work(output)) == 1
        with pytest.raises(
            ConfigError, match=rf"is being built by tasks of an array .process {os.getpid()} on "
        ):
            build(BuildConfig(**corpus))
        with pytest.raises(
            ConfigError,
            match=r"tasks with other settings .max_length was 64, now 128. are running",
        ):
            share(corpus, 1, max_length=128)
    with (
        locked(output, "out is being built"),
        pytest.raises(StoppedError, match="is being built or signed off by"),
    ):
        share(corpus, 1)
    assert at_work(output) == {}


def test_a_directory_of_the_users_is_never_worked_in(corpus: dict[str, Any]) -> None:
    mine = staging_path(Path(corpus["output"]))
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="has files of something else"):
        share(corpus, 0)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("every", [64 << 20, 500])
def test_a_bad_row_is_named_whichever_task_finds_it(
    corpus: dict[str, Any], tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", every)
    write_jsonl(tmp_path / "1.jsonl", [*texts(60, seed=1), {"text": 7}])
    with pytest.raises(InputError, match=r"1.jsonl row 60 .line 61"):  # noqa: PT012 - any of them
        for index in range(5):
            share(corpus, index)
    for index in range(5):
        share(corpus, index, on_error="skip")
    assert merge(corpus, on_error="skip") == local(corpus, on_error="skip")


def test_what_another_task_works_on_is_left_to_it(corpus: dict[str, Any]) -> None:
    share(corpus, 1)
    claims = staging_path(Path(corpus["output"])) / CLAIMS
    with locked(claims / "slices-0000000", "claimed"):
        assert share(corpus, 0)["slices tokenized"] == 4
    assert share(corpus, 0)["slices tokenized"] == 5


def test_a_source_is_read_for_its_digest_once(corpus: dict[str, Any]) -> None:
    share(corpus, 0)
    path = Path(corpus["sources"][0])
    facts = path.stat()
    path.write_bytes(path.read_bytes().replace(b"cat", b"cow"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    share(corpus, 1)  # of the same size and time, so nobody looks
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with pytest.raises(ConfigError, match=r"0.jsonl changed"):
        share(corpus, 2)


def test_a_damaged_token_file_is_made_again_by_merging(corpus: dict[str, Any]) -> None:
    for index in range(4):
        share(corpus, index)
    file = next((staging_path(Path(corpus["output"])) / "tokens").glob("unit-000005*.arrow"))
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))
    share(corpus, 4)
    assert merge(corpus) == local(corpus)


def task(corpus: dict[str, Any], index: object) -> "subprocess.Popen[bytes]":
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in corpus.items() if key != "sources"
    ]
    line = [
        sys.executable,
        "-m",
        "packprep",
        "build",
        *corpus["sources"],
        *options,
        "--executor=array",
        "-q",
    ]
    line += [f"--task-index={index}", "--num-tasks=5"]
    return subprocess.Popen(line, env=os.environ | {"PYTHONPATH": str(ROOT)})


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


def test_merging_waits_for_tasks_at_work(corpus: dict[str, Any]) -> None:
    share(corpus, 0)
    with locked(member_path(Path(corpus["output"])), "a task is at work"):
        merging = task(corpus, "merge")
        time.sleep(4)
        assert merging.poll() is None
    assert merging.wait() == 0
    assert read_manifest(Path(corpus["output"])).data == local(corpus)


SLURM = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "5"}


@pytest.mark.parametrize(
    ("environment", "options", "expected"),
    [
        (SLURM | {"SLURM_ARRAY_TASK_STEP": "2"}, {}, (2, 5)),
        (SLURM, {"num_tasks": 5}, (4, 5)),
        (SLURM | {"SLURM_ARRAY_TASK_COUNT": "1"}, {"num_tasks": 9}, (7, 9)),
        ({"JOB_COMPLETION_INDEX": "3"}, {"num_tasks": 4}, (3, 4)),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_SIZE": "4"}, {}, (3, 4)),
        (SLURM, {"num_tasks": 2, "task_index": "1"}, (1, 2)),
    ],
)
def test_schedulers_say_which_task_this_is(
    environment: dict[str, str], options: dict[str, Any], expected: tuple[int, int]
) -> None:
    index, total, said = array_share(BuildConfig(executor="array", **options), environment)
    assert (index, total) == expected
    assert said == ("--task-index" if "task_index" in options else next(iter(environment)))


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({}, {}, "needs --task-index: give"),
        ({"JOB_COMPLETION_INDEX": "3"}, {}, "needs --num-tasks: give"),
        ({}, {"task_index": "5", "num_tasks": 5}, "from --task-index, is 5, expected 0 to 4"),
        (
            {"JOB_COMPLETION_INDEX": "9"},
            {"num_tasks": 5},
            "from JOB_COMPLETION_INDEX, is 9, expected 0 to 4",
        ),
    ],
)
def test_a_task_that_nobody_names_is_refused(
    environment: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        array_share(BuildConfig(executor="array", **options), environment)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "local", "num_tasks": 3}, "num_tasks is for executor array, not local"),
        (
            {"executor": "array", "ray_address": "auto"},
            "ray_address is for executor ray, not array",
        ),
        (
            {"executor": "ray", "keep_tokens": "store"},
            "keep_tokens is for one process, and executor ray has many",
        ),
        ({"executor": "ray", "isolate": True}, "replaces processes that die; leave out isolate"),
        ({"executor": "array", "task_index": "-1"}, "expected a number from 0, or merge"),
        ({"executor": "array", "sources": ("-",)}, "standard input cannot be read"),
        ({"executor": "array", "keep_tokens": "store"}, "keep_tokens is for one process"),
    ],
)
def test_options_that_contradict_the_executor_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildConfig(**options)


def test_the_command_prints_what_a_task_did(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    options = [
        f"--{key.replace('_', '-')}={value}" for key, value in corpus.items() if key != "sources"
    ]
    options.append("--seed=11")  # one window is of the two units of this task
    done = command.run(
        "build", *corpus["sources"], *options, "--executor=array", "--num-tasks=5", "--json"
    )
    assert done.code == 0, done.err
    assert "task 2 of 5, from JOB_COMPLETION_INDEX" in done.err
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


def test_a_share_is_no_whole_build(corpus: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one task of an array makes no manifest"):
        build(array(corpus, "0"))
