"""More is appended to an output.

What it holds stays as it is, and the whole is what `packprep merge` would make.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep import build
from packprep.derive import signing
from packprep.derive.merge import merge
from packprep.execute import append as appending
from packprep.execute import stages, window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output.directory import LocalTarget
from packprep.output.progress import build_progress
from packprep.output.staging import appended_path, staging_path
from packprep.schemas import check_files, read_manifest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import RecordedProgress, disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.files import config


def options_in(folder: Path) -> dict[str, Any]:
    """Options of a build in several windows and shards; its sources are in `folder / "data"`."""
    return {
        "sources": (str(folder / "data" / "*.jsonl"),),
        "output": str(folder / "out"),
        "engine": "hf",
        "tokenizer": str(folder / "tok"),
        "max_length": 64,
        "unit_size": 4_000,
        "window": 8_000,
        "shard_size": 8_000,
        "num_proc": 1,
    }


def put(folder: Path, *numbers: int) -> None:
    (folder / "data").mkdir(exist_ok=True)
    for number in numbers:
        write_jsonl(folder / "data" / f"{number}.jsonl", texts(40, seed=number))


def append(folder: Path, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """The data of the manifest, and what was said."""
    heard = RecordedProgress()
    manifest = build(config(append=True, **options_in(folder) | more), progress=heard)
    output = folder / "out"
    assert read_manifest(output).data == manifest.data
    assert check_files(output, manifest, "sha256") == []
    left = [path for path in folder.glob("out?*") if path.suffix != ".lock"]
    assert left == [], "nothing is left beside it"
    return manifest.data, heard.lines


def merged(folder: Path, *parts: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Output of `merge` of a build of each of these parts."""
    outputs = []
    for place, numbers in enumerate(parts):
        sources = [str(folder / "data" / f"{number}.jsonl") for number in numbers]
        outputs.append(folder / f"part-{place}")
        own = {"sources": sources, "output": str(outputs[-1])}
        build(config(**options_in(folder) | more | own))
    return merge(outputs, folder / "merged").data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with an output of the first file; what it is after the second one is appended."""
    folder = tmp_path_factory.mktemp("made")
    save_tokenizer(folder / "tok")
    put(folder, 0)
    build(config(**options_in(folder)))
    put(folder, 1)
    expected = merged(folder, (0,), (1,))
    (folder / "data" / "1.jsonl").unlink()
    return folder, expected


@pytest.fixture
def here(tmp_path: Path, made: tuple[Path, dict[str, Any]]) -> Path:
    """A folder with an output of the first file, to which a second one is to be appended."""
    for name in ("data", "tok", "out"):
        shutil.copytree(made[0] / name, tmp_path / name)
    put(tmp_path, 1)
    return tmp_path


@pytest.fixture
def expected(made: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    return made[1]


@pytest.mark.parametrize(
    "more",
    [
        {"holdout": 0.2},
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"order": "input", "packs_multiple_of": "8:fill"}, marks=pytest.mark.long),
    ],
)
def test_files_that_are_new_become_windows_as_if_built_alone_and_merged(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    save_tokenizer(tmp_path / "tok")
    put(tmp_path, 0, 1)
    first, _ = append(tmp_path, **more)  # there is nothing yet, so this is a plain build
    assert "generations" not in first["inputs"]
    put(tmp_path, 2, 3)
    second, said = append(tmp_path, **more)
    data = tmp_path / "data"
    assert said[-2:] == [
        f"2 files ({data}/0.jsonl, {data}/1.jsonl) are in {tmp_path}/out already",
        f"2 files ({data}/2.jsonl, {data}/3.jsonl) are appended to {tmp_path}/out",
    ]
    put(tmp_path, 4)
    third, _ = append(tmp_path, **more)
    assert third == merged(tmp_path, (0, 1), (2, 3), (4,), **more)
    assert [source["first_document"] for source in third["sources"]] == [0, 40, 80, 120, 160]
    generations = third["inputs"]["generations"]
    assert generations[:2] == second["inputs"]["generations"]
    assert [generation["documents"] for generation in generations] == [80, 80, 40]


def test_an_output_that_grew_has_its_old_files_and_can_be_read_by_everything(
    here: Path, expected: dict[str, Any]
) -> None:
    def shards() -> list[tuple[int, int]]:
        found = (path.stat() for path in sorted((here / "out").glob("*.arrow")))
        return [(stat.st_ino, stat.st_mtime_ns) for stat in found]

    before, output = shards(), here / "out"
    assert append(here)[0] == expected
    assert shards()[: len(before)] == before
    assert len(shards()) > len(before) > 1
    assert verify(output, level="full", sample=50).sound
    packs = load_from_disk(str(output))
    assert len(PackedShards(output, verify=True)) == len(packs)
    assert {number // 40 for number in packs[len(packs) - 1]["document_ids"]} == {1}
    assert f"{here}/data/1.jsonl row 7" in run("show", output, "--doc", "data/1.jsonl:7").out
    assert run("report", output, "-o", here / "page.html").code == 0
    assert "\nbuilds              2\n" in run("stats", output).out
    assert read_report(output)["documents"]["in"] == 80

    shutil.copyfile(here / "data" / "1.jsonl", here / "data" / "a copy.jsonl")
    again, said = append(here)
    assert (again, said[-1]) == (expected, f"nothing to append: {output} stays as it is")
    write_jsonl(here / "data" / "1.jsonl", [*texts(40, seed=1), "one more"])
    with pytest.raises(ConfigError, match=r"1.jsonl is in .*out already, with other content"):
        append(here)
    assert read_manifest(output).data == expected


def test_the_options_in_the_output_are_those_of_the_next_append(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tok")
    put(tmp_path, 0)
    append(tmp_path)
    settings = ("-c", tmp_path / "out" / "build.yaml", "--append")
    assert "no new sources" in run("build", *settings, "--dry-run").out
    for number in (1, 2):
        put(tmp_path, number)
        given = [] if number == 1 else [tmp_path / "data" / "2.jsonl"]
        dry = run("build", *given, *settings, "--dry-run").out
        assert run("build", *given, *settings, "-q").code == 0
    assert read_manifest(tmp_path / "out").data == merged(tmp_path, (0,), (1,), (2,))
    new = read_manifest(tmp_path / "part-2").ledger["tokens_in"]
    assert f"tokens_in      {new:,}" in dry
    assert (tmp_path / "out" / "build.yaml").read_text() == (
        tmp_path / "merged" / "build.yaml"
    ).read_text().replace(f"{tmp_path}/merged", f"{tmp_path}/out").replace(
        f"- {tmp_path}/data/0.jsonl\n- {tmp_path}/data/1.jsonl\n", f"- {tmp_path}/data/*.jsonl\n"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_length": 32}, r"max_length was 64, now 32\); .* \(-c .*build.yaml has them\)"),
        ({"columns": ["document_ids"]}, "columns"),
        ({"eos": "none"}, "eos was 'auto', now 'none'"),
        ({"holdout": 0.1}, "holdout"),
    ],
)
def test_other_settings_are_refused_before_anything_is_tokenized(
    here: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        append(here, **more)
    assert not appended_path(here / "out").exists()


def test_an_output_that_is_a_mix_or_no_output_gets_nothing_appended(here: Path) -> None:
    shutil.rmtree(here / "out")
    build(config(**options_in(here) | {"weights": "1"}))
    put(here, 2)
    with pytest.raises(ConfigError, match="out is a mix"):
        append(here)
    shutil.rmtree(here / "out")
    (here / "out").mkdir()
    (here / "out" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not an output of packprep"):
        append(here)


def test_columns_that_new_rows_make_of_another_type_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    save_tokenizer(tmp_path / "tok")
    (tmp_path / "data").mkdir()
    for name, score in (("0.jsonl", 1), ("1.jsonl", 0.5)):
        rows = [{"text": name + text, "score": score} for text in texts(20)]
        write_jsonl(tmp_path / "data" / name, rows)
        if score == 1:
            append(tmp_path, carry="score")
    with pytest.raises(ConfigError, match=r"do not fit .*column types"):
        append(tmp_path, carry="score")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out"]


def test_a_few_documents_may_leave_a_split_as_it_is(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tok")
    put(tmp_path, 0)
    first, _ = append(tmp_path, holdout=0.1)
    one = ["one document"]  # number 0 of its build, which the seed holds out
    write_jsonl(tmp_path / "data" / "1.jsonl", one)
    data, _ = append(tmp_path, holdout=0.1)
    assert data["splits"]["train"] == first["splits"]["train"]
    assert data["splits"]["validation"]["packs"] == first["splits"]["validation"]["packs"] + 1
    write_jsonl(tmp_path / "data" / "2.jsonl", [""])
    with pytest.raises(InputError, match="no document is left"):
        append(tmp_path, holdout=0.1)
    assert verify(tmp_path / "out", level="full").sound


STEPS: list[tuple[Any, str, int, str | None]] = [
    (stages, "Windows", 0, "pack"),
    (window_files, "write_shard", 2, "pack"),
    (LocalTarget, "publish", 0, "sign off"),  # what is new is signed, but has not got its name
    (appending, "merge_locked", 0, "merge"),
    (signing, "name_shards", 0, "merge"),
    (signing, "write_manifest", 0, "merge"),
    (LocalTarget, "publish", 1, "merge"),
    (LocalTarget, "remove_replaced", 6, None),  # all is done but for what is left
]


@pytest.mark.parametrize(("place", "name", "calls", "stage"), STEPS)
def test_an_append_that_was_stopped_anywhere_goes_on_with_the_same_command(
    here: Path, expected: dict[str, Any], place: Any, name: str, calls: int, stage: str | None
) -> None:
    first = read_manifest(here / "out")
    with disk_fails(place, name, calls):
        append(here)
    now = build_progress(here / "out")
    if stage is None:
        assert now is None
    else:
        assert now is not None
        assert read_manifest(here / "out").data == first.data
        assert (now["state"], now["documents"]) == ("stopped", 40)
        assert (now["documents_there"], now["packs_there"]) == (40, first.num_packs)
        assert now["stage"] == stage
        put(here, 2)  # what did not finish is not mixed with another append
        pattern = r"unfinished (append|build) .*1 source file before, 2.*or del"
        with pytest.raises(ConfigError, match=pattern):
            append(here)
        (here / "data" / "2.jsonl").unlink()
    if name == "name_shards":  # as that sentence says
        part = appended_path(here / "out")
        for left in (part, staging_path(part)):
            shutil.rmtree(left, ignore_errors=True)
    assert append(here)[0] == expected


def test_a_swap_that_two_renames_make_is_finished(
    here: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def dying(path: Path, target: Path) -> Path:
        if path == staging_path(here / "out"):
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr("packprep.output.directory.exchange", lambda *_: False)
        patch.setattr(Path, "rename", dying)
        with pytest.raises(OSError, match="Input/output"):
            append(here)
    assert not (here / "out").exists()
    data, said = append(here)
    assert (data, said[-1].startswith("nothing to append")) == (expected, True)


def test_a_build_of_the_whole_output_that_was_stopped_is_not_lost(
    here: Path, expected: dict[str, Any]
) -> None:
    with disk_fails(window_files, "write_shard"):
        build(config(**options_in(here) | {"max_length": 32, "overwrite": True}))
    with pytest.raises(ConfigError, match=r"unfinished build of all of .*first, or delete"):
        append(here)
    shutil.rmtree(staging_path(here / "out"))
    assert append(here)[0] == expected


@pytest.mark.long
def test_tasks_of_an_array_append_too_and_those_that_come_late_find_nothing_to_do(
    here: Path, expected: dict[str, Any]
) -> None:
    tasks = options_in(here) | {"append": True}
    for index in (1, 0):
        done = build_share(config(**tasks, part=f"{index}/2"))
    assert done["slices tokenized"] == done["slices"]
    assert append(here, part="merge")[0] == expected
    assert build_share(config(**tasks, part="0/2")) == {"task": 0, "tasks": 2}
    assert sorted(path.name for path in here.glob("out*")) == ["out"]
