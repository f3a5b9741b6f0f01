"""The runner of the documentation: what it takes for a block, runs, compares and refuses."""

from pathlib import Path

import pytest

from .blocks import PageError, blocks_of, check_page
from .outputs import Digests, difference, masked
from .sessions import run_page


def run(tmp_path: Path, markdown: str) -> Path:
    """The folder of a page that has been run."""
    folder = tmp_path / "work"
    folder.mkdir()
    run_page(blocks_of(markdown, "page.md"), folder, tmp_path / "cache", tmp_path / "sample")
    return folder


def test_a_fence_gives_language_attributes_and_text() -> None:
    page = 'words\n\n```python file="a.py" not-run="slow"\nx = 1\n```\n\n    ```\n    y\n    ```\n'
    first, second = blocks_of(page, "page.md")
    assert (first.where, first.language, first.text) == ("page.md:3", "python", "x = 1\n")
    assert first.attributes == {"file": "a.py", "not-run": "slow"}
    assert (second.where, second.language, second.text) == ("page.md:7", "", "y\n")


def test_a_longer_fence_holds_a_shorter_one() -> None:
    [block] = blocks_of("````text\n```python\nx\n```\n````\n", "page.md")
    assert block.text == "```python\nx\n```\n"


def test_a_console_block_is_commands_and_their_output() -> None:
    page = "```console\n$ one \\\n    --more\nout\n> out\n\n$ for i in 1; do\n> two\n> done\n```\n"
    [block] = blocks_of(page, "page.md")
    assert [(each.line, each.text, each.output) for each in block.commands()] == [
        (2, "one \\\n    --more", ("out", "> out", "")),
        (7, "for i in 1; do\ntwo\ndone", ()),
    ]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("```python\nx\n", "page.md:1: the block has no end"),
        ("```console\nout\n$ ls\n```\n", "page.md:2: output above the first command: out"),
        ('```python not-run=""\n```\n', "page.md:1: not-run names no reason"),
        ("```python slow\n```\n", 'page.md:1: slow is no attribute such as file="train.py"'),
        (
            '```python output="varies"\n```\n',
            "page.md:1: a python block has no output; it may have file, not-run",
        ),
        (
            "```bash\nls\n```\n",
            'page.md:1: write ```console with "$ " before each command, file="..." or '
            'not-run="..."',
        ),
        (
            '```python file="a.py"\n```\n\n```console not-run="slow"\n$ python a.py\n```\n',
            "page.md:1: no later console block runs a.py",
        ),
    ],
)
def test_a_block_that_would_not_run_is_refused(page: str, sentence: str) -> None:
    with pytest.raises(PageError) as error:
        check_page(blocks_of(page, "page.md"))
    assert str(error.value) == sentence


def test_the_shell_keeps_its_folder_and_variables_from_block_to_block(tmp_path: Path) -> None:
    folder = run(
        tmp_path,
        "```console\n$ mkdir new && cd new\n$ name=file\n```\n\n"
        '```console\n$ echo "in $name" > $name\n$ cat $name\nin file\n```\n',
    )
    assert (folder / "new" / "file").read_text() == "in file\n"


def test_python_blocks_share_their_names_and_see_what_commands_wrote(tmp_path: Path) -> None:
    run(
        tmp_path,
        "```python\nx = 2\n```\n\n```console\n$ echo 40 > number\n```\n\n"
        '```python\nprint(x + int(open("number").read()))\n```\n\n'
        '```text output="above"\n42\n```\n',
    )


def test_a_file_is_written_and_run(tmp_path: Path) -> None:
    page = (
        '```python file="src/a.py"\nprint("hello")\n```\n\n'
        "```console\n$ python src/a.py\nhello\n```\n"
    )
    assert (run(tmp_path, page) / "src" / "a.py").read_text() == 'print("hello")\n'


def test_a_block_that_is_not_run_leaves_no_trace(tmp_path: Path) -> None:
    page = '```console not-run="of a test"\n$ touch there\n```\n'
    assert list(run(tmp_path, page).iterdir()) == []


@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("```console\n$ (exit 3)\n```\n", "page.md:2: $ (exit 3)\nended with 3, expected 0"),
        ("```console\n$ exit 3\n```\n", "stopped the shell, expected 0"),
        ('```console exit="3"\n$ true\n```\n', "ended with 0, expected 3"),
        ("```console\n$ echo yes\nno\n```\n", "-no\n+yes"),
        ("```console\n$ echo 'it\n```\n", "unexpected EOF"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nx = (\n```\n", "was never closed"),
        ('```text file="../a"\n```\n', "page.md:1: ../a is outside of the page's folder"),
        ("```console\n$ pip install packprep[no]\n```\n", "packprep has no extra 'no'"),
    ],
)
def test_a_page_that_does_not_do_what_it_shows_fails(tmp_path: Path, page: str, part: str) -> None:
    with pytest.raises((AssertionError, SyntaxError)) as error:
        run(tmp_path, page)
    assert part in str(error.value)


def test_an_exit_code_is_shown_by_echo_or_by_the_fence(tmp_path: Path) -> None:
    run(
        tmp_path,
        '```console\n$ (exit 3)\n$ echo $?\n3\n```\n\n```console exit="2"\n$ (exit 2)\n```\n',
    )


def test_commands_of_pip_are_not_run(tmp_path: Path) -> None:
    run(tmp_path, "```console\n$ pip install 'packprep[ray,s3]' numpy  # some words\n```\n")


def test_a_page_whose_library_is_missing_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no-such-library is not installed"):
        run(tmp_path, "```console\n$ pip install packprep no-such-library\n```\n")


def test_no_page_reaches_the_network(tmp_path: Path) -> None:
    run(
        tmp_path,
        "```python\nimport urllib.request\ntry:\n    urllib.request.urlopen('http://example.org')\n"
        'except OSError as error:\n    print(error)\n```\n\n```text output="above"\n'
        "<urlopen error [Errno 111] Connection refused>\n```\n",
    )


def test_numbers_digests_spaces_and_blank_lines_are_not_compared() -> None:
    shown = ["packs        1,718", "", "sha256  " + "0a" * 32, "bias -0.36, 467 MB"]
    printed = ["packs  9", "sha256  " + "ff" * 32, "bias 0.4, 1.2 GB"]
    assert masked(shown) == ["packs #", "sha256 #", "bias #, # B"]
    assert difference(shown, printed) == ""


A, B, C = (f"sha256   {digit * 64}" for digit in "abc")


@pytest.mark.parametrize(
    ("outputs", "fixed", "wrong"),
    [
        ([([A], [A]), ([B], [B])], True, False),
        ([([A], [B])], True, True),
        ([([A], [B]), ([A], [B])], False, False),
        ([([A], [B]), ([A], [C])], False, True),  # two outputs, shown as one
        ([([A], [C]), ([B], [C])], False, True),  # one output, shown as two
        ([(["..."], [A])], True, False),
        ([(["x has sha256 " + "a" * 64], ["x has sha256 " + "b" * 64])], True, False),
    ],
)
def test_digests_of_outputs_are_those_of_the_page(
    outputs: list[tuple[list[str], list[str]]], fixed: bool, wrong: bool
) -> None:
    digests = Digests()
    said = [digests.difference(shown, printed, fixed=fixed) for shown, printed in outputs]
    assert (said[-1] != "") == wrong
    assert set(said[:-1]) <= {""}


def test_lines_of_progress_are_not_compared() -> None:
    printed = [
        "compiling kernels (first run)",
        "read: 12 MB, 1.2 MB/s, 30 s left, 300 MB of memory",
        "packed",
    ]
    assert difference(["packed"], printed) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["..."], [], True),
        (["a", "..."], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["a", "...", "b", "...", "c"], ["a", "x", "b", "c"], True),
        (["a", "...", "a"], ["a"], False),
        (["...", "b", "..."], ["a", "c"], False),
        (["a"], ["a", "b"], False),
    ],
)
def test_three_dots_stand_for_any_lines(shown: list[str], printed: list[str], same: bool) -> None:
    assert (difference(shown, printed) == "") == same
