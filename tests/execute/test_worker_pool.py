"""A row that harms its tokenizer does not change the rest of the build.

It makes the same bytes, or ends with a sentence that names the row.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import worker_pool
from packprep.support.errors import InputError, StoppedError
from tests.helpers import warm
from tests.helpers.corpus import RecordedProgress, build_options, texts, write_jsonl
from tests.helpers.errors import refused

POISONED = ("-m", "tests.faults.poisoned_worker")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A build of two units in worker processes that some texts kill."""
    forked = warm.command("python", *POISONED, RAYON_NUM_THREADS="1")
    monkeypatch.setattr(worker_pool, "COMMAND", forked)
    files = {"a.jsonl": texts(15, seed=1), "b.jsonl": texts(15, seed=2)}
    return build_options(
        tmp_path, files, engine="hf", unit_size=7_000, num_proc=1, executor="isolated"
    )


def poison(folder: Path, text: str) -> None:
    """Put a text into row 12 of b.jsonl."""
    rows = texts(15, seed=2)
    write_jsonl(folder / "b.jsonl", [*rows[:12], text, *rows[13:]])


def in_threads(corpus: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    settings = {"output": str(tmp_path / "threads"), "executor": "local"}
    return build(BuildConfig(**corpus | settings)).data


@pytest.mark.long
def test_processes_that_import_everything_give_the_bytes_that_threads_give(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, *POISONED))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert build(BuildConfig(**corpus | {"num_proc": 2})).data == in_threads(corpus, tmp_path)


@pytest.mark.parametrize(
    "what",
    ["<segfault>", *(pytest.param(what, marks=pytest.mark.long) for what in ("<oom>", "<hang>"))],
)
def test_a_worker_that_dies_once_is_replaced_and_its_slice_retried(
    corpus: dict[str, Any], tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "TIMEOUT", 5.0)
    (tmp_path / "order").write_text(what)
    poison(tmp_path, f"<once {tmp_path / 'order'}>")
    said = RecordedProgress()
    assert build(BuildConfig(**corpus), progress=said).data == in_threads(corpus, tmp_path)
    [retried] = [line for line in said.lines if line.endswith("; trying again")]
    assert "b.jsonl rows" in retried


@pytest.mark.long
def test_a_slice_that_fails_three_times_stops_the_build_and_names_its_rows(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    poison(tmp_path, "x <segfault>")
    options = {"on_error": "skip", "unit_size": 100}
    said, rows = RecordedProgress(), f"{tmp_path / 'b.jsonl'} rows "
    with refused(StoppedError, "unit ", rows, 12, "3 times the process", "ended with SIGSEGV"):
        build(BuildConfig(**corpus | options), progress=said)
    assert len([line for line in said.lines if line.endswith("; trying again")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_bad_row_in_a_worker_is_the_error_that_it_is_in_a_thread(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = """'{"error": "DocumentError", "arguments": [1, 12, "it is bad"]}'"""
    monkeypatch.setattr(worker_pool, "COMMAND", ("sh", "-c", f"echo '{{}}'; read x; echo {answer}"))
    with refused(InputError, "b.jsonl row 12", "it is bad"):
        build(BuildConfig(**corpus))


@pytest.mark.parametrize(
    ("does", "memory", "says"),
    [
        ("for i in 1 2 3 4 5 6 7 8 9; do printf .; sleep 0.3; done; echo '{}'", 10**9, None),
        ("exec sleep 60", 10_000, "MB of memory, more than its share of 0 MB"),
        ("printf ..; exec sleep 60", 10**9, "made no progress for 2 seconds"),
        ("echo no sense >&2; kill -SEGV $$", 10**9, "ended with SIGSEGV: no sense"),
        ("exit 7", 10**9, "ended with code 7"),
        ("kill -KILL $$", 10**9, "was killed, perhaps by the system for its memory"),
    ],
)
def test_a_worker_has_time_as_long_as_it_makes_progress_and_little_memory(
    corpus: dict[str, Any],
    does: str,
    memory: int,
    says: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "COMMAND", ("sh", "-c", does))
    job: Any = type("Job", (), {"config": BuildConfig(**corpus), "staging": Path()})
    worker = worker_pool._Worker(job, memory)
    try:
        if says is None:
            assert worker.answer(2.0, threading.Event()) == {}
        else:
            with refused(worker_pool.WorkerDied, says):
                worker.answer(2.0, threading.Event())
    finally:
        worker.kill()
