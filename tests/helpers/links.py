"""Links between files of the checkout lead somewhere, as GitHub shows them.

`mkdocs build --strict` checks those between pages of the site, and that they lead to no others.
"""

import re
from pathlib import Path

from .blocks import ROOT

_CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
_INCLUDE = re.compile(r"^<!-- include ([\w./-]+) -->$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, and of those that it includes."""
    text = _INCLUDE.sub(lambda line: (ROOT / line[1]).read_text(), path.read_text())
    plain = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+?) *#*$", plain, re.MULTILINE)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    names = [re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in words]
    return {f"{n}-{names[:i].count(n)}" if n in names[:i] else n for i, n in enumerate(names)}


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
