"""A source that changes during a build is an error, and neither output nor store has its rows."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from packprep import build
from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.execute import places, stages, tasks, work
from packprep.execute.job import Job, load_job
from packprep.execute.pipeline import build_share
from packprep.execute.ray_tasks import do
from packprep.execute.tasks import Task, Tasks
from packprep.inspect.verify import verify
from packprep.output.staging import JOB, staging_path
from packprep.sources.source import FileState
from packprep.support.errors import InputError
from tests.helpers.corpus import resolved, save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron, write_npy

VOCABULARY = 320
IDS = [[row + 2, row + 3, row + 4] for row in range(60)]
TEXTS = [f"document number {row} is short" for row in range(60)]
OLD = 1_600_000_000_000_000_000  # ns, when all files of a source are written


def _jsonl(folder: Path) -> Path:
    return write_jsonl(folder / "s.jsonl", [{"ids": ids} for ids in IDS])


def _table() -> pa.Table:
    return pa.table({"ids": pa.array(IDS, pa.list_(pa.int32()))})


def _parquet(folder: Path) -> Path:
    pq.write_table(_table(), folder / "s.parquet", row_group_size=20)
    return folder / "s.parquet"


def _saved(folder: Path) -> Path:
    Dataset(_table()).save_to_disk(folder / "saved")
    return folder / "saved"


def _lines(folder: Path) -> Path:
    (folder / "s.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return folder / "s.txt"


KINDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "jsonl": (_jsonl, "ids"),
    "parquet": (_parquet, "ids"),
    "saved": (_saved, "ids"),
    "megatron": (lambda folder: write_megatron(folder, IDS), "tokens"),
    "npy": (lambda folder: write_npy(folder, IDS), "tokens"),
    "dolma": (lambda folder: write_dolma(folder, IDS), "tokens"),
    "datatrove": (lambda folder: write_datatrove(folder, IDS), "tokens"),
    "txt": (_lines, "text"),
}
"""Functions that write a source into a folder and return its path; what it holds."""
HOLDS: dict[str, dict[str, Any]] = {
    "ids": {"vocab_size": VOCABULARY, "input_ids_column": "ids", "unit_size": 200},
    "tokens": {"vocab_size": VOCABULARY, "unit_size": 200},
    "text": {"engine": "hf", "unit_size": 400},
}


def _edit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def _replace(path: Path) -> None:
    """Put another file of the same size and time at its place."""
    facts, other = path.stat(), path.with_name("other")
    shutil.copyfile(path, other)
    _edit(other)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "edited": (_edit, "was written to"),
    "grown": (_grow, "had 1,"),
    "replaced": (_replace, "was replaced by another file"),
    "gone": (Path.unlink, "is gone"),
}


def _after(place: Any, name: str, change: Callable[[], object]) -> Any:
    """The function, which also makes the change once, when it returns or has given its first."""
    real = getattr(place, name)
    done: list[bool] = []

    def changing(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        if name == "read_slices":
            return slices(result)
        once()
        return result

    def once() -> None:
        if not done:
            done.append(True)
            change()

    def slices(result: Iterator[Any]) -> Iterator[Any]:
        yield next(result)
        once()
        yield from result

    return changing


MOMENTS: dict[str, tuple[Any, str]] = {
    "hashed": (work, "resolve"),
    "read": (tasks, "read_slices"),
    "written": (stages, "write_report"),
}


class Sources:
    """A source in a folder, and builds of it that share a token store."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        make, holds = KINDS[kind]
        (folder / "data").mkdir()
        self.path = make(folder / "data")
        self.files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
        for file in self.files:
            os.utime(file, ns=(OLD, OLD))
        self.right = {file: file.read_bytes() for file in self.files}
        self.options = HOLDS[holds] | {"sources": [str(self.path)], "num_proc": 1}
        if holds == "text":
            self.options["tokenizer"] = str(save_tokenizer(folder / "tokenizer"))

    def build(self, output: str, **options: Any) -> Any:
        named = {"output": str(self.folder / output), "max_length": 16}
        return build(config(**self.options | named | options)).data

    def changes(
        self, change: Callable[[Path], object], file: Path, moment: str, **options: Any
    ) -> str:
        """The error of a build during which a file changes. Nothing wrong is left behind."""
        place, name = MOMENTS[moment]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, _after(place, name, lambda: change(file)))
            with pytest.raises(InputError) as error:
                self.build("out", **options)
        assert not (self.folder / "out").exists()
        return str(error.value)

    def restore(self) -> None:
        for file, content in self.right.items():
            file.write_bytes(content)

    def check_store(self) -> None:
        """The right files make the right output again, also from the store."""
        self.restore()
        store = str(self.folder / "store")
        assert self.build("fresh") == self.build("after", keep_tokens=store)
        assert verify(self.folder / "after", level="full").sound


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param(kind, moment, marks=[] if number % 3 == at else pytest.mark.long)
        for number, kind in enumerate(KINDS)
        for at, moment in enumerate(MOMENTS)
    ],
)
def test_a_change_of_any_file_of_a_source_at_any_time_is_an_error(
    tmp_path: Path, kind: str, moment: str
) -> None:
    sources = Sources(tmp_path, kind)
    for file in sources.files:
        for change in CHANGES if kind == "jsonl" else ["edited"]:
            make, words = CHANGES[change]
            error = sources.changes(make, file, moment, keep_tokens=str(tmp_path / "store"))
            of_file = "it" if file == sources.path else str(file)
            begin = f"{sources.path} has changed since the build began ({of_file} {words}"
            assert error.startswith(begin)
            sources.restore()
    sources.check_store()


def test_a_mask_that_appears_beside_a_token_file_is_noticed(tmp_path: Path) -> None:
    sources = Sources(tmp_path, "datatrove")
    mask = sources.path.with_name(f"{sources.path.name}.loss")
    error = sources.changes(lambda path: path.write_bytes(bytes(180)), mask, "hashed")
    assert f"({mask} is new)" in error


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_a_change_is_named_instead_of_the_fault_that_it_makes(
    tmp_path: Path, on_error: str
) -> None:
    sources = Sources(tmp_path, "jsonl")
    spoil = partial(Path.write_bytes, data=b"{")
    assert_says(sources.changes(spoil, sources.path, "hashed", on_error=on_error), "(it had 1,")


@pytest.mark.long
def test_worker_processes_notice_it(tmp_path: Path) -> None:
    sources = Sources(tmp_path, "txt")
    store = str(tmp_path / "store")
    error = sources.changes(_edit, sources.path, "hashed", executor="isolated", keep_tokens=store)
    assert "(it was written to)" in error
    sources.check_store()


@pytest.mark.parametrize("moment", ["measured", "tokenized"])
def test_tasks_of_an_array_notice_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    sources = Sources(tmp_path, "jsonl")
    asked = {"output": str(tmp_path / "out"), "max_length": 16}
    options = config(**sources.options | asked, part="0/2")
    name = {"measured": "row_bytes", "tokenized": "cut_rows"}[moment]
    monkeypatch.setattr(places, name, _after(places, name, lambda: _edit(sources.path)))
    with refused(InputError, "s.jsonl has changed since the build began (it was written to)"):
        build_share(options)
    staging = staging_path(tmp_path / "out")
    assert [*staging.glob("tokens/*")] == []
    assert moment == "tokenized" or [*staging.glob("sizes/*")] == []


def saved_job(tmp_path: Path, sources: Sources) -> Job:
    """A build of the source as other processes find it."""
    options = config(**sources.options, output=str(tmp_path / "out"))
    staging = tmp_path / "out.incomplete"
    staging.mkdir()
    tokenizer = load_build_tokenizer(options.tokenizing, options.parsing, options.token_type)
    found = resolved(options, tmp_path)
    job = Job(config=options, staging=staging, tokenizer=tokenizer, sources=found)
    job.save({})
    return job


@pytest.mark.parametrize("task", [Task("measure", (0,)), Task("tokenize", (0, 2))])
def test_tasks_of_ray_notice_it(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = Sources(tmp_path, "jsonl")
    job = saved_job(tmp_path, sources)
    if task.kind == "tokenize":
        Tasks(job, lambda: None).do(Task("measure", (0,)))
    _edit(sources.path)
    answer = do(str(tmp_path), str(job.staging), f"then {task.name}", task)
    assert_says(str(answer["arguments"]), "has changed since the build began (it was written to)")
    assert [*job.staging.glob("tokens/*")] == []
    assert (job.staging / JOB).exists()


def test_a_process_elsewhere_does_not_compare_inodes(tmp_path: Path) -> None:
    sources = Sources(tmp_path, "jsonl")
    job = saved_job(tmp_path, sources)
    [loaded] = load_job(job.staging)[0].sources
    size = sources.path.stat().st_size
    assert loaded.files == (FileState(str(sources.path), size, OLD, None),)
    _replace(sources.path)
    assert (loaded.changed() is None, job.sources[0].changed() is None) == (True, False)
