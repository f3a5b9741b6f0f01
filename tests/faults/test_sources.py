"""Files that are missing, of another kind, locked, empty or odd: named, and never left out."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.corpus import texts, write_jsonl
from tests.helpers.examples import long_but

from .build import build, command_line, refused
from .kinds import whole

ROOT = Path(__file__).parents[2]
WHOLE = whole(".jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source folder with one good file."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(WHOLE)
    return tmp_path / "in"


def circle(path: Path) -> None:
    path.symlink_to("b.jsonl.other")
    path.with_name("b.jsonl.other").symlink_to(path.name)


NAMED = ("in/b.jsonl", "in/*.jsonl", "in")
LINK, PIPE = "is a link to gone.jsonl, which does not exist", "to read a pipe use - for standard"
# What `in/b.jsonl` is, how the source is named, and the words after its name.
PLACES: list[tuple[Callable[[Path], object], tuple[str, ...], str]] = [
    (lambda path: None, ("in/b.jsonl", "in/b/*.jsonl"), ""),
    (lambda path: path.symlink_to("gone.jsonl"), NAMED, LINK),
    (os.mkfifo, NAMED, f"is not a regular file; {PIPE}"),
    (lambda path: path.symlink_to("/dev/zero"), NAMED, "is not a regular file"),
    (circle, NAMED[:1], ""),
    (lambda path: path.mkdir(), NAMED[:1], "holds no file of a known format"),
    (lambda path: path.mkdir(), NAMED[1:2], "is a folder, and .* takes files; match those in it"),
    (lambda path: path.symlink_to("/tmp"), NAMED[2:], "is a link to a folder; pass the folder as"),
    (lambda path: path.touch(), NAMED[:1], "is empty; expected at least one document"),
    (lambda path: path.write_bytes(WHOLE + b'{"text": "the'), NAMED, r"row 40 \(line 41\): inv"),
    (
        lambda path: path.write_bytes(b'{"text": "a"}\n' * 100_000 + b"\n\nnull\n" + WHOLE),
        NAMED[:1],
        r"row 100000 \(line 100003\): the row has no 'text'",
    ),
]


@pytest.mark.parametrize(
    ("make", "named", "words"),
    [
        pytest.param(make, name, words, marks=[pytest.mark.long] * (number > 0))
        for make, names, words in PLACES
        for number, name in enumerate(names)
    ],
)
def test_what_is_no_good_file_is_named_and_never_left_out_or_waited_for(
    tmp_path: Path, folder: Path, make: Callable[[Path], object], named: str, words: str
) -> None:
    make(folder / "b.jsonl")
    sentence = refused(tmp_path, tmp_path / named)
    place = tmp_path / named if not words else folder / "b.jsonl"
    assert str(place) in sentence
    assert re.search(words, sentence), sentence


AS_NOBODY = """
import os, sys
import packprep.cli.commands.build, packprep.execute.pipeline
import packprep.sources.formats.jsonl, packprep.loaders, datasets, pickletools
from packprep.cli.main import main
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
main()
"""


LOCKED = ["b.jsonl in", "b.jsonl in/b.jsonl", "b.jsonl in/**", "sub in", "sub in/sub", "sub in/**"]


@pytest.mark.parametrize("case", long_but(LOCKED[:1], LOCKED))
def test_what_may_not_be_read_is_named_and_never_left_out(case: str) -> None:
    """By a user who may not read everything, as root may; its libraries are loaded before."""
    locked, named = case.split()
    with tempfile.TemporaryDirectory() as name:  # where the other user may go, too
        home, folder = Path(name), Path(name, "in")
        home.chmod(0o777)
        (folder / "sub").mkdir(parents=True)
        for place in ("a.jsonl", "b.jsonl", "sub/c.jsonl"):
            (folder / place).write_bytes(WHOLE)
        (folder / locked).chmod(0)
        command = [sys.executable, "-c", AS_NOBODY, *command_line(home, home / named)[3:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(home)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=home, env=environment, check=False
            )
        finally:
            (folder / locked).chmod(0o755)
        found = rf"packprep: {folder / locked}(/dataset_dict.json)? cannot be read: .* denied\n"
        assert done.returncode == 2, done
        assert re.fullmatch(found, done.stderr), done
        assert not (home / "out").exists()


NAMES = ("a b.jsonl", "a[1].jsonl", "a*.jsonl", "a?b.jsonl", "é.jsonl", "a\nb.jsonl")


def test_odd_but_good_files_build(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").unlink()
    csv = whole(".csv")
    for name, content in {
        "bom.jsonl": b"\xef\xbb\xbf" + WHOLE,
        "crlf.jsonl": WHOLE.replace(b"\n", b"\r\n"),
        "crlf.csv": b"\xef\xbb\xbf" + csv.replace(b"\n", b"\r\n"),
        "blank.jsonl": b"\n\r\n" + WHOLE.replace(b"\n", b"\n \t\n"),
        "noend.jsonl": WHOLE.rstrip(),
        "array.json": b"[" + WHOLE.strip().replace(b"\n", b",\n") + b"]",
        "escaped.jsonl": b'{"text": "a\\u0000b"}\n',
        "other.jsonl": b'{"text": "a", "id": {"b": 1}}\n{"text": "b", "id": [1], "more": null}\n',
        "twice.jsonl": b'{"text": "a", "id": 1, "id": 2}\n',
        **dict.fromkeys(NAMES, WHOLE),
    }.items():
        (folder / name).write_bytes(content)
    report = json.loads(build(tmp_path, folder, "--json").out)
    assert report["documents"]["in"] == 6 * 40 + 1 + 2 + 1 + 6 * 40
    assert report["documents"]["skipped"] == {}
    for name in ("a[1].jsonl", "a*.jsonl", "a\nb.jsonl"):
        assert build(tmp_path, folder / name, "--overwrite").code == 0


def test_a_name_with_terminal_commands_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb\n.jsonl").write_bytes(b"bad\n")
    shown = f"{tmp_path}/a\\x1b[2Jb\\n.jsonl row 0 (line 1): "
    assert refused(tmp_path, tmp_path / "a\x1b[2Jb\n.jsonl").startswith(shown)


_PROMPT, _ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
_CHAT, TEXTS = ("--messages-column", "messages"), texts(40)
_MASK = ("--input-ids-column", "ids", "--loss-mask-column")
_PHASES = '[{"tokens": 900}, {"tokens": 40, "max_length": 128}]'
_LONG = "N tokens are in documents longer than max_length 64"
# Rows, options, and the words of the refusal that name what decides it.
LEFT: list[tuple[list[Any], tuple[object, ...], list[str]]] = [
    (["short", "x y " * 500], ("--overflow", "error"), ["row 1 has ", "a pack holds 64"]),
    ([{"body": "a", "id": 1}], (), ["has no column 'text'; it has body, id", "--text-template"]),
    (["", ""], (), ["the split train: 2 rows have no text"]),
    (TEXTS, ("--holdout", "0.0000001"), ["the split validation: ", "change holdout"]),
    (TEXTS, ("--min-document-tokens", 9_000), ["shorter than min_document_tokens 9,000; lower"]),
    (
        TEXTS,
        ("--max-document-tokens", 0, "--min-document-tokens", 0),
        ["N tokens are in documents longer than max_document_tokens 0; raise max_document_tokens"],
    ),
    (
        TEXTS,
        ("--overflow", "drop", "--min-document-tokens", 65),
        [f"{_LONG}, N tokens are in documents shorter than min_document_tokens 65; raise"],
    ),
    (
        TEXTS,
        ("--min-pack-tokens", 64, "--pad-segment-to-multiple", 64, "--overflow", "drop"),
        [f"{_LONG}, N tokens are in packs smaller than min_pack_tokens 64; raise max_length"],
    ),
    ([{"messages": [_PROMPT]}], _CHAT, ["without a trained token; check the roles", "assistant"]),
    ([{"ids": [1, 2], "mask": [0, 0]}], (*_MASK, "mask"), ["without a trained", "column mask"]),
    (
        [{"messages": [_PROMPT, _ANSWER]}],
        (*_CHAT, "--min-loss-tokens", 50),
        ["with fewer trained tokens than min_loss_tokens 50; lower min_loss_tokens"],
    ),
    (
        [{"p": "question " * 50, "r": "answer"}],
        ("--prompt-column", "p", "--response-column", "r", "--overflow", "truncate"),
        ["without a trained token; check the column r, and raise max_length"],
    ),
    (
        texts(60),
        ("--phases", _PHASES, "--min-pack-tokens", 60),
        ["phase 2 has no packs: N tokens are in packs smaller than min_pack_tokens 60; lower"],
    ),
]


@pytest.mark.parametrize(("rows", "options", "words"), LEFT)
def test_rows_of_which_no_pack_is_made_are_refused_with_what_decides_it(
    tmp_path: Path, rows: list[Any], options: tuple[object, ...], words: list[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    (tmp_path / "template").write_text(template)
    chat = ("--chat-template", tmp_path / "template") if "--messages-column" in options else ()
    result = build(tmp_path, path, *options, *chat)
    assert result.code == 2
    sentence = re.sub(r"[\d,]+ tokens are", "N tokens are", result.err.splitlines()[-1])
    assert [word for word in words if word not in sentence] == [], sentence
