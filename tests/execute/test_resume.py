"""A build that was stopped resumes: same bytes, nothing made twice, never with other settings."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import stages, window_files
from packprep.output.directory import LocalTarget
from packprep.output.staging import staging_path
from packprep.schemas import check_files, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.sources import units
from packprep.sources.reading import read_rows
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.tokens import token_files
from tests.helpers.corpus import RecordedProgress, build_options, disk_fails, texts, write_jsonl
from tests.helpers.errors import refused

Undisturbed = Callable[..., dict[str, Any]]


def options_in(folder: Path) -> dict[str, Any]:
    """Options of a build of three files in several units, windows and shards."""
    files = {f"{number}.jsonl": texts(40, seed=number) for number in range(3)}
    sizes = {"unit_size": 4_000, "window": 8_000, "shard_size": 8_000}
    whole = {"sources": (str(folder / "*.jsonl"),), "engine": "hf", "num_proc": 1}
    return build_options(folder, files, **sizes) | whole


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    return options_in(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The data of builds that nothing has stopped, by their options."""
    known: dict[str, dict[str, Any]] = {}

    def data(**options: Any) -> dict[str, Any]:
        key = str(sorted(options.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[key] = build(BuildConfig(**options_in(folder) | options)).data
        return known[key]

    return data


def stop_in(corpus: dict[str, Any], place: Any, name: str, calls: int, **options: Any) -> Path:
    """Build until `place.name` was called so often; then the disk fails. The staging folder."""
    with disk_fails(place, name, calls):
        build(BuildConfig(**corpus | options))
    assert not Path(corpus["output"]).exists()
    return staging_path(Path(corpus["output"]))


def resumed(corpus: dict[str, Any], **options: Any) -> tuple[dict[str, Any], str]:
    """The data of a whole output with nothing beside it, and what was said."""
    said, output = RecordedProgress(), Path(corpus["output"])
    manifest = build(BuildConfig(**corpus | options), progress=said)
    assert check_files(output, manifest, "sha256") == []
    assert [path.name for path in output.parent.iterdir() if path.name.startswith("out")] == ["out"]
    return manifest.data, "\n".join(said.lines)


STEPS: list[tuple[Any, str, int]] = [
    (stages, "Windows", 0),
    (window_files, "write_shard", 0),
    (window_files, "write_shard", 3),
    (window_files, "plan_window", 2),
    (stages, "name_shards", 0),
    (stages, "write_report", 0),
    (stages, "sign", 0),
    (LocalTarget, "publish", 0),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "splits": {"holdout": 0.2, "packs_multiple_of": 4},
    "mix": {"weights": "1", "max_epochs": 1.5},
    "epochs": {"epochs": 2, "repack": True, "materialize": "shards"},
    "phases": {
        "phases": [{"tokens": 900, "max_length": length} for length in (32, 48, 64)],
        "window": 4_000,
        "shard_size": 4_000,
    },
}


@pytest.mark.parametrize(
    ("step", "variant"),
    [
        pytest.param(STEPS[number], [*VARIANTS][(number + shift) % len(VARIANTS)], marks=marks)
        for number in range(len(STEPS))
        for shift, marks in ((0, ()), (2, pytest.mark.long))
    ],
)
def test_a_build_stopped_in_any_stage_goes_on_to_the_same_bytes(
    corpus: dict[str, Any], undisturbed: Undisturbed, step: tuple[Any, str, int], variant: str
) -> None:
    options = VARIANTS[variant]
    stop_in(corpus, *step, **options)
    data, said = resumed(corpus, **options, num_proc=2, overwrite=True)
    assert data == undisturbed(**options)
    assert "no text was read" in said or "only its last rename" in said
    if step[1] in ("name_shards", "write_report", "sign"):
        assert re.search(r"\b(\d+) of \1 windows were written before", said)
    elif step[1] == "Windows":
        assert "windows were written before" not in said


@pytest.mark.parametrize(
    "pattern", ["tokens/unit-000002*.arrow", "shards/*1.arrow", "receipts/*0.json"]
)
def test_what_does_not_agree_with_its_receipt_is_made_again(
    corpus: dict[str, Any], undisturbed: Undisturbed, pattern: str
) -> None:
    victim = next(stop_in(corpus, stages, "name_shards", 0).glob(pattern))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert resumed(corpus)[0] == undisturbed()


def test_other_settings_are_refused_with_what_changed_and_overwrite_starts_over(
    corpus: dict[str, Any], undisturbed: Undisturbed
) -> None:
    staging = stop_in(corpus, window_files, "write_shard", 2)
    with refused(ConfigError, "unfinished build", "max_length was 64, now 32", "overwrite"):
        build(BuildConfig(**corpus | {"max_length": 32}))
    facts = staging / "build.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format_version": 0}))
    with refused(ConfigError, "format version was 0, now 1"):
        build(BuildConfig(**corpus))
    data, said = resumed(corpus, max_length=32, overwrite=True)
    assert (data, "as --overwrite asks" in said) == (undisturbed(max_length=32), True)


def test_a_staging_folder_is_replaced_without_finished_work_and_left_alone_with_other_files(
    corpus: dict[str, Any],
) -> None:
    staging = staging_path(Path(corpus["output"]))
    (staging / "tokens").mkdir(parents=True)
    for name in ("unit-000000-000.arrow", "tmpx7y8"):
        (staging / "tokens" / name).write_text("half a file")
    facts = '{"inputs": {"options": {}, "sources": [], "tokenizer": {}}}'
    (staging / "build.json").write_text(facts)
    assert "incomplete" not in resumed(corpus)[1]
    staging.mkdir()
    (staging / "thesis.txt").write_text("do not delete")
    with refused(ConfigError, "has files of something else"):
        build(BuildConfig(**corpus))
    assert (staging / "thesis.txt").exists()


def test_text_that_is_tokenized_is_not_read_again(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed
) -> None:
    folder = stop_in(corpus, stages, "Windows", 0) / "tokens"
    (folder / "files.json").unlink()
    names = sorted(path.name for path in folder.glob("*.arrow"))
    for name in names[len(names) // 2 :]:
        (folder / name).unlink()
    opened: list[str] = []

    def seen(source: Any, *rest: Any) -> Any:
        opened.append(Path(source.name).name)
        return read_rows(source, *rest)

    monkeypatch.setattr(units, "read_rows", seen)
    data = resumed(corpus)[0]
    assert opened == ["1.jsonl", "2.jsonl"]
    assert data == undisturbed()


@pytest.mark.parametrize("mended", [False, True])
def test_a_bad_row_costs_no_work_if_it_is_skipped_and_starts_over_if_it_is_mended(
    corpus: dict[str, Any], tmp_path: Path, undisturbed: Undisturbed, mended: bool
) -> None:
    write_jsonl(tmp_path / "2.jsonl", [*texts(40, seed=2), {"text": 7}])
    with refused(InputError, "2.jsonl row 40"):
        build(BuildConfig(**corpus))
    if mended:
        write_jsonl(tmp_path / "2.jsonl", texts(40, seed=2))
    data, said = resumed(corpus, on_error="stop" if mended else "skip")
    assert data["splits"] == undisturbed()["splits"]
    assert ("2.jsonl changed" if mended else "resuming after ") in said


def test_too_little_memory_for_a_window_keeps_the_tokens(
    corpus: dict[str, Any], undisturbed: Undisturbed
) -> None:
    words = ("a window has 45 documents", "give more than --max-memory 600MB to resume")
    with refused(StoppedError, *words):
        build(BuildConfig(**corpus | {"max_memory": 600_000_000}))
    data, said = resumed(corpus)
    assert (data, "no text was read" in said) == (undisturbed(), True)


def test_an_old_output_stays_until_the_new_one_is_whole_and_then_goes(
    corpus: dict[str, Any], undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, old = Path(corpus["output"]), build(BuildConfig(**corpus)).data
    shutil.copytree(output, output.with_name("old"))
    new = {"max_length": 32, "overwrite": True}
    with disk_fails(LocalTarget, "publish"):
        build(BuildConfig(**corpus | new))
    assert read_manifest(output).data == old
    assert check_files(output, read_manifest(output), "sha256") == []
    assert resumed(corpus, **new)[0] == undisturbed(max_length=32)

    shutil.copytree(output.with_name("old"), staging_path(output))  # an interrupted swap
    shutil.copytree(output, output.with_name("out.replaced"))
    newer = {"max_length": 48, "overwrite": True}
    assert resumed(corpus, **newer)[0] == undisturbed(max_length=48)

    # The kernel exchanged both folders, and then the process was killed.
    output.with_name("old").rename(staging_path(output))

    def killed(path: Path, **_: Any) -> None:
        if (path / "manifest.json").exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            build(BuildConfig(**corpus | newer))
    assert resumed(corpus, **newer)[0] == undisturbed(max_length=48)


def test_a_token_store_that_was_interrupted_is_gone_on_with(
    corpus: dict[str, Any], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    kept = {"keep_tokens": str(tmp_path / "store")}
    stop_in(corpus, token_files, "file_xxh3", 5, **kept)
    made = {path: file_digest(path) for path in (tmp_path / "store").rglob("unit-*.json")}
    assert made
    data, said = resumed(corpus, **kept)
    assert (data, "resuming after " in said) == (undisturbed(), True)
    assert {path: file_digest(path) for path in made} == made
