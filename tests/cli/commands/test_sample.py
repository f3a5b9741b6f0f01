"""Sample data: the files of the command, what is made of sources, and what is refused."""

import sys
import sysconfig
from pathlib import Path

import pytest

from packprep.cli import sample_data
from packprep.support.errors import InputError
from tests.helpers.command import run
from tests.helpers.errors import refused

FILES = {"code.jsonl", "prose.jsonl", "chats.jsonl", "pairs.jsonl", "tokenizer"}
SOURCE = '''
def shorten(text, width=70):
    """Collapse and cut
    the text.

    Words are not torn apart.
    """

def _private():
    """Nobody asks."""

def undocumented():
    pass

class Wrapper:
    async def fill(self):
        """Fill a paragraph."""
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample."""
    folder = tmp_path_factory.mktemp("sample") / "data"
    assert run("sample", folder).code == 0
    return folder


@pytest.mark.long
def test_the_same_python_writes_the_same_bytes_and_names_every_file(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    result = run("sample", folder)
    *lines, advice = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert {path.stat().st_mtime_ns for path in before} == set(before.values())
    assert {path.name for path in folder.iterdir()} == FILES
    assert {Path(line.split(":")[0]) for line in lines} == set(folder.iterdir())
    tokenizer = f"--tokenizer {folder}/tokenizer --max-length 2048"
    assert advice == f"try next: packprep build {folder}/code.jsonl -o packed {tokenizer}"


def test_a_file_that_differs_is_replaced_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict.fromkeys(sorted(FILES - {"tokenizer"}), b"")
    monkeypatch.setattr(sample_data, "sample_files", lambda: files)
    (tmp_path / "pairs.jsonl").write_text("mine")
    result = run("sample", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "pairs.jsonl exists and differs from the sample; choose another" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]
    assert run("sample", tmp_path, "--overwrite").code == 0
    assert (tmp_path / "pairs.jsonl").read_bytes() == b""


def test_the_template_renders_as_transformers_renders_it(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    answer = {"role": "assistant", "reasoning_content": "b", "content": "c"}
    messages = [{"role": "user", "content": "a"}, answer]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|begin|>user\na<|end|>\n<|begin|>assistant\n<think>\nb\n</think>\n\nc<|end|>\n"
    )


def test_functions_are_public_documented_and_known_by_their_whole_name() -> None:
    names = ("textwrap.py", "_hidden.py", "idlelib/editor.py")
    sources = dict.fromkeys(names, SOURCE) | {"broken.py": "def ("}
    assert list(sample_data._functions(sources)) == [
        (
            "textwrap",
            "textwrap.shorten",
            "textwrap.shorten(text, width=70)",
            "Collapse and cut the text.",
            "Words are not torn apart.",
            "textwrap.py, line 2: def shorten(text, width=70)",
        ),
        (
            "textwrap",
            "textwrap.Wrapper.fill",
            "textwrap.Wrapper.fill(self)",
            "Fill a paragraph.",
            "",
            "textwrap.py, line 16: def fill(self)",
        ),
    ]
    [function, _] = sample_data._functions({"json/__init__.py": SOURCE})
    assert (function.module, function.name) == ("json", "json.shorten")


def test_an_answer_of_a_pair_is_never_its_own_neighbour() -> None:
    functions = list(sample_data._functions({"textwrap.py": SOURCE}))
    one, other = "Collapse and cut the text.\n\nWords are not torn apart.", "Fill a paragraph."
    pairs = [(pair["chosen"], pair["rejected"]) for pair in sample_data._pairs(functions)]
    assert pairs == [(one, other), (other, one)]
    assert list(sample_data._pairs(functions[:1])) == []


def test_a_python_without_sources_or_topics_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with refused(InputError, "holds no Python sources, which the sample is made of"):
        sample_data._sources()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with refused(InputError, "this Python has no module pydoc_data.topics"):
        sample_data._topics()
