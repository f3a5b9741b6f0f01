"""Sources that are no good files, files that do not go together, and odd ones that are good."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep.schemas import read_manifest
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

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


@pytest.mark.parametrize("name", ["gone.jsonl", "gone/*.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    assert str(tmp_path / name) in refused(tmp_path, tmp_path / name)


@pytest.mark.parametrize("named", ["in/b.jsonl", "in/*.jsonl", "in"])
def test_a_dangling_link_is_named_and_never_left_out(
    tmp_path: Path, folder: Path, named: str
) -> None:
    (folder / "b.jsonl").symlink_to("gone.jsonl")
    expected = f"{folder / 'b.jsonl'} is a link to gone.jsonl, which does not exist"
    assert refused(tmp_path, tmp_path / named) == expected


@pytest.mark.parametrize("named", ["in/b.jsonl", "in/*.jsonl", "in"])
def test_a_pipe_is_named_and_never_waited_for(tmp_path: Path, folder: Path, named: str) -> None:
    os.mkfifo(folder / "b.jsonl")
    expected = (
        f"{folder / 'b.jsonl'} is not a regular file; to read a pipe use - for standard input"
    )
    assert refused(tmp_path, tmp_path / named) == expected


def test_a_device_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    assert refused(tmp_path, tmp_path / "zero.jsonl").startswith(
        f"{tmp_path / 'zero.jsonl'} is not a regular file"
    )


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path, folder: Path) -> None:
    (folder / "b.jsonl").mkdir()
    assert refused(tmp_path, folder / "b.jsonl").startswith(
        f"{folder / 'b.jsonl'} holds no file of a known format"
    )
    assert refused(tmp_path, f"{folder}/*.jsonl") == (
        f"{folder / 'b.jsonl'} is a folder, and {folder}/*.jsonl takes files; match those in it"
    )


def test_a_link_to_a_folder_is_named_and_never_left_out(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    assert refused(tmp_path, folder) == (
        f"{folder / 'more'} is a link to a folder; pass the folder as a separate source, or move "
        "it here"
    )


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    assert str(tmp_path / "a.jsonl") in refused(tmp_path, tmp_path / "a.jsonl")


def test_a_file_of_no_known_format_is_named(tmp_path: Path) -> None:
    for name in (
        "a.pt",
        "a.pkl",
        "a.jsonl.bz2",
        "a.jsonl.xz",
        "a.zip",
        "a.tar.gz",
        "a",
    ):
        (tmp_path / name).write_bytes(b"x")
        assert refused(tmp_path, tmp_path / name).startswith(
            f"{tmp_path / name} has no known format; expected .json"
        )


def test_an_empty_file_among_full_ones_is_named(tmp_path: Path, folder: Path) -> None:
    (folder / "b.jsonl").touch()
    assert (
        refused(tmp_path, folder)
        == f"{folder / 'b.jsonl'} is empty; expected at least one document"
    )


AS_NOBODY = """
import os, sys
import packprep.cli.commands.build, packprep.execute.pipeline
import packprep.sources.formats.jsonl, packprep.loaders, datasets, pickletools
from packprep.cli.main import main
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
main()
"""


def as_nobody(arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """The command by a user who may not read everything, as root may.

    Its libraries are loaded before.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(home)}
    command = [sys.executable, "-c", AS_NOBODY, *arguments[3:]]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=home, env=environment, check=False
    )


@pytest.mark.parametrize("locked", ["b.jsonl", "sub"])
@pytest.mark.parametrize("named", ["in", "in/{locked}", "in/**"])
def test_what_may_not_be_read_is_named_and_never_left_out(locked: str, named: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # where the other user may go, too
        home, folder = Path(name), Path(name, "in")
        home.chmod(0o777)
        (folder / "sub").mkdir(parents=True)
        for place in ("a.jsonl", "b.jsonl", "sub/c.jsonl"):
            (folder / place).write_bytes(WHOLE)
        (folder / locked).chmod(0)
        try:
            done = as_nobody(command_line(home, home / named.format(locked=locked)), home)
        finally:
            (folder / locked).chmod(0o755)
        found = (
            f"packprep: {folder / locked}(/dataset_dict.json)? cannot be read: Permission denied\n"
        )
        assert done.returncode == 2, done
        assert re.fullmatch(found, done.stderr), done
        assert not (home / "out").exists()


def test_a_number_in_the_second_file_is_not_cast_to_text(tmp_path: Path, folder: Path) -> None:
    path = write_jsonl(folder / "b.jsonl", [{"text": 7}])
    assert refused(tmp_path, folder).startswith(
        f"{path} row 0 (line 1): 'text' is a number, expected text"
    )


def test_a_second_file_of_another_type_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "b.parquet")
    assert refused(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet").startswith(
        f"{tmp_path / 'b.parquet'} row 0: 'text' is int64, expected text"
    )


def test_a_flip_in_a_parquet_page_without_checksum_is_only_in_the_digest(tmp_path: Path) -> None:
    """Nothing in the file contradicts it. Pages with checksums are checked: see kinds.py."""
    table = pa.table({"text": ["the cat sat on the mat"] * 20})
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    whole = (tmp_path / "a.parquet").read_bytes()
    digests = set()
    for content in (whole, whole.replace(b"cat", b"bat", 1)):
        (tmp_path / "a.parquet").write_bytes(content)
        assert build(tmp_path, tmp_path / "a.parquet", "--overwrite").code == 0
        digests.add(read_manifest(tmp_path / "out").data["sources"][0]["sha256"])
    assert len(digests) == 2


def test_rows_are_numbered_in_their_own_file(tmp_path: Path, folder: Path) -> None:
    (folder / "b.jsonl").write_bytes(WHOLE + b'{"text": 7}\n')
    assert refused(tmp_path, folder).startswith(
        f"{folder / 'b.jsonl'} row 40 (line 41): 'text' is a number"
    )


def test_the_last_line_cut_in_half_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(WHOLE + b'{"text": "the la')
    assert f"{tmp_path / 'a.jsonl'} row 40 (line 41): invalid JSON" in refused(
        tmp_path, tmp_path / "a.jsonl"
    )


def test_a_row_far_behind_is_named_as_exactly(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "%s"}\n' % (b"x" * 100) * 100_000 + b"\n\nnull\n" + WHOLE
    )
    assert refused(tmp_path, tmp_path / "a.jsonl").startswith(
        f"{tmp_path / 'a.jsonl'} row 100000 (line 100003): the row has no 'text'"
    )


def test_a_missing_column_says_which_there_are(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": "a", "id": 1}])
    assert refused(tmp_path, path) == (
        f"{path} has no column 'text'; it has body, id: choose with --text-column or "
        "--text-template"
    )


def test_odd_but_good_files_build(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").unlink()
    (folder / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + WHOLE)
    (folder / "crlf.jsonl").write_bytes(WHOLE.replace(b"\n", b"\r\n"))
    (folder / "crlf.csv").write_bytes(b"\xef\xbb\xbf" + whole(".csv").replace(b"\n", b"\r\n"))
    (folder / "blank.jsonl").write_bytes(b"\n\r\n" + WHOLE.replace(b"\n", b"\n \t\n"))
    (folder / "noend.jsonl").write_bytes(WHOLE.rstrip())
    (folder / "array.json").write_bytes(b"[" + WHOLE.strip().replace(b"\n", b",\n") + b"]")
    (folder / "escaped.jsonl").write_bytes(b'{"text": "a\\u0000b"}\n')
    (folder / "other.jsonl").write_bytes(
        b'{"text": "a", "id": {"b": 1}}\n{"text": "b", "id": [1], "more": null}\n'
    )
    (folder / "twice.jsonl").write_bytes(b'{"text": "a", "id": 1, "id": 2}\n')
    report = json.loads(build(tmp_path, folder, "--json").out)
    assert report["documents"]["in"] == 6 * 40 + 1 + 2 + 1
    assert report["documents"]["skipped"] == {}


def test_a_strange_name_is_a_name(tmp_path: Path) -> None:
    for name in (
        "a b.jsonl",
        "a[1].jsonl",
        "a*.jsonl",
        "a?b.jsonl",
        "é.jsonl",
        "-a.jsonl",
        "a\nb.jsonl",
    ):
        (tmp_path / name).write_bytes(WHOLE)
        assert build(tmp_path, tmp_path / name, "--overwrite").code == 0


def test_a_name_with_terminal_commands_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb\n.jsonl").write_bytes(b"bad\n")
    shown = f"{tmp_path}/a\\x1b[2Jb\\n.jsonl row 0 (line 1): "
    assert refused(tmp_path, tmp_path / "a\x1b[2Jb\n.jsonl").startswith(shown)


def test_a_document_too_long_names_its_file_and_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["short", "x y " * 500])
    sentence = refused(tmp_path, path, "--overflow", "error")
    assert sentence.startswith(f"{path} row 1 has ")
    assert sentence.endswith(
        "tokens but a pack holds 64; choose --overflow split, truncate or drop"
    )


@pytest.mark.parametrize(
    ("options", "causes"),
    [
        (
            ("--min-document-tokens", 9_000),
            "N tokens are in documents shorter than min_document_tokens 9,000; lower "
            "min_document_tokens",
        ),
        (
            ("--max-document-tokens", 0, "--min-document-tokens", 0),
            "N tokens are in documents longer than max_document_tokens 0; raise "
            "max_document_tokens",
        ),
        (
            ("--overflow", "drop", "--min-document-tokens", 65),
            "N tokens are in documents longer than max_length 64, N tokens are in documents "
            "shorter than min_document_tokens 65; raise max_length or choose overflow split or "
            "truncate, "
            "lower min_document_tokens",
        ),
        (
            ("--min-pack-tokens", 64, "--pad-segment-to-multiple", 64, "--overflow", "drop"),
            "N tokens are in documents longer than max_length 64, N tokens are in packs smaller "
            "than min_pack_tokens 64; raise max_length or choose overflow split or truncate, lower "
            "min_pack_tokens",
        ),
    ],
)
def test_no_document_left_by_the_filters_names_those_that_dropped_some(
    tmp_path: Path, folder: Path, options: tuple[object, ...], causes: str
) -> None:
    sentence = refused(tmp_path, folder, *options)
    left = f"no document is left for the split train: {causes}"
    assert re.sub(r"[\d,]+ tokens", "N tokens", sentence) == left


_PROMPT, _ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


@pytest.mark.parametrize(
    ("rows", "options", "causes"),
    [
        (
            [{"messages": [_PROMPT]}],
            ("--messages-column", "messages"),
            "without a trained token; check the roles of the messages and train_on assistant",
        ),
        (
            [{"ids": [1, 2], "mask": [0, 0]}],
            ("--input-ids-column", "ids", "--loss-mask-column", "mask"),
            "without a trained token; check the column mask",
        ),
        (
            [{"messages": [_PROMPT, _ANSWER]}],
            ("--messages-column", "messages", "--min-loss-tokens", 50),
            "with fewer trained tokens than min_loss_tokens 50; lower min_loss_tokens",
        ),
        (
            [{"p": "question " * 50, "r": "answer"}],
            ("--prompt-column", "p", "--response-column", "r", "--overflow", "truncate"),
            "without a trained token; check the column r, and raise max_length if truncation cuts "
            "answers off",
        ),
    ],
)
def test_rows_without_a_trained_token_name_what_decides_it(
    tmp_path: Path, rows: list[Any], options: tuple[object, ...], causes: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    template = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    (tmp_path / "template").write_text(template)
    chat = ("--chat-template", tmp_path / "template") if "--messages-column" in options else ()
    result = build(tmp_path, path, *options, *chat)
    left = f"packprep: no document is left for the split train: N tokens are in segments {causes}"
    assert result.code == 2
    assert re.sub(r"[\d,]+ tokens", "N tokens", result.err.splitlines()[-1]) == left


def test_a_phase_without_packs_names_what_took_its_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(60))
    phases = [{"tokens": 900}, {"tokens": 40, "max_length": 128}]
    sentence = refused(tmp_path, path, "--phases", json.dumps(phases), "--min-pack-tokens", 60)
    assert re.fullmatch(
        r"phase 2 has no packs: \d+ tokens are in packs smaller than min_pack_tokens 60; lower "
        "min_pack_tokens",
        sentence,
    ), sentence


def test_rows_without_text_say_so(tmp_path: Path) -> None:
    assert refused(tmp_path, write_jsonl(tmp_path / "a.jsonl", ["", ""])) == (
        "no document is left for the split train: 2 rows have no text; check the columns of the "
        "sources"
    )


def test_no_document_left_for_validation_says_so(tmp_path: Path, folder: Path) -> None:
    sentence = refused(tmp_path, folder, "--holdout", "0.0000001")
    assert sentence.startswith("no document is left for the split validation: ")
    assert sentence.endswith(" tokens are in the other split; change holdout")


def test_an_output_of_other_settings_is_kept_and_the_difference_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(20))
    assert build(tmp_path, path).code == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    other = (
        "-o",
        tmp_path / "out",
        "--tokenizer",
        save_tokenizer(tmp_path / "tokenizer"),
        "--max-length",
        32,
    )
    refusal = run("build", path, *other)
    assert refusal.code == 2
    assert "max_length was 64, now 32" in refusal.err
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    again = build(tmp_path, path)
    assert again.code == 0
    assert "nothing to do" in again.err
