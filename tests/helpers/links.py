"""Links between files of the checkout lead somewhere, as GitHub shows them.

`mkdocs build --strict` checks those between pages of the site, and that they lead to no others.
"""

import re
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, name_of

TOP = [path for path in ROOT.glob("*.md") if path.name != "README.md"]
FILES = [*PAGES, *TOP, ROOT / "schemas" / "README.md"]
_CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
_INCLUDE = re.compile(r"^<!-- include ([\w./-]+) -->$", re.MULTILINE)


def _text(path: Path) -> str:
    return _INCLUDE.sub(lambda line: (ROOT / line[1]).read_text(), path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    plain = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", "", _text(path), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", plain, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(
            re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each) is not None for each in found
        )
        found.add(f"{anchor}-{number}" if anchor in found else anchor)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', plain))


def wrong_links(path: Path) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of it."""
    wrong = []
    for groups in _LINK.findall(_CODE.sub("", path.read_text())):
        link = "".join(groups)
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_relative_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    assert wrong_links(path) == []
