"""Names that have to be asked of the hub, by its real client in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import assert_says
from tests.helpers.hub import Hub, running


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one tokenizer, user/name."""
    folder = save_tokenizer(tmp_path / "on_the_hub")
    with running() as hub:
        hub.commit("user/name", {file.name: file.read_bytes() for file in folder.iterdir()})
        yield hub


def build(folder: Path, endpoint: str, *arguments: str, **more: str) -> tuple[int, list[str]]:
    """Exit code and standard error of a build in `folder`.

    Its sources are arguments or a.jsonl.
    """
    write_jsonl(folder / "a.jsonl", texts(20))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home")}
    environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "packprep", "build", *arguments, "-o", "out", "--engine", "hf"],
        cwd=folder,
        env=environment | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stderr.splitlines()


NOWHERE = "http://127.0.0.1:9"  # the port of "discard", where nobody listens
NO_TOKENIZER = "is no local file and no tokenizer came from the hub"


@pytest.mark.long
def test_local_mistakes_are_noticed_before_the_hub_is_asked(tmp_path: Path, hub: Hub) -> None:
    code, [said] = build(tmp_path, hub.url, "gone.jsonl", "--tokenizer", "user/nmae")
    assert (code, "no such file: gone.jsonl" in said) == (2, True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    code, [said] = build(tmp_path, hub.url, "a.jsonl", "--tokenizer", "user/nmae")
    assert (code, "out exists and is not an output" in said, hub.seen) == (2, True, [])


@pytest.mark.long
def test_a_name_that_the_hub_does_not_answer_is_one_sentence(tmp_path: Path, hub: Hub) -> None:
    save_tokenizer(tmp_path / "tok")
    for offline, endpoint, source, tokenizer, words in [
        ("1", hub.url, "a.jsonl", "user/name", f"{NO_TOKENIZER}: HF_HUB_OFFLINE is set"),
        ("0", NOWHERE, "a.jsonl", "user/name", f"{NO_TOKENIZER}: 127.0.0.1:9 cannot be"),
        ("0", NOWHERE, "user/data", "tok", "no dataset came from the hub: 127.0.0.1:9 cannot be"),
        ("0", hub.url, "a.jsonl", "user/nmae", f"{NO_TOKENIZER}: there is no repository"),
    ]:
        arguments = (source, "--tokenizer", tokenizer)
        code, [said] = build(tmp_path, endpoint, *arguments, HF_HUB_OFFLINE=offline)
        assert code == 2
        assert_says(said, words)
        assert bool(hub.seen) == (tokenizer == "user/nmae")


@pytest.mark.long
def test_retries_of_the_hub_are_one_line_and_then_the_cache_answers_offline(
    tmp_path: Path, hub: Hub
) -> None:
    hub.busy = 3
    code, said = build(tmp_path, hub.url, "a.jsonl", "--tokenizer", "user/name")
    assert code == 0
    assert [line for line in said if "retrying" in line or "Retry" in line] == [said[0]]
    assert said[0].startswith("the hub does not answer, retrying: HTTP Error 503")
    # tokenizer_config.json and the others are on record as there or not there.
    code, said = build(tmp_path, NOWHERE, "a.jsonl", "--tokenizer", "user/name", "--overwrite")
    assert (code, said) == (0, ["out is this build already: nothing to do"])
