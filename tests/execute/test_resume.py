"""A build that was stopped resumes: same bytes, nothing made twice, never with other settings."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import pytest

from packprep import BuildConfig, build
from packprep.config.aliases import recorded
from packprep.config.options import Options
from packprep.config.recorded import as_recorded, as_typed
from packprep.config.stages import Command, Parsing, Reading, Running, Tokenizing
from packprep.config.stages import options_in as of_stages
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
    "epochs": {"epochs": 2, "materialize": "shards"},
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


SPECS = {spec.name: spec for spec in fields(BuildConfig) if spec.metadata["identity"]}
OF_TEXT = of_stages(Reading, Parsing, Tokenizing) - {"max_tokens"}


def default_was(patch: pytest.MonkeyPatch, name: str, old: Any) -> None:
    metadata = {**SPECS[name].metadata, "earlier": (*SPECS[name].metadata["earlier"], old)}
    patch.setattr(SPECS[name], "metadata", MappingProxyType(metadata))


def another(name: str, value: Any) -> Any:
    """Another value of an option."""
    if setting := SPECS[name].metadata["setting"]:
        return setting.words()[-1] if setting.words() else value + 1
    if get_origin(kind := SPECS[name].type) is Literal:
        return [each for each in get_args(kind) if each not in (value, "auto")][-1]
    if isinstance(value, int | float):
        return not value if isinstance(value, bool) else value + 1
    if value is None:
        return "x" if str in get_args(kind) else 7
    return (*value, "x") if isinstance(value, tuple) else f"{value}x"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildConfig]:
    """Builds of before: a finished one, one that is half done, and one that fills a store."""
    options = options_in(folder := tmp_path_factory.mktemp("before"))
    outputs = {kind: options | {"output": str(folder / kind)} for kind in ("out", "done", "new")}
    build(BuildConfig(**outputs["done"], keep_tokens=str(folder / "store")))
    stop_in(options, stages, "sign", 0)
    outputs["new"]["keep_tokens"] = str(folder / "store")
    return {kind: BuildConfig(**output) for kind, output in outputs.items()}


@pytest.mark.parametrize("name", sorted(SPECS.keys() - of_stages(Running, Command)))
def test_no_work_of_another_default_is_continued_and_a_finished_output_stays(
    before: dict[str, BuildConfig], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def run(kind: str, *given: str) -> dict[str, Any]:
        object.__setattr__(before[kind], "given", {*given})
        return build(before[kind]).data

    identity, old = BuildConfig.identity, getattr(before["new"], name)
    now = recorded(name, another(name, old))
    typed = ConfigError(as_typed({name: as_recorded(old)}))
    monkeypatch.setattr(BuildConfig, "identity", lambda config: identity(config) | now)
    default_was(monkeypatch, name, old)
    assert run("done") == read_manifest(before["done"].output).data
    with refused(ConfigError, "was built with other settings", f"{name} was"):
        run("done", name)
    if name != "on_error":  # it decides nothing about the rows before
        with refused(ConfigError, "unfinished build", f"give {typed} to resume"):
            run("out")
    if name in OF_TEXT:
        with refused(ConfigError, "has the tokens of these sources", f"give {typed} to use them"):
            run("new")


@pytest.mark.parametrize(
    ("name", "new"), [("strategy", "first_fit"), ("eos", "none"), ("token_type", "auto")]
)
def test_the_old_default_is_given_to_go_on_and_the_new_one_is_recorded_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, new: str
) -> None:
    corpus, kept = options_in(tmp_path), {"keep_tokens": str(tmp_path / "store")}
    done, newer = ({"output": str(tmp_path / place)} for place in ("done", "new"))
    data = build(BuildConfig(**corpus | done | kept)).data
    stop_in(corpus, stages, "sign", 0)
    default_was(monkeypatch, name, old := SPECS[name].default)
    monkeypatch.setattr(SPECS[name], "default", new)
    monkeypatch.setitem(Options.__init__.__kwdefaults__ or {}, name, new)
    assert build(BuildConfig(**corpus | done)).data == data
    with refused(ConfigError, "unfinished build", f"give {name} {old} to resume"):
        build(BuildConfig(**corpus))
    if name == "eos":
        with refused(ConfigError, "has the tokens of", "give eos auto to", "or eos none to make"):
            build(BuildConfig(**corpus | newer | kept))
    assert resumed(corpus, **{name: old})[0] == data
    options = build(BuildConfig(**corpus | newer)).data["inputs"]["options"]
    assert options[name] == {"auto": "uint16"}.get(new, new)
