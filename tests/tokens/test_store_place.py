"""A token store in an output is refused before anything is done."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from packprep import build
from packprep.execute import stages
from packprep.exports.export import export
from packprep.support.errors import ConfigError
from packprep.tokens.store_place import check_store_place
from tests.helpers.command import done, run
from tests.helpers.corpus import write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config

LINE = ["build", "s.jsonl", "--input-ids-column", "ids", "--vocab-size", "10", "-q"]
OPTIONS: dict[str, Any] = {"sources": ["s.jsonl"], "input_ids_column": "ids", "vocab_size": 10}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a source; `done` is an output, `stopped` one that is not finished."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        write_jsonl(Path("s.jsonl"), [{"ids": [row] * 5} for row in range(9)])
        build(config(**OPTIONS, output="done", materialize="index"))
        export(Path("done"), "exported", "trl")
        with mock.patch.object(stages, "write_settings", stop), pytest.raises(KeyboardInterrupt):
            build(config(**OPTIONS, output="stopped"))
        Path("link").symlink_to("done/tokens")
        for folder in ("empty", "folder"):
            Path(folder).mkdir()
        Path("into").symlink_to("empty")
        Path("there").symlink_to("folder")
        yield Path.cwd()


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


ITSELF, ANOTHER = "which the build replaces when it is done", "another output of packprep"


@pytest.mark.parametrize(
    ("output", "store", "inside", "words"),
    [
        *(
            ("out", store, store.split("/")[0], ITSELF)
            for store in (
                "out",
                "out/store",
                "out.incomplete",
                "out.replaced",
                "out.appended",
                "out.appended.incomplete/store",
            )
        ),
        ("empty", "into/store", "empty", ITSELF),
        ("out", "done", "done", ANOTHER),
        ("out", "done/tokens", "done", ANOTHER),
        ("out", "link/x", "done", ANOTHER),
        ("out", "stopped.incomplete/tokens", "stopped.incomplete", ANOTHER),
        ("out", "exported/store", "exported", ANOTHER),
    ],
)
def test_a_store_in_an_output_is_refused(
    here: Path, output: str, store: str, inside: str, words: str
) -> None:
    place = here.resolve() / inside if words == ANOTHER else inside
    before = set(here.rglob("*"))
    for more in ((), ("--dry-run",), ("--append",), ("--overwrite",)):
        result = run(*LINE, "-o", output, "--keep-tokens", store, *more)
        assert (result.code, result.out) == (2, "")
        assert_says(result.err, f"--keep-tokens {store} is in {place}, {words}")
    assert set(here.rglob("*")) == before


def test_the_staging_directory_of_an_output_in_a_store_is_refused() -> None:
    with refused(ConfigError, "is in work/out.incomplete, which the build replaces"):
        check_store_place("work/out.incomplete/x", Path("work/out"))


@pytest.mark.parametrize("store", ["store", "there/store", "output", "out-store", "."])
def test_any_other_folder_is_a_store(here: Path, store: str) -> None:
    Path("manifest.json").write_text('{"name": "of another program"}')
    done(*LINE, "-o", "out", "--keep-tokens", store, "--materialize", "index")
    assert run("verify", "out").code == 0
    shutil.rmtree("out")
