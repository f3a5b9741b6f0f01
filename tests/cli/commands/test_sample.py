import json
from pathlib import Path
from typing import Any

import pytest

from packprep.cli import sample_data
from tests.helpers.command import Result, run

FILES = {"code.jsonl", "prose.jsonl", "chats.jsonl", "pairs.jsonl", "tokenizer"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The sample, and what the command printed."""
    folder = tmp_path_factory.mktemp("sample") / "data"
    return folder, run("sample", folder)


@pytest.fixture(scope="module")
def folder(written: tuple[Path, Result]) -> Path:
    return written[0]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_command_names_every_file_and_the_next_command(written: tuple[Path, Result]) -> None:
    folder, result = written
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert {path.name for path in folder.iterdir()} == FILES
    assert {Path(line.split(":")[0]) for line in lines[:-1]} == set(folder.iterdir())
    assert lines[-1] == (
        f"try next: packprep build {folder}/code.jsonl -o packed --tokenizer {folder}/tokenizer "
        "--max-length 2048"
    )


def test_the_same_python_writes_the_same_bytes_and_leaves_them_alone(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert run("sample", folder).code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_file_that_differs_is_replaced_only_on_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"code.jsonl": b"{}\n", "prose.jsonl": b"", "chats.jsonl": b"", "pairs.jsonl": b""}
    monkeypatch.setattr(sample_data, "sample_files", lambda: files)
    (tmp_path / "pairs.jsonl").write_text("mine")
    result = run("sample", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"packprep: {tmp_path}/pairs.jsonl exists and differs from the sample; choose another "
        "folder, or replace it with --overwrite\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]
    assert run("sample", tmp_path, "--overwrite").code == 0
    assert (tmp_path / "pairs.jsonl").read_bytes() == b""


def test_conversations_have_two_to_six_turns_and_answers_that_are_docstrings(folder: Path) -> None:
    chats = [row["messages"] for row in rows(folder / "chats.jsonl")]
    assert len(chats) > 200
    roles = [[message["role"] for message in chat if message["role"] != "system"] for chat in chats]
    assert all(each == ["user", "assistant"] * (len(each) // 2) for each in roles)
    assert {len(each) // 2 for each in roles} <= {2, 3, 4, 5, 6}
    assert {chat[0]["role"] for chat in chats} == {"system", "user"}
    texts = {message["content"] for chat in chats for message in chat}
    assert "What does `textwrap.fill` do?" in texts
    assert "Fill a single paragraph of text, returning a new string." in texts
    assert any("reasoning_content" in chat[-1] for chat in chats)


def test_both_sides_of_a_pair_are_documentation_and_differ(folder: Path) -> None:
    pairs = rows(folder / "pairs.jsonl")
    assert len(pairs) > 200
    assert all(set(pair) == {"prompt", "chosen", "rejected"} for pair in pairs)
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("prose.jsonl", []),
        ("chats.jsonl", ["--messages-column", "messages", "--train-on", "assistant"]),
        ("chats.jsonl", ["--messages-column", "messages", "--train-on", "last-turn"]),
        (
            "pairs.jsonl",
            [
                "--pair-columns",
                "chosen,rejected",
                "--prompt-column",
                "prompt",
                "--overflow",
                "truncate",
            ],
        ),
    ],
)
def test_every_file_builds_without_loss(
    folder: Path, tmp_path: Path, file: str, options: list[str]
) -> None:
    names = [folder / file, "-o", tmp_path / "out", "--tokenizer", folder / "tokenizer"]
    result = run("build", *names, "--max-length", "2048", "--json", "-q", *options)
    assert result.code == 0, result.err
    tokens = json.loads(result.out)["tokens"]
    assert tokens["tokens_packed"] == tokens["tokens_in"]
    assert run("verify", tmp_path / "out", "-q").code == 0


def test_the_template_renders_as_transformers_renders_it(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "b", "content": "c"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|begin|>user\na<|end|>\n<|begin|>assistant\n<think>\nb\n</think>\n\nc<|end|>\n"
    )
