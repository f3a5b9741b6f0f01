"""The runner of the documentation: what it takes for a block, runs, compares and refuses."""

from pathlib import Path

import pytest

from .blocks import PageError, blocks_of, check_page
from .outputs import difference
from .sessions import run_page


def run(tmp_path: Path, markdown: str) -> Path:
    """The folder of a page that has been run."""
    folder = tmp_path / "work"
    folder.mkdir()
    run_page(blocks_of(markdown, "page.md"), folder, tmp_path / "cache", tmp_path / "sample")
    return folder


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```python\nx\n", "1: the block has no end"),
        ('```python not-run=""\n```\n', "1: not-run names no reason"),
        ('```python output="varies"\n```\n', "1: a python block has no output; .* file, not-run"),
        ("```bash\nls\n```\n", "1: write ```console"),
        (
            '```python file="a.py"\n```\n\n```console not-run="slow"\n$ python a.py\n```\n',
            "1: no later console block runs a.py",
        ),
    ],
)
def test_a_block_that_would_not_run_is_refused(page: str, words: str) -> None:
    with pytest.raises(PageError, match=f"page.md:{words}"):
        check_page(blocks_of(page, "page.md"))


@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("```console\n$ (exit 3)\n```\n", "page.md:2: $ (exit 3)\nended with 3, expected 0"),
        ("```console\n$ echo yes\nno\n```\n", "-no\n+yes"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```console\n$ pip install packprep[no]\n```\n", "packprep has no extra 'no'"),
    ],
)
def test_a_page_that_does_not_do_what_it_shows_fails(tmp_path: Path, page: str, part: str) -> None:
    with pytest.raises((AssertionError, SyntaxError)) as error:
        run(tmp_path, page)
    assert part in str(error.value)


def test_digests_of_outputs_differ_where_the_data_are_those_of_the_page() -> None:
    shown, printed = (["shards  3", f"sha256   {digit * 64}"] for digit in "ab")
    assert difference(shown, printed) == difference(shown, shown, exact=True) == ""
    assert difference(shown, printed, exact=True) != ""
