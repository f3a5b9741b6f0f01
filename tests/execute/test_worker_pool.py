"""A row that harms its tokenizer does not change the rest of the build.

It makes the same bytes, or ends with a sentence that names the row.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import worker_pool
from packprep.execute.quarantine import rows_that_fail
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.schemas import check_files
from packprep.support.errors import InputError, StoppedError
from tests.helpers import warm
from tests.helpers.corpus import RecordedProgress, build_options, texts, write_jsonl

POISONED = ("-m", "tests.faults.poisoned_worker")


@pytest.fixture
def in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers as a build does, not as forks of a process that imported everything."""
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, *POISONED))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A build of four units in worker processes that some texts kill."""
    monkeypatch.setattr(
        worker_pool, "COMMAND", warm.command("python", *POISONED, RAYON_NUM_THREADS="1")
    )
    files = {"a.jsonl": texts(40, seed=1), "b.jsonl": texts(40, seed=2)}
    return build_options(tmp_path, files, engine="hf", unit_size=7_000, num_proc=1, isolate=True)


def poison(tmp_path: Path, rows: dict[int, str]) -> list[str]:
    """Put texts into rows of b.jsonl; gives all its rows."""
    documents = [rows.get(number, text) for number, text in enumerate(texts(40, seed=2))]
    write_jsonl(tmp_path / "b.jsonl", documents)
    return documents


def in_threads(corpus: dict[str, Any], tmp_path: Path, **options: Any) -> dict[str, Any]:
    settings = {"output": str(tmp_path / "threads"), "isolate": False}
    return build(BuildConfig(**corpus | options | settings)).data


def test_processes_give_the_bytes_that_threads_give(
    corpus: dict[str, Any], in_a_process: None, tmp_path: Path
) -> None:
    isolated = build(BuildConfig(**corpus | {"num_proc": 2}))
    assert isolated.data == in_threads(corpus, tmp_path)


@pytest.mark.parametrize("what", ["<oom>", "<segfault>", "<hang>"])
def test_a_worker_that_dies_once_is_replaced_and_its_slice_retried(
    corpus: dict[str, Any], tmp_path: Path, what: str
) -> None:
    (tmp_path / "order").write_text(what)
    poison(tmp_path, {25: f"<once {tmp_path / 'order'}>"})
    said = RecordedProgress()
    options = {"unit_timeout": 5} if what == "<hang>" else {}
    isolated = build(BuildConfig(**corpus | options), progress=said)
    assert isolated.data == in_threads(corpus, tmp_path)
    retried = [line for line in said.lines if line.endswith("; trying again")]
    assert len(retried) == 1
    assert "b.jsonl rows" in retried[0]


def test_a_slice_that_fails_three_times_stops_the_build_and_names_its_rows(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    poison(tmp_path, {25: "x <segfault>"})
    said = RecordedProgress()
    with pytest.raises(StoppedError) as stopped:
        build(BuildConfig(**corpus), progress=said)
    assert len([line for line in said.lines if line.endswith("; trying again")]) == 2
    assert "unit 2, " in str(stopped.value)
    assert f"{tmp_path / 'b.jsonl'} rows " in str(stopped.value)
    assert "3 times the process that tokenized them ended with SIGSEGV" in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_on_error_skip_goes_on_without_the_poisoned_rows_and_keeps_them(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    documents = poison(tmp_path, {3: "a <oom> b", 25: "<segfault>", 26: "<segfault> again"})
    with pytest.raises(StoppedError):
        build(BuildConfig(**corpus))
    said = RecordedProgress()
    manifest = build(BuildConfig(**corpus | {"on_error": "skip"}), progress=said)
    assert any(line.startswith("resuming after ") for line in said.lines)
    output = tmp_path / "out"
    assert check_files(output, manifest, "sha256") == []
    assert list(verify(output, level="full").findings) == []
    kept = [json.loads(line) for line in (output / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["row"], line["document"], line["text"]) for line in kept] == [
        (row, 40 + row, documents[row]) for row in (3, 25, 26)
    ]
    assert {line["source"] for line in kept} == {str(tmp_path / "b.jsonl")}
    assert [line["reason"].split(" ", 5)[5] for line in kept] == [
        "was killed, perhaps by the system for its memory",
        "ended with SIGSEGV",
        "ended with SIGSEGV",
    ]
    report = read_report(output)
    assert report["documents"]["skipped"] == {"poisoned": 3}
    assert report["sources"][1]["documents"]["skipped"] == {"poisoned": 3}
    rows = [{"text": None} if "<" in text else text for text in documents]
    write_jsonl(tmp_path / "b.jsonl", rows)
    plain = in_threads(corpus, tmp_path, on_error="skip")
    assert [entry["sha256"] for entry in plain["files"]] == [
        entry["sha256"] for entry in manifest.data["files"]
    ]


def test_a_row_that_hangs_or_grows_is_found(
    corpus: dict[str, Any], in_a_process: None, tmp_path: Path
) -> None:
    poison(tmp_path, {12: "<leak>"})
    options = {"on_error": "skip", "max_memory": 10**9, "unit_size": 100}
    build(BuildConfig(**corpus | options))
    line = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert line["row"] == 12
    assert "MB of memory, more than its share of" in line["reason"]


def test_bad_input_in_a_worker_is_the_sentence_it_is_in_a_thread(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    poison(tmp_path, {5: "\u0000"})
    with pytest.raises(InputError) as isolated:
        build(BuildConfig(**corpus | {"sources": (str(tmp_path / "gone.jsonl"),)}))
    assert "no such file" in str(isolated.value)


@pytest.mark.parametrize("bad", [[], [0], [99], [3, 4], [0, 50, 99], list(range(100))])
def test_halving_finds_every_row_that_fails_alone(bad: list[int]) -> None:
    calls = []

    def failure(first: int, last: int) -> str | None:
        calls.append((first, last))
        return "died" if any(first <= row < last for row in bad) else None

    assert rows_that_fail(100, failure) == [(row, "died") for row in bad]
    assert len(calls) <= 1 + 14 * len(bad)
