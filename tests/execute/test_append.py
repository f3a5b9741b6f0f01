"""More is appended to an output.

What it holds stays as it is, and the whole is what `packprep merge` would make.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep import BuildConfig, build
from packprep.derive import merge as merging
from packprep.derive import signing
from packprep.derive.merge import merge
from packprep.execute import append as appending
from packprep.execute import stages, window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.report_file import read_report
from packprep.loaders import PackedShards
from packprep.output.progress import build_progress
from packprep.output.staging import appended_path, staging_path
from packprep.schemas import check_files, read_manifest
from packprep.support.errors import ConfigError, InputError
from packprep.support.file_lock import locked
from tests.helpers.command import run
from tests.helpers.corpus import RecordedProgress, disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.files import config


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of builds in several windows and shards; sources are in `tmp_path / "data"`."""
    (tmp_path / "data").mkdir()
    return {
        "sources": (str(tmp_path / "data" / "*.jsonl"),),
        "output": str(tmp_path / "out"),
        "engine": "hf",
        "tokenizer": str(save_tokenizer(tmp_path / "tok")),
        "max_length": 64,
        "unit_size": 4_000,
        "window": 16_000,
        "shard_size": 8_000,
        "num_proc": 1,
    }


def put(tmp_path: Path, *numbers: int) -> None:
    for number in numbers:
        write_jsonl(tmp_path / "data" / f"{number}.jsonl", texts(80, seed=number))


def append(options: dict[str, Any], **more: Any) -> tuple[dict[str, Any], list[str]]:
    """The data of the manifest, and what was said."""
    heard = RecordedProgress()
    manifest = build(config(append=True, **options | more), progress=heard)
    output = Path(options["output"])
    assert read_manifest(output).data == manifest.data
    assert check_files(output, manifest, "sha256") == []
    assert [path for path in output.parent.glob("out?*") if path.suffix != ".lock"] == [], (
        "nothing is left beside it"
    )
    return manifest.data, heard.lines


def merged(
    tmp_path: Path, options: dict[str, Any], *parts: tuple[int, ...], **more: Any
) -> dict[str, Any]:
    """Output of `merge` of a build of each of these parts."""
    outputs = []
    for place, numbers in enumerate(parts):
        sources = [str(tmp_path / "data" / f"{number}.jsonl") for number in numbers]
        outputs.append(tmp_path / f"part-{place}")
        build(config(**options | more | {"sources": sources, "output": str(outputs[-1])}))
    return merge(outputs, tmp_path / "merged").data


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"holdout": 0.2},
        {"order": "input", "packs_multiple_of": 8, "remainder": "fill"},
        {"columns": ()},
    ],
)
def test_files_that_are_new_become_windows_as_if_built_alone_and_merged(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any]
) -> None:
    put(tmp_path, 0, 1)
    first, _ = append(options, **more)  # there is nothing yet, so this is a plain build
    assert "generations" not in first["inputs"]
    put(tmp_path, 2, 3)
    second, said = append(options, **more)
    data = tmp_path / "data"
    assert said[-2:] == [
        f"2 files ({data}/0.jsonl, {data}/1.jsonl) are in {tmp_path}/out already",
        f"2 files ({data}/2.jsonl, {data}/3.jsonl) are appended to {tmp_path}/out",
    ]
    put(tmp_path, 4)
    third, _ = append(options, **more)
    assert third == merged(tmp_path, options, (0, 1), (2, 3), (4,), **more)
    assert [source["first_document"] for source in third["sources"]] == [0, 80, 160, 240, 320]
    generations = third["inputs"]["generations"]
    assert generations[:2] == second["inputs"]["generations"]
    assert [generation["documents"] for generation in generations] == [160, 160, 80]


def test_shards_that_are_there_are_the_same_files_under_new_names(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0)
    append(options)
    before = {
        path.stat().st_ino: path.stat().st_mtime_ns
        for path in sorted((tmp_path / "out").glob("*.arrow"))
    }
    put(tmp_path, 1)
    append(options)
    after = {
        path.stat().st_ino: path.stat().st_mtime_ns
        for path in sorted((tmp_path / "out").glob("*.arrow"))
    }
    assert list(after.items())[: len(before)] == list(before.items())
    assert len(after) > len(before) > 1


def test_nothing_new_changes_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    put(tmp_path, 0, 1)
    first, _ = append(options)
    shutil.copyfile(tmp_path / "data" / "1.jsonl", tmp_path / "data" / "a copy.jsonl")
    again, said = append(options)
    assert again == first
    assert said[-1] == f"nothing to append: {tmp_path}/out stays as it is"


def test_every_command_reads_what_was_appended_to(tmp_path: Path, options: dict[str, Any]) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1)
    append(options)
    output = tmp_path / "out"
    verified = run("verify", output, "--level", "full", "--sample", "50")
    assert verified.code == 0
    assert "sound" in verified.out
    place = run("show", output, "--find", f"{tmp_path}/data/1.jsonl:7")
    assert place.code == 0
    assert "pack" in place.out
    packs = load_from_disk(str(output))
    last = packs[len(packs) - 1]
    assert len(PackedShards(output, verify=True)) == len(packs)
    assert {number // 80 for number in last["document_ids"]} == {1}
    traced = run("show", output, "--rows", "--pack", len(packs) - 1, "--segment", 0)
    assert f"data/1.jsonl  {last['document_ids'][0] - 80:>3}  data-" in traced.out
    for command in (
        ("show", output, "--pack", "0"),
        ("stats", output),
        ("report", output, "-o", tmp_path / "r.html"),
    ):
        assert run(*command).code == 0
    assert "\nbuilds              2\n" in run("stats", output).out
    assert read_report(output)["documents"]["in"] == 160


def test_the_options_in_the_output_are_those_of_the_next_append(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0)
    append(options)
    for number in (1, 2):
        put(tmp_path, number)
        given = [] if number == 1 else [tmp_path / "data" / "2.jsonl"]
        assert (
            run("build", *given, "-c", tmp_path / "out" / "build.yaml", "--append", "-q").code == 0
        )
    data = read_manifest(tmp_path / "out").data
    assert data == merged(tmp_path, options, (0,), (1,), (2,))
    assert (tmp_path / "out" / "build.yaml").read_text() == (
        tmp_path / "merged" / "build.yaml"
    ).read_text().replace(f"{tmp_path}/merged", f"{tmp_path}/out").replace(
        f"- {tmp_path}/data/0.jsonl\n- {tmp_path}/data/1.jsonl\n", f"- {tmp_path}/data/*.jsonl\n"
    )


def test_a_file_that_has_changed_under_its_name_is_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0, 1)
    first, _ = append(options)
    write_jsonl(tmp_path / "data" / "1.jsonl", [*texts(80, seed=1), "one more"])
    with pytest.raises(
        ConfigError, match=r"data/1.jsonl is in .*out already, with other content .* another name"
    ):
        build(config(append=True, **options))
    assert read_manifest(tmp_path / "out").data == first


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"max_length": 32},
            r"max_length was 64, now 32\); use the same ones \(-c .*build.yaml has them\)",
        ),
        ({"columns": ["document_ids"]}, "columns"),
        ({"eos": "none"}, "eos was 'auto', now 'none'"),
        ({"holdout": 0.1}, "holdout"),
        ({"weights": "1"}, "cannot keep the shares of a mix"),
        ({"overwrite": True}, "append keeps the output and overwrite replaces it"),
    ],
)
def test_other_settings_are_refused_before_anything_is_tokenized(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1)
    append(options)
    put(tmp_path, 2)
    with pytest.raises(ConfigError, match=said):
        build(config(append=True, **options | more))
    assert not appended_path(tmp_path / "out").exists()


def test_an_output_that_is_a_mix_or_no_output_gets_nothing_appended(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0)
    build(config(**options | {"weights": "1"}))
    put(tmp_path, 1)
    with pytest.raises(ConfigError, match="out is a mix"):
        build(config(append=True, **options))
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not an output of packprep"):
        build(config(append=True, **options))


def test_columns_that_new_rows_make_of_another_type_are_refused_and_leave_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    write_jsonl(tmp_path / "data" / "0.jsonl", [{"text": text, "score": 1} for text in texts(20)])
    append(options, carry="score")
    write_jsonl(
        tmp_path / "data" / "1.jsonl", [{"text": text, "score": 0.5} for text in texts(20, seed=1)]
    )
    with pytest.raises(ConfigError, match=r"do not fit .*column types"):
        build(config(append=True, carry="score", **options))
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out"]


def test_a_few_documents_may_leave_a_split_as_it_is(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0)
    first, _ = append(options, holdout=0.1)
    write_jsonl(
        tmp_path / "data" / "1.jsonl", ["one document"]
    )  # number 0, which the seed holds out
    data, _ = append(options, holdout=0.1)
    assert data["splits"]["train"] == first["splits"]["train"]
    assert data["splits"]["validation"]["packs"] == first["splits"]["validation"]["packs"] + 1
    write_jsonl(tmp_path / "data" / "2.jsonl", [""])
    with pytest.raises(InputError, match="no document is left"):
        build(config(append=True, holdout=0.1, **options))
    assert run("verify", tmp_path / "out", "--level", "full").code == 0


STEPS: list[tuple[Any, str, int]] = [
    (stages, "Windows", 0),
    (window_files, "write_shard", 2),
    (appending, "publish", 0),  # what is new is signed, but has not got its name
    (appending, "merge_locked", 0),
    (signing, "name_shards", 0),
    (signing, "write_manifest", 0),
    (merging, "publish", 0),
    (appending, "remove_replaced", 1),  # all is done but for what is left
]


@pytest.mark.parametrize(("place", "name", "calls"), STEPS)
def test_an_append_that_was_stopped_anywhere_goes_on_with_the_same_command(
    tmp_path: Path,
    options: dict[str, Any],
    place: Any,
    name: str,
    calls: int,
) -> None:
    put(tmp_path, 0)
    first, _ = append(options)
    put(tmp_path, 1)

    with disk_fails(place, name, calls):
        build(config(append=True, **options))
    done = name == "remove_replaced"
    assert (read_manifest(tmp_path / "out").data == first) is not done
    left = build_progress(tmp_path / "out")
    assert (left and left["state"]) == (None if done else "stopped")
    assert append(options)[0] == merged(tmp_path, options, (0,), (1,))


def test_status_says_how_far_an_append_is_and_what_it_is_appended_to(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0)
    append(options)
    packs = read_manifest(tmp_path / "out").num_packs
    put(tmp_path, 1)
    for place, name, stage in (
        (window_files, "write_shard", "pack"),
        (appending, "merge_locked", "merge"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_, **__: (_ for _ in ()).throw(OSError(5, "no")))
            with pytest.raises(OSError, match="no"):
                build(config(append=True, **options))
        found = build_progress(tmp_path / "out")
        assert found is not None
        assert (found["state"], found["stage"], found["documents"]) == ("stopped", stage, 80)
        assert (found["documents_there"], found["packs_there"]) == (80, packs)


@pytest.mark.parametrize(
    ("place", "name"), [(appending, "merge_locked"), (signing, "write_manifest")]
)
def test_an_append_that_did_not_finish_is_not_mixed_with_another(
    tmp_path: Path, options: dict[str, Any], place: Any, name: str
) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1)
    with disk_fails(place, name, 0):
        build(config(append=True, **options))
    put(tmp_path, 2)
    with pytest.raises(
        ConfigError,
        match=r"is an unfinished append with other settings \(1 source file before, 2.*or delete",
    ):
        build(config(append=True, **options))
    shutil.rmtree(appended_path(tmp_path / "out"))
    assert append(options)[0] == merged(tmp_path, options, (0,), (1, 2))


def test_a_swap_that_two_renames_make_is_finished(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1)
    real = Path.rename

    def dying(path: Path, target: Path) -> Path:
        if path == staging_path(tmp_path / "out"):
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr("packprep.output.directory.exchange", lambda *_: False)
        patch.setattr(Path, "rename", dying)
        with pytest.raises(OSError, match="Input/output"):
            build(config(append=True, **options))
    assert not (tmp_path / "out").exists()
    data, said = append(options)
    assert said[-1].startswith("nothing to append")
    assert data == merged(tmp_path, options, (0,), (1,))


def test_a_build_of_the_whole_output_that_was_stopped_is_not_lost(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0)
    append(options)
    with monkeypatch.context() as patch:
        patch.setattr(
            window_files, "write_shard", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "no"))
        )
        with pytest.raises(OSError, match="no"):
            build(config(**options | {"max_length": 32, "overwrite": True}))
    put(tmp_path, 1)
    with pytest.raises(
        ConfigError,
        match=r"left from an unfinished build of all of .*out; finish that build first, or delete",
    ):
        build(config(append=True, **options))
    shutil.rmtree(staging_path(tmp_path / "out"))
    assert append(options)[0] == merged(tmp_path, options, (0,), (1,))


def test_tasks_of_an_array_append_too_and_those_that_come_late_find_nothing_to_do(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1, 2)
    tasks = options | {"executor": "array", "num_tasks": 2, "append": True}
    for index in (1, 0):
        done = build_share(BuildConfig(**tasks, task_index=str(index)))
    assert done["slices tokenized"] == done["slices"]
    assert append(options, executor="array", task_index="merge")[0] == merged(
        tmp_path, options, (0,), (1, 2)
    )
    assert build_share(BuildConfig(**tasks, task_index="0")) == {"task": 0, "tasks": 2}
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out"]


def test_one_process_at_a_time_works_on_an_output(tmp_path: Path, options: dict[str, Any]) -> None:
    put(tmp_path, 0)
    append(options)
    put(tmp_path, 1)
    with locked(tmp_path / "out", "held"):
        pid = os.fork()  # the same process would find its own lock
        if pid == 0:
            try:
                build(config(append=True, **options))
            except ConfigError as error:
                os._exit(42 if "is being built by process" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        with pytest.raises(ConfigError, match="out is being built by process"):
            build(config(append=True, **options))


def test_a_dry_run_predicts_what_is_new(tmp_path: Path, options: dict[str, Any]) -> None:
    put(tmp_path, 0)
    append(options)
    settings = ("-c", tmp_path / "out" / "build.yaml", "--append", "--dry-run")
    assert "no new sources" in run("build", *settings).out
    put(tmp_path, 1)
    alone = build(
        config(
            **options
            | {"sources": str(tmp_path / "data" / "1.jsonl"), "output": str(tmp_path / "one")}
        )
    )
    assert f"tokens_in      {alone.ledger['tokens_in']:,}" in run("build", *settings).out
