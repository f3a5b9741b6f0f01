"""The site: what hooks change on a page, and how pages look in a browser."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packprep import loaders

from ..helpers.chromium import Chromium, find_chromium
from .blocks import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import hooks


def test_attributes_of_fences_are_not_shown_but_the_name_of_a_file() -> None:
    page = '```python file="a.py" not-run="slow"\nx\n```\n\n  ```console output="varies"\n  ```\n'
    assert hooks.plain_fences(page) == '```python title="a.py"\nx\n```\n\n  ```console\n  ```\n'


def test_a_file_is_included_without_its_title_and_its_links(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Title\n\nSee [code](code.py), [web](https://a.b), [up](#x).\n"
    )
    page = hooks.included("# Page\n\n<!-- include a.md -->\n", tmp_path)
    assert page == "# Page\n\nSee code, [web](https://a.b), [up](#x).\n"


def test_public_names_are_listed_and_linked_from_the_table_above() -> None:
    page = hooks.with_api("| `Pack`, `Segment` | a |\n\n<!-- api packprep.loaders -->\n")
    assert page.startswith(
        "| [`Pack`](#packprep.loaders.Pack), [`Segment`](#packprep.loaders.Segment) | a |\n"
    )
    assert [line for line in page.splitlines() if line.startswith("::: ")] == [
        f"::: packprep.loaders.{name}" for name in loaders.__all__
    ]


def test_blocks_with_sentences_of_more_than_100_characters_wrap() -> None:
    page = '<div class="language-{} highlight"><pre><code>a\n<span>{}</span>\n</code></pre></div>'
    wide = "&lt;" * 100  # 100 characters on the screen
    table = wide + "  x"
    for language, line, wraps in (("console", table, False), ("text", wide + "x", True)):
        result = hooks.with_wrapped_lines(page.format(language, line))
        start = 'class="wrapped ' if wraps else 'class="'
        assert result == page.format(language, line).replace('class="', start, 1)


def test_docstrings_become_markdown_that_shows_them_as_they_are() -> None:
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    docstring = "a[0][1] of `x[0]`, <|end|> and *.\n\n>>> f()\n[1]\n\nEnd."
    from docstrings import markdown_of

    assert markdown_of(docstring) == (
        "a\\[0\\]\\[1\\] of `x[0]`, \\<|end|> and \\*.\n\n```pycon\n>>> f()\n[1]\n```\n\nEnd."
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    with Chromium(executable, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


# What a copy button takes, see docs/site.css.
COPIED = """
(() => {
  const code = document.querySelector(".language-console code")
  code.setAttribute("data-md-copying", "")
  return code.innerText.trim()
})()
"""


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
@pytest.mark.parametrize("page", ["reference/cli", "reference/options", "reference/glossary"])
def test_a_page_fits_its_window_and_loads_nothing_from_elsewhere(
    site: Path, chromium: Chromium, page: str, width: int, dark: bool
) -> None:
    seen = chromium.visit(
        (site / f"{page}.html").as_uri(),
        width=width,
        dark=dark,
        questions={
            "surplus": "document.documentElement.scrollWidth - window.innerWidth",
            "scheme": "document.body.getAttribute('data-md-color-scheme')",
        },
    )
    assert seen.answers == {"surplus": 0, "scheme": "slate" if dark else "default"}
    assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.long
def test_a_copy_button_takes_commands_without_prompts_and_output(
    site: Path, chromium: Chromium
) -> None:
    page = (site / "reference" / "cli.html").as_uri()
    seen = chromium.visit(page, width=1280, dark=False, questions={"copied": COPIED})
    assert seen.answers == {"copied": "packprep sample data"}
