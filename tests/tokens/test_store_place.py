"""A token store in an output is refused before anything is done."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.config.build_config import BuildConfig
from packprep.execute import stages
from packprep.exports.export import export
from packprep.support.errors import ConfigError
from packprep.tokens.store_place import check_store_place
from tests.helpers.command import run
from tests.helpers.files import config

LINE = ["build", "s.jsonl", "--input-ids-column", "ids", "--vocab-size", "10", "-q"]
OPTIONS: dict[str, Any] = {"sources": ["s.jsonl"], "input_ids_column": "ids", "vocab_size": 10}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a source; `done` is an output, `stopped` one that is not finished."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        yield _make(patch)


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def _make(monkeypatch: pytest.MonkeyPatch) -> Path:
    Path("s.jsonl").write_text("".join(json.dumps({"ids": [row] * 5}) + "\n" for row in range(9)))
    build(config(**OPTIONS, output="done", materialize="index"))
    export(Path("done"), "exported", "trl")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, "collect_quarantine", stop)
        with pytest.raises(KeyboardInterrupt):
            build(config(**OPTIONS, output="stopped"))
    Path("link").symlink_to("done/tokens")
    Path("folder").mkdir()
    Path("there").symlink_to("folder")
    return Path.cwd()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "store",
    [
        "out",
        "out/store",
        "out/../out/a/b",
        "out.incomplete",
        "out.incomplete/tokens",
        "out.replaced",
        "out.appended",
        "out.appended.incomplete/store",
    ],
)
def test_a_store_in_the_output_itself_is_refused(here: Path, store: str) -> None:
    before = files(here)
    result = run(*LINE, "-o", "out", "--keep-tokens", store)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"packprep: --keep-tokens {store} is in {Path(store).parts[0]}, which the build replaces "
        "when it is done; choose a folder outside it\n"
    )
    assert files(here) == before


@pytest.mark.parametrize("more", ["--dry-run", "--append", "--overwrite"])
def test_it_is_refused_by_every_kind_of_build(here: Path, more: str) -> None:
    before = files(here)
    result = run(*LINE, "-o", "done", "--keep-tokens", "done/store", more)
    assert (result.code, "is in done, which the build replaces" in result.err) == (2, True)
    assert files(here) == before


@pytest.mark.parametrize(
    ("store", "output"),
    [
        ("done", "done"),
        ("done/tokens", "done"),
        ("done/new/store", "done"),
        ("link", "done"),
        ("link/x", "done"),
        ("stopped.incomplete/tokens", "stopped.incomplete"),
        ("exported/store", "exported"),
    ],
)
def test_a_store_in_another_output_is_refused(here: Path, store: str, output: str) -> None:
    before = files(here)
    result = run(*LINE, "-o", "out", "--keep-tokens", store)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"packprep: --keep-tokens {store} is in {here.resolve() / output}, another output of "
        "packprep, whose files may not change; choose a folder outside it\n"
    )
    assert files(here) == before


def test_a_link_to_the_output_is_followed(here: Path) -> None:
    Path("empty").mkdir()
    Path("into").symlink_to("empty")
    result = run(*LINE, "-o", "empty", "--keep-tokens", "into/store")
    assert (result.code, "is in empty, which" in result.err) == (2, True)


def test_the_staging_directory_of_an_output_in_a_store_is_refused() -> None:
    options = BuildConfig(output="s3://bucket/out", keep_tokens="work/out.incomplete/x")
    with pytest.raises(ConfigError, match=r"is in work/out\.incomplete, which the build replaces"):
        check_store_place(options, Path("work/out"))


@pytest.mark.parametrize("store", ["store", "there/store", "output", "out-store", "."])
def test_any_other_folder_is_a_store(here: Path, store: str) -> None:
    Path("manifest.json").write_text('{"name": "of another program"}')
    result = run(*LINE, "-o", "out", "--keep-tokens", store, "--materialize", "index")
    assert result.code == 0, result.err
    assert run("verify", "out").code == 0
    shutil.rmtree("out")
