"""`packprep store`: what it prints, its exit codes, and what it deletes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from packprep.output.staging import BUILD, appended_path, staging_path
from packprep.tokens.store_entries import EntryFacts, using
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


def store(line: str) -> Result:
    return run("store", *line.split())


def as_json(line: str) -> Any:
    return json.loads(store(f"{line} --json").out)


def built(name: str, *sources: str) -> Result:
    return run("build", *sources, "-o", name, "--tokenizer", "tok", "-q", "--keep-tokens", "store")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two entries, of the outputs one and two."""
    folder = tmp_path_factory.mktemp("store")
    save_tokenizer(folder / "tok")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, name in enumerate(("one", "two")):
            write_jsonl(folder / f"{name}.jsonl", texts(20, seed=number))
            assert built(name, f"{name}.jsonl").code == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, where the test works."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return tmp_path / "here"


def names() -> set[str]:
    """First source of each entry."""
    return {entry["sources"][0] for entry in as_json("ls store")}


@pytest.fixture
def two(here: Path) -> Path:
    """The entry of two.jsonl."""
    entries = as_json("ls store")
    (name,) = (str(entry["entry"]) for entry in entries if "two.jsonl" in entry["sources"])
    return Path("store", name)


def test_ls_has_a_line_for_each_entry(here: Path) -> None:
    heads, *lines = store("ls store").out.splitlines()
    assert (
        " ".join(heads.split()) == "entry tokenizer sources documents tokens bytes state last used"
    )
    rows = sorted(line.split()[1:4] for line in lines)
    assert rows == [["tok", "one.jsonl", "20"], ["tok", "two.jsonl", "20"]]
    assert all("whole" in line for line in lines)
    built("both", "one.jsonl", "two.jsonl")
    assert "one.jsonl and 1 more" in store("ls store").out
    assert {len(entry["entry"]) for entry in as_json("ls store")} == {64}
    (here / "empty").mkdir()
    assert store("ls empty").out == "empty has no tokens\n"


def test_verify_prints_a_sentence_for_each_damaged_file_and_exits_1(here: Path) -> None:
    sound = store("verify store")
    assert (sound.code, sound.out[:11], sound.out[-11:]) == (0, "2 entries, ", " kB: sound\n")
    assert (store("verify store --json").code, as_json("verify store")["sound"]) == (0, True)
    assert run("verify", "store").out == sound.out
    for path in Path("store").glob("*/unit-000000-000.arrow"):
        path.unlink()
    damaged = store("verify store")
    assert run("verify", "store").code == 1
    *lines, last = damaged.out.splitlines()
    assert (damaged.code, len(lines)) == (1, 2)
    assert all("is missing; the next build from it makes it again" in line for line in lines)
    assert last.endswith(": 2 damaged files")
    facts = as_json("verify store")
    assert (facts["sound"], sum(map(len, facts["faults"].values()))) == (False, 2)


def test_verify_sees_a_change_of_what_an_entry_was_made_from(here: Path, two: Path) -> None:
    path = two / "made_from.json"
    path.write_bytes(path.read_bytes().replace(b"two.jsonl", b"six.jsonl"))
    assert f"{path} has changed since it was written" in store("verify store").out


def test_gc_keeps_what_the_outputs_use(here: Path) -> None:
    done = store("gc store --keep one --yes")
    assert (done.code, "no output given uses it" in done.out) == (0, True)
    assert done.out.endswith(" kB freed; 1 entry stays in store\n")
    assert names() == {"one.jsonl"}
    again = as_json("gc store --keep one --keep two --yes")
    assert again == {"deleted": [], "bytes": 0, "in_use": []}
    assert built("two", "two.jsonl").code == 0, "the output is whole without its tokens"


def test_gc_without_outputs_deletes_only_unfinished_entries(two: Path) -> None:
    (two / "files.json").unlink()
    assert "unfinished" in store("gc store --yes").out
    assert names() == {"one.jsonl"}


@pytest.mark.parametrize("place", [staging_path, lambda out: staging_path(appended_path(out))])
def test_gc_keeps_the_tokens_of_unfinished_builds_of_an_output(two: Path, place: Any) -> None:
    (two / "files.json").unlink()
    staging = place(Path("half"))
    staging.mkdir()
    (staging / BUILD).write_text(json.dumps({"tokens": str(two)}))
    assert store("gc store --keep half --keep one --yes").code == 0
    assert names() == {"one.jsonl", "two.jsonl"}


@pytest.mark.parametrize(
    ("answer", "left", "last"),
    [("y", 1, "freed; 1 entry stays in store"), ("n", 2, "0.0 kB freed; 2 entries stay in store")],
)
def test_gc_asks_first(
    here: Path, answer: str, left: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer)
    result = store("gc store --keep one")
    assert (result.code, len(names())) == (0, left)
    assert result.out.splitlines()[-1].endswith(last)


def test_gc_leaves_what_a_running_build_uses(two: Path) -> None:
    with using(two, EntryFacts({}, [], {})):
        done = store("gc store --keep one --yes")
        assert f"{two} is being read by a build; it stays" in done.out
        facts = as_json("gc store --keep one --yes")
        assert (facts["deleted"], len(facts["in_use"]), len(names())) == ([], 1, 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls store --yes", "--keep and --yes are for gc, not ls; leave them out"),
        ("verify nothing", "nothing is not a directory; give the one that --keep-tokens name"),
        ("gc store --keep gone", "gone/manifest.json does not exist"),
        ("gc store --keep one --json", "--json cannot ask; give --yes too"),
        ("rm store", "'rm' is not one of 'ls', 'verify', 'gc'"),
    ],
)
def test_wrong_usage_is_a_sentence(here: Path, line: str, words: str) -> None:
    result = store(line)
    assert (result.code, words in result.err, len(names())) == (2, True, 2)
