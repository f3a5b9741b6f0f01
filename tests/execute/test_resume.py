"""A build that was stopped resumes.

Same bytes, nothing made twice, and never with other settings.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import stages, window_files
from packprep.output import directory as outputs
from packprep.output.staging import staging_path
from packprep.schemas import check_files, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.storage.writing import temporary_name
from packprep.sources import units
from packprep.sources.reading import read_rows
from packprep.sources.resolve import resolve
from packprep.sources.units import read_slices
from packprep.support import hashing
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.tokens import store, token_files
from tests.helpers.corpus import RecordedProgress, build_options, disk_fails, texts, write_jsonl


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """Options that build three files into packs of 64 tokens.

    In several units, windows and shards.
    """
    files = {f"{number}.jsonl": texts(100, seed=number) for number in range(3)}
    sizes = {"unit_size": 4_000, "window": 16_000, "shard_size": 8_000}
    return build_options(
        tmp_path, files, **sizes, sources=(str(tmp_path / "*.jsonl"),), engine="hf", num_proc=1
    )


def stop_in(corpus: dict[str, Any], place: Any, name: str, calls: int, **options: Any) -> None:
    """Build until `place.name` was called so often; then the disk fails."""
    with disk_fails(place, name, calls):
        build(BuildConfig(**corpus | options))
    assert not Path(corpus["output"]).exists()


def undisturbed(corpus: dict[str, Any], tmp_path: Path, **options: Any) -> dict[str, Any]:
    return build(BuildConfig(**corpus | options | {"output": str(tmp_path / "undisturbed")})).data


STEPS: list[tuple[Any, str, int]] = [
    (stages, "Windows", 0),
    (window_files, "write_shard", 0),
    (window_files, "write_shard", 3),
    (window_files, "plan_window", 2),
    (stages, "name_shards", 0),
    (stages, "write_report", 0),
    (stages, "sign", 0),
    (outputs, "publish", 0),
]


@pytest.mark.parametrize(
    ("place", "name", "calls"), STEPS, ids=[f"{name}-{calls}" for _, name, calls in STEPS]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"holdout": 0.2, "packs_multiple_of": 4}, {"weights": "1", "max_epochs": 1.5}],
    ids=["plain", "splits", "mix"],
)
def test_a_build_stopped_in_any_stage_goes_on_to_the_same_bytes(
    corpus: dict[str, Any],
    tmp_path: Path,
    place: Any,
    name: str,
    calls: int,
    options: dict[str, Any],
) -> None:
    stop_in(corpus, place, name, calls, **options)
    said = RecordedProgress()
    manifest = build(BuildConfig(**corpus | options), progress=said)
    assert manifest.data == undisturbed(corpus, tmp_path, **options)
    assert check_files(Path(corpus["output"]), manifest, "sha256") == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == [
        "out"
    ]
    assert any("no text was read" in line or "only its last rename" in line for line in said.lines)


def test_text_that_is_tokenized_is_not_read_again(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in(corpus, stages, "Windows", 0)
    folder = staging_path(Path(corpus["output"])) / "tokens"
    (folder / "files.json").unlink()
    names = sorted(path.name for path in folder.glob("*.arrow"))
    gone = names[len(names) // 2 :]
    for name in gone:
        (folder / name).unlink()
    opened = []

    def seen(source: Any, *rest: Any) -> Any:
        opened.append(Path(source.name).name)
        return read_rows(source, *rest)

    monkeypatch.setattr(units, "read_rows", seen)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.arrow")}
    said = RecordedProgress()
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "publish", lambda *_: None)
        build(BuildConfig(**corpus), progress=said)
    assert opened == ["1.jsonl", "2.jsonl"]
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    assert any(line.startswith("resuming after ") for line in said.lines)


@pytest.mark.parametrize("unit_size", [1_000, 4_000, 1_000_000])
@pytest.mark.parametrize(
    "limits", [(None, {}), (170, {}), (None, {"limit": 170}), (180, {"limit": 110})], ids=str
)
def test_reading_may_begin_after_any_slice(
    corpus: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unit_size: int,
    limits: Any,
) -> None:
    monkeypatch.setattr(units, "SLICE_BYTES", 1_500)
    limit, of_source = limits
    table = {"path": [str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl")]} | of_source
    config = BuildConfig(
        **corpus
        | {"sources": (table, str(tmp_path / "2.jsonl")), "unit_size": unit_size, "limit": limit}
    )
    sources = resolve(config, tmp_path)
    slices = list(read_slices(sources, config, tmp_path))
    files = [
        store.TokenFile(
            **vars(part.extent),
            tokens=0,
            verified=0,
            parts=part.parts,
            cut={},
            left_out={},
            bytes=0,
            xxh3="",
        )
        for part in slices
    ]
    for done in range(0, len(slices) + 1, 7):
        start = store.start_after(files[:done], len(sources), config)
        assert list(read_slices(sources, config, tmp_path, start)) == slices[done:]


@pytest.mark.parametrize("what", ["token file", "shard", "receipt"])
def test_what_does_not_agree_with_its_receipt_is_made_again(
    corpus: dict[str, Any], tmp_path: Path, what: str
) -> None:
    stop_in(corpus, stages, "name_shards", 0)
    staging = staging_path(Path(corpus["output"]))
    pattern = {
        "token file": "tokens/unit-000002*.arrow",
        "shard": "shards/*1.arrow",
        "receipt": "receipts/*0.json",
    }
    victim = next(staging.glob(pattern[what]))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    manifest = build(BuildConfig(**corpus))
    assert manifest.data == undisturbed(corpus, tmp_path)
    assert check_files(Path(corpus["output"]), manifest, "sha256") == []


def test_other_settings_are_refused_with_what_changed_and_restart_starts_over(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    stop_in(corpus, window_files, "write_shard", 2)
    other = corpus | {"max_length": 32}
    with pytest.raises(
        ConfigError, match=r"unfinished build with other settings \(max_length was 64, now 32\)"
    ):
        build(BuildConfig(**other))
    with pytest.raises(ConfigError, match="another tokenizer"):
        build(BuildConfig(**corpus | {"bos": "none"}))
    write_jsonl(tmp_path / "1.jsonl", texts(99, seed=1))
    with pytest.raises(ConfigError, match=r"1\.jsonl changed"):
        build(BuildConfig(**corpus))
    write_jsonl(tmp_path / "3.jsonl", ["more"])
    with pytest.raises(ConfigError, match="3 source files before, 4 now"):
        build(BuildConfig(**corpus))
    facts = staging_path(Path(corpus["output"])) / "build.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format_version": 0}))
    with pytest.raises(ConfigError, match="format version was 0, now 1"):
        build(BuildConfig(**corpus))
    assert build(BuildConfig(**other, overwrite=True)).data == undisturbed(other, tmp_path)


def test_a_build_that_drew_another_holdout_is_refused_and_overwrite_starts_over(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus |= {"holdout": 0.2}
    with monkeypatch.context() as older:
        older.setattr(hashing, "_MIX_2", hashing._MIX_1)
        stop_in(corpus, window_files, "write_shard", 2)
    with pytest.raises(ConfigError, match=r"packprep draws other random bits now: .*holdout"):
        build(BuildConfig(**corpus))
    assert build(BuildConfig(**corpus, overwrite=True)).data == undisturbed(corpus, tmp_path)


def test_workers_and_memory_may_change(corpus: dict[str, Any], tmp_path: Path) -> None:
    stop_in(corpus, window_files, "write_shard", 2)
    changed = corpus | {"num_proc": 3, "max_memory": 10**10, "verify_engine": 0.5}
    assert build(BuildConfig(**changed)).data == undisturbed(corpus, tmp_path)


def test_a_staging_folder_without_finished_work_is_replaced_silently(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    staging = staging_path(Path(corpus["output"]))
    (staging / "tokens").mkdir(parents=True)
    (staging / "tokens" / "unit-000000-000.arrow").write_text("half a file")
    (staging / "tokens" / "tmpx7y8").write_text("half a file")
    (staging / "build.json").write_text(
        '{"inputs": {"options": {}, "sources": [], "tokenizer": {}}}'
    )
    said = RecordedProgress()
    manifest = build(BuildConfig(**corpus), progress=said)
    assert check_files(Path(corpus["output"]), manifest) == []
    assert not any("incomplete" in line for line in said.lines)


def test_a_folder_of_somebody_else_in_the_place_of_staging_is_left_alone(
    corpus: dict[str, Any],
) -> None:
    staging = staging_path(Path(corpus["output"]))
    staging.mkdir()
    (staging / "thesis.txt").write_text("do not delete")
    with pytest.raises(ConfigError, match="has files of something else"):
        build(BuildConfig(**corpus))
    assert (staging / "thesis.txt").exists()


def test_a_mistake_in_the_next_command_costs_nothing(corpus: dict[str, Any]) -> None:
    stop_in(corpus, window_files, "write_shard", 2)
    staging = staging_path(Path(corpus["output"]))
    before = sorted(path for path in staging.rglob("*.arrow"))
    with pytest.raises(ValueError, match="no such file"):
        build(BuildConfig(**corpus | {"sources": ("gone.jsonl",)}))
    assert sorted(path for path in staging.rglob("*.arrow")) == before


def test_a_bad_row_costs_no_finished_work_where_the_next_command_skips_it(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "2.jsonl", [*texts(90, seed=2), {"text": 7}, "last"])
    with pytest.raises(InputError, match=r"2\.jsonl row 90"):
        build(BuildConfig(**corpus))
    assert not Path(corpus["output"]).exists()
    said = RecordedProgress()
    assert build(BuildConfig(**corpus, on_error="skip"), progress=said).data == undisturbed(
        corpus, tmp_path, on_error="skip"
    )
    assert any(line.startswith("resuming after ") for line in said.lines)


def test_a_mended_row_starts_over_without_being_asked(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "2.jsonl", [*texts(90, seed=2), {"text": 7}, "last"])
    with pytest.raises(InputError, match=r"2\.jsonl row 90"):
        build(BuildConfig(**corpus))
    write_jsonl(tmp_path / "2.jsonl", texts(90, seed=2))
    said = RecordedProgress()
    assert build(BuildConfig(**corpus), progress=said).data == undisturbed(corpus, tmp_path)
    assert any("starting over" in line and "2.jsonl changed" in line for line in said.lines)


def test_too_little_memory_for_a_window_keeps_the_tokens(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(StoppedError, match="give more than --max-memory 600MB to resume"):
        build(BuildConfig(**corpus | {"max_memory": 600_000_000}))
    said = RecordedProgress()
    assert build(BuildConfig(**corpus), progress=said).data == undisturbed(corpus, tmp_path)
    assert any("no text was read" in line for line in said.lines)


def test_overwrite_keeps_the_old_output_until_the_new_one_is_whole(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(corpus["output"])
    old = build(BuildConfig(**corpus)).data
    new = corpus | {"max_length": 32, "overwrite": True}
    with monkeypatch.context() as patch:
        patch.setattr(
            outputs, "publish", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error"))
        )
        with pytest.raises(OSError, match="Input/output"):
            build(BuildConfig(**new))
    assert read_manifest(output).data == old
    assert check_files(output, read_manifest(output), "sha256") == []
    assert build(BuildConfig(**new)).data == undisturbed(new, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == [
        "out"
    ]


def test_an_old_output_left_by_an_interrupted_swap_is_deleted(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    output = Path(corpus["output"])
    build(BuildConfig(**corpus))
    shutil.copytree(output, staging_path(output))
    shutil.copytree(output, tmp_path / "out.replaced")
    other = corpus | {"max_length": 32, "overwrite": True}
    assert build(BuildConfig(**other)).data == undisturbed(other, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == [
        "out"
    ]


def test_an_old_output_that_was_exchanged_and_not_renamed_is_deleted(
    corpus: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(corpus["output"])
    build(BuildConfig(**corpus))
    shutil.copytree(output, tmp_path / "old")
    other = corpus | {"max_length": 32, "overwrite": True}
    build(BuildConfig(**other))
    # The kernel exchanged both folders, and then the process was killed.
    (tmp_path / "old").rename(staging_path(output))

    def killed(path: Path, **_: Any) -> None:
        if (path / "manifest.json").exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            build(BuildConfig(**other))
    build(BuildConfig(**other))
    assert not staging_path(output).exists()
    assert check_files(output, read_manifest(output), "sha256") == []


def test_a_token_store_that_was_interrupted_is_gone_on_with(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    kept = corpus | {"keep_tokens": str(tmp_path / "store")}
    stop_in(kept, token_files, "file_xxh3", 5)
    made = {path: file_digest(path) for path in (tmp_path / "store").rglob("unit-*.json")}
    assert made
    said = RecordedProgress()
    assert build(BuildConfig(**kept), progress=said).data == undisturbed(corpus, tmp_path)
    assert any(line.startswith("resuming after ") for line in said.lines)
    assert {path: file_digest(path) for path in made} == made


def test_two_processes_write_under_different_temporary_names(tmp_path: Path) -> None:
    assert str(os.getpid()) in temporary_name(tmp_path / "a.json").name
