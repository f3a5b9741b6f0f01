"""`packprep store`: what it prints, its exit codes, and what it deletes."""

import json
from pathlib import Path

import pytest

from packprep.output.staging import BUILD, appended_path, staging_path
from packprep.tokens.store_entries import using
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store of two entries, of the outputs one and two."""
    monkeypatch.chdir(tmp_path)
    save_tokenizer(tmp_path / "tok")
    for number, name in enumerate(("one", "two")):
        write_jsonl(tmp_path / f"{name}.jsonl", texts(20, seed=number))
        assert built(name, f"{name}.jsonl").code == 0
    return tmp_path


def built(name: str, *sources: str, store: str = "store") -> Result:
    return run("build", *sources, "-o", name, "--tokenizer", "tok", "-q", "--keep-tokens", store)


def names() -> set[str]:
    """First source of each entry."""
    return {entry["sources"][0] for entry in json.loads(run("store", "ls", "store", "--json").out)}


def test_ls_has_a_line_for_each_entry(here: Path) -> None:
    lines = run("store", "ls", "store").out.splitlines()
    assert lines[0].split() == [
        *("entry", "tokenizer", "sources", "documents", "tokens", "bytes", "state", "last", "used")
    ]
    rows = sorted(line.split()[1:4] for line in lines[1:])
    assert rows == [["tok", "one.jsonl", "20"], ["tok", "two.jsonl", "20"]]
    assert all("whole" in line for line in lines[1:])
    built("both", "one.jsonl", "two.jsonl")
    assert "one.jsonl and 1 more" in run("store", "ls", "store").out
    facts = json.loads(run("store", "ls", "store", "--json").out)
    assert {len(entry["entry"]) for entry in facts} == {64}
    (here / "empty").mkdir()
    assert run("store", "ls", "empty").out == "empty has no tokens\n"


def test_verify_prints_a_sentence_for_each_damaged_file_and_exits_1(here: Path) -> None:
    sound = run("store", "verify", "store")
    assert (sound.code, sound.out.startswith("2 entries, ")) == (0, True)
    assert sound.out.endswith(" kB: sound\n")
    for path in Path("store").glob("*/unit-000000-000.arrow"):
        path.unlink()
    damaged = run("store", "verify", "store")
    assert damaged.code == 1
    lines = damaged.out.splitlines()
    assert len(lines) == 3
    assert all("is missing; the next build from it makes it again" in line for line in lines[:2])
    assert lines[2].endswith(": 2 damaged files")
    result = run("store", "verify", "store", "--json")
    assert (result.code, json.loads(result.out)["sound"]) == (1, False)
    assert sum(map(len, json.loads(result.out)["faults"].values())) == 2


def test_gc_keeps_what_the_outputs_use(here: Path) -> None:
    done = run("store", "gc", "store", "--keep", "one", "--yes")
    assert done.code == 0
    assert "no output given uses it" in done.out
    assert done.out.splitlines()[-1].endswith(" kB freed; 1 entry stays in store")
    assert names() == {"one.jsonl"}
    again = run("store", "gc", "store", "--keep", "one", "--keep", "two", "--yes", "--json")
    assert json.loads(again.out) == {"deleted": [], "bytes": 0, "in_use": []}
    assert built("two", "two.jsonl").code == 0, "the output is whole without its tokens"


def test_gc_without_outputs_deletes_only_unfinished_entries(here: Path) -> None:
    [path] = [path for path in Path("store").iterdir() if _source(path) == "two.jsonl"]
    (path / "files.json").unlink()
    done = run("store", "gc", "store", "--yes")
    assert "unfinished" in done.out
    assert names() == {"one.jsonl"}


@pytest.mark.parametrize("place", [staging_path, lambda out: staging_path(appended_path(out))])
def test_gc_keeps_the_tokens_of_unfinished_builds_of_an_output(here: Path, place: object) -> None:
    [path] = [path for path in Path("store").iterdir() if _source(path) == "two.jsonl"]
    (path / "files.json").unlink()
    staging = place(Path("half"))  # type: ignore[operator]
    staging.mkdir()
    (staging / BUILD).write_text(json.dumps({"tokens": str(path)}))
    assert run("store", "gc", "store", "--keep", "half", "--keep", "one", "--yes").code == 0
    assert names() == {"one.jsonl", "two.jsonl"}


def _source(entry: Path) -> str:
    facts = json.loads((entry / "entry.json").read_bytes())
    return str(facts["sources"][0]["name"])


@pytest.mark.parametrize(("answer", "left"), [("y\n", {"one.jsonl"}), ("n\n", None)])
def test_gc_asks_first(
    here: Path, answer: str, left: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answer.strip())
    result = run("store", "gc", "store", "--keep", "one")
    assert result.code == 0
    assert names() == (left or {"one.jsonl", "two.jsonl"})
    if left is None:
        assert result.out.splitlines()[-1] == "0.0 kB freed; 2 entries stay in store"


def test_gc_leaves_what_a_running_build_uses(here: Path) -> None:
    [path] = [path for path in Path("store").iterdir() if _source(path) == "two.jsonl"]
    with using(path, {}):
        done = run("store", "gc", "store", "--keep", "one", "--yes")
        assert f"{path} is being read by a build; it stays" in done.out
        as_json = json.loads(run("store", "gc", "store", "--keep", "one", "--yes", "--json").out)
        assert (as_json["deleted"], len(as_json["in_use"])) == ([], 1)
    assert names() == {"one.jsonl", "two.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ls", "store", "--yes"), "--keep and --yes are for gc, not ls; leave them out"),
        (("verify", "nothing"), "nothing is not a directory; give the one that --keep-tokens name"),
        (("gc", "store", "--keep", "gone"), "gone/manifest.json does not exist; expected the out"),
        (("gc", "store", "--keep", "one", "--json"), "--json cannot ask; give --yes too"),
        (("rm", "store"), "'rm' is not one of 'ls', 'verify', 'gc'"),
    ],
)
def test_wrong_usage_is_a_sentence(here: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = run("store", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert len(names()) == 2
