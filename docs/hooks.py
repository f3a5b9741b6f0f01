"""Changes of pages between the checkout and the site.

- Attributes of fences (file=, not-run=, output=, exit=) are for the tests; the site shows the name
  of a file as the title of its block.
- A line `<!-- include PATH -->` is replaced by that file of the checkout without its title.
- A line `<!-- api PACKAGE -->` is replaced by all public names of the package, for mkdocstrings;
  names in the table above it become links to them.
- Names of tests in a table may break after each word of them.
- A block that shows a sentence of more than 100 characters, such as an error, wraps its lines
  unless it has columns.
"""

import html
import importlib
import re
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})([\w+-]+)((?:\s+[\w-]+=\"[^\"]*\")+)\s*$", re.MULTILINE)
_FILE = re.compile(r"\sfile=(\"[^\"]*\")")
_INCLUDE = re.compile(r"^<!-- include ([\w./-]+) -->$", re.MULTILINE)
_API = re.compile(r"^<!-- api ([\w.]+) -->$", re.MULTILINE)
_FIRST_CELL = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
_OUTPUT = re.compile(
    r'<div class="(?=language-(?:console|text) )([^"]*)">(<pre>.*?</pre>)', re.DOTALL
)
_TEST = re.compile(r"tests/[\w/.]+::\w+")
_TAG = re.compile(r"<[^>]+>")
_WIDTH = 100  # characters of the widest sentence that does not wrap
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")


def plain_fences(markdown: str) -> str:
    """The page without the attributes of its fences.

    Example: ```python file="train.py" not-run="slow" -> ```python title="train.py"
    """

    def plain(fence: re.Match[str]) -> str:
        indent, marks, language, attributes = fence.groups()
        name = _FILE.search(attributes)
        return f"{indent}{marks}{language}" + (f" title={name[1]}" if name else "")

    return _FENCE.sub(plain, markdown)


def included(markdown: str, root: Path) -> str:
    """The page with the files that it includes.

    Of their links to pages the folder is taken away; of those to other files the text stays.
    """

    def plain(link: re.Match[str]) -> str:
        page = link[2].removeprefix("../docs/")
        return link[1] if page == link[2] else f"[{link[1]}]({page}{link[3] or ''})"

    def text(line: re.Match[str]) -> str:
        body = (root / line[1]).read_text()
        return _LINK.sub(plain, re.sub(r"\A# .*\n+", "", body)).rstrip("\n")

    return _INCLUDE.sub(text, markdown)


def with_api(markdown: str) -> str:
    """The page with the public names of the packages that it asks for."""
    parts = _API.split(markdown)
    result = []
    for table, package in zip(parts[::2], [*parts[1::2], ""], strict=True):
        if not package:
            result.append(table)
            continue

        def linked(cell: re.Match[str], package: str = package) -> str:
            return "| " + re.sub(r"`(\w+)`", rf"[`\1`](#{package}.\1)", cell[1]) + " |"

        names = importlib.import_module(package).__all__
        result.append(_FIRST_CELL.sub(linked, table))
        result.append("\n\n".join(f"::: {package}.{name}" for name in names))
    return "".join(result)


def with_wrapped_lines(page: str) -> str:
    """The page in HTML; blocks of console and text with long sentences have the class `wrapped`."""

    def marked(block: re.Match[str]) -> str:
        lines = html.unescape(_TAG.sub("", block[2])).splitlines()
        has_columns = any("  " in line.strip() for line in lines)
        if has_columns or max(map(len, lines), default=0) <= _WIDTH:
            return block[0]
        return f'<div class="wrapped {block[1]}">{block[2]}'

    return _OUTPUT.sub(marked, page)


def with_breaks(page: str) -> str:
    """The page in HTML; a long name of a test has places where it may break."""
    return _TEST.sub(lambda name: re.sub(r"(/|::|_)", r"\1<wbr>", name[0]), page)


def on_page_content(content: str, **settings: Any) -> str:
    return with_breaks(with_wrapped_lines(content))


def on_page_markdown(markdown: str, **settings: Any) -> str:
    root = Path(settings["config"].config_file_path).parent
    return plain_fences(with_api(included(markdown, root)))
