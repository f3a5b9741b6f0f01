"""Parts of a job array and Ray make the bytes of one process, in any order, twice and at once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from packprep.config.options import BuildConfig
from packprep.look.verify import verify
from packprep.read import reading
from packprep.read.sources import content_digests
from packprep.run import local
from packprep.run.build import build, tokenize
from packprep.run.job import make_job
from packprep.run.parts import kept_digests, pack_part
from packprep.schemas.manifest import open_output
from packprep.support.errors import ConfigError, InputError
from packprep.support.progress import Silent
from tests.helpers.corpus import CHAT_TEMPLATE, save_tokenizer, texts

KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "chats": {"messages": "messages"},
    "turns": {"messages": "messages", "turns": "each"},
    "pairs": {"pairs": "chosen,rejected"},
    "mix": {"weights": [3, 1], "max_tokens": 3000, "multiple": 4},
    "holdout": {"holdout": 0.2, "order": "input", "group": "topic"},
    "plan": {"columns": "plan", "holdout": 0.2},
}
CHATS = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
EXAMPLES = Path(__file__).parent / "examples"
ROOT = Path(__file__).parents[1]


def rows(seed: int) -> list[dict[str, Any]]:
    """Rows that have the columns of all kinds."""
    made = texts(60, seed=seed)
    return [
        {
            "text": text,
            "chosen": text,
            "rejected": text[::-1],
            "topic": str(number % 7),
            "messages": [
                {"role": role, "content": f"{text} {turn}"}
                for turn in range(2)
                for role in ("user", "assistant")
            ],
        }
        for number, text in enumerate(made)
    ]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of two sources, of many splits and a few windows."""
    monkeypatch.setattr(reading.splits, "__defaults__", (4000,))
    folder = tmp_path
    files = [folder / f"{number}.jsonl" for number in range(2)]
    for number, path in enumerate(files):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(number)))
    return {
        "sources": [str(path) for path in files],
        "tokenizer": str(save_tokenizer(folder / "tokenizer", config=CHATS)),
        "max_length": 256,
        "window": 20_000,
        "num_proc": 1,
    }


def data_of(output: Path) -> Any:
    """What is equal for equal bytes."""
    data = open_output(output).manifest.data
    return {key: data[key] for key in ("columns", "splits", "files", "ledger", "plan")}


def built(options: Mapping[str, Any], output: Path, **more: Any) -> Any:
    """Build an output, and return what is equal for equal bytes. A plan has a store of its own."""
    if "columns" in options:
        more["store"] = f"{output} tokens"
    build(BuildConfig(**{**options, **more}, output=str(output)))
    return data_of(output)


def in_parts(options: Mapping[str, Any], folder: Path, seed: int, parts: int) -> Path:
    """An output by `tokenize` and `pack`, their parts in any order and some of them twice."""
    numbers = [*range(parts), *random.Random(seed).choices(range(parts), k=2)]
    random.Random(seed).shuffle(numbers)
    tokens = {name: options[name] for name in options if name not in OF_PACKS}
    for number in numbers:
        tokens["part"] = f"{number}/{parts}"
        made = tokenize(BuildConfig(**tokens, store=str(folder / "tokens")))
    assert made.complete
    packs = {name: options[name] for name in options if name in (*OF_PACKS, "num_proc", "pairs")}
    packs |= {"sources": [str(made.place)], "output": str(folder / "parts")}
    random.Random(seed + 1).shuffle(numbers)
    seen = set[int]()
    for number in numbers:
        output = pack_part(BuildConfig(**packs, part=f"{number}/{parts}"))
        seen.add(number)
        assert output is not None or len(seen) < parts
    return folder / "parts"


OF_PACKS = (
    *("max_length", "window", "weights", "max_tokens", "multiple", "holdout", "order", "columns"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_make_the_bytes_of_one_process(
    options: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    options |= KINDS[kind]
    alone = built(options, tmp_path / "alone")
    output = in_parts(options, tmp_path, seed=len(kind), parts=3)
    assert data_of(output) == alone
    assert verify(output) == []
    assert not list(tmp_path.glob("parts.*"))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_processes_make_the_bytes_of_one(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Chats are rendered in processes, from so many bytes on."""
    options |= KINDS[kind]
    alone = built(options, tmp_path / "alone")
    monkeypatch.setattr(local, "LEAST", 1)
    assert built(options, tmp_path / "three", num_proc=3) == alone


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ray_makes_the_bytes_of_one_process(
    options: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    options |= KINDS[kind]
    alone = built(options, tmp_path / "alone")
    assert built(options, tmp_path / "ray", num_proc=2, executor="ray") == alone


@pytest.mark.long
def test_the_first_bad_row_of_all_tasks_is_reported_whatever_the_executor(
    options: dict[str, Any], tmp_path: Path
) -> None:
    for path in map(Path, options["sources"]):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:40], "{oops\n", *lines[40:]]))
    found = set()
    for executor in ("local", "ray"):
        config = BuildConfig(**options, output=str(tmp_path / executor), executor=executor)
        with pytest.raises(InputError) as error:
            build(config)
        found.add(str(error.value))
    assert len(found) == 1
    assert "0.jsonl row 40" in found.pop()


@pytest.mark.long
def test_parts_that_run_at_once_and_are_killed_leave_the_same_output(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build(BuildConfig(**options, output=str(tmp_path / "alone")))
    entry = tokenize(BuildConfig(**{**options, "store": str(tmp_path / "tokens")}))
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({"window": 20_000, "max_length": 256}))
    command = [sys.executable, "-m", "packprep", "pack", str(entry.place), "-q"]
    command += ["-c", str(tmp_path / "w.yaml"), "-o", str(tmp_path / "out"), "--part"]
    chance = random.Random(0)
    for wait in (0.3, 0.6, None):
        running = [subprocess.Popen([*command, f"{n}/3"], cwd=ROOT) for n in (2, 0, 1, 0, 2)]
        if wait is not None:
            time.sleep(wait * chance.random() + 0.3)
            for process in running:
                process.send_signal(signal.SIGKILL)
        codes = [process.wait() for process in running]
    assert codes == [0] * 5
    assert data_of(tmp_path / "out") == data_of(tmp_path / "alone")
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize(
    ("options_too", "words"),
    [
        ({"overwrite": True}, "overwrite"),
        ({"limit": 5}, "limit"),
        ({"executor": "ray"}, "executor"),
        ({"sources": ["-"]}, "standard input"),
        ({"sources": [{"path": "a.jsonl", "limit": 5}]}, "limit"),
        ({"part": "3/3"}, "I/N"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_part_refuses_what_parts_cannot_keep(options_too: dict[str, Any], words: str) -> None:
    options = {"sources": ["a.jsonl"], "tokenizer": "t", "part": "0/3", **options_too}
    with pytest.raises(ConfigError, match=words):
        BuildConfig(**options)


def test_a_part_of_a_store_with_open_splits_or_of_a_build_is_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="packprep tokenize"):
        build(BuildConfig(**options, output=str(tmp_path / "out"), part="0/2"))
    store = str(tmp_path / "tokens")
    entry = tokenize(BuildConfig(**options, store=store, part="0/2"))
    assert not entry.complete
    with pytest.raises(ConfigError, match="open splits"):
        pack_part(BuildConfig(sources=[store], output=str(tmp_path / "out"), part="0/2"))


@given(count=st.integers(1, 6))
def test_kept_digests_are_those_of_the_files_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    folder = tmp_path_factory.mktemp("digests")
    files = [folder / f"{number}.jsonl" for number in range(count)]
    for path in files:
        path.write_text(json.dumps({"text": path.name}) + "\n")
    config = BuildConfig(sources=[str(path) for path in files], ids="text", tokenizer=9, store="s")
    sources = make_job(config, Silent(), packs=False).sources
    for _ in range(2):
        found = kept_digests(folder / "kept", sources)
        assert found == content_digests(sources)
    assert len([*(folder / "kept").iterdir()]) == len(files)
    at_urls = [replace(each, state=()) for each in sources]  # they may have changed
    files[0].write_text('{"text": "other"}\n')
    assert kept_digests(folder / "kept", at_urls) == content_digests(at_urls) != found


def slurm(stage: str, index: int, count: int) -> tuple[list[str], dict[str, str]]:
    """Command of a task of the example for Slurm, and what Slurm sets."""
    environment = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_COUNT": str(count)}
    return ["bash", str(EXAMPLES / "slurm.sbatch"), stage], environment


def kubernetes(stage: str, index: int, count: int) -> tuple[list[str], dict[str, str]]:
    """Command of a task of the example for Kubernetes, and what that sets."""
    jobs = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    spec = next(job for job in jobs if job["metadata"]["labels"]["stage"] == stage)["spec"]
    assert spec["completionMode"] == "Indexed"
    container = spec["template"]["spec"]["containers"][0]
    script = container["args"][0]
    assert script.endswith(f"/{spec['completions']}")
    script = script.removesuffix(str(spec["completions"])) + str(count)
    return [*container["command"], script], {"JOB_COMPLETION_INDEX": str(index)}


@pytest.mark.long
@pytest.mark.parametrize("example", [slurm, kubernetes])
def test_the_tasks_of_an_example_run_in_any_order_and_twice(
    options: dict[str, Any],
    tmp_path: Path,
    example: Callable[[str, int, int], tuple[list[str], dict[str, str]]],
) -> None:
    (tmp_path / "docs").mkdir()
    for path in map(Path, options["sources"]):
        path.rename(tmp_path / "docs" / path.name)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "packprep"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m packprep "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    for stage in ("tokenize", "pack"):
        for index in (2, 0, 2, 1, 0):
            command, own = example(stage, index, 3)
            subprocess.run(command, cwd=tmp_path, env=environment | own, check=True)
    config: dict[str, Any] = {
        "sources": [str(tmp_path / "docs")],
        "tokenizer": str(tmp_path / "tokenizer"),
    }
    build(BuildConfig(**config, max_length=8192, output=str(tmp_path / "alone")))
    assert data_of(tmp_path / "packed") == data_of(tmp_path / "alone")
