"""Compares the output that a page shows with the one that a command prints.

Numbers, digests, spaces and blank lines may differ. A line `...` stands for any lines. With the
sample data of the pages, lines that are the digest of an output are compared as they are.
"""

import difflib
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MASKS = (
    (re.compile(r"\b[0-9a-f]{64}\b"), "#"),
    (re.compile(r"(?<![A-Za-z_\d])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"), "#"),  # but of sha256
    (re.compile(r"# [kMGT]?B\b"), "# B"),
    (re.compile(r"\s+"), " "),
)
# Lines that a slow machine or a first run adds.
_PASSING = re.compile(r"^compiling kernels|\d MB of memory$|^\w+: \d[\d.,]* of \d")
_DIGEST = re.compile(r"sha256 +[0-9a-f]{64}")
_ANY = "..."


def masked(lines: Iterable[str], *, exact: bool = False) -> list[str]:
    """The lines as they are compared. exact: digests of outputs are not masked.

    Example: ["packs   1,718", "", "shards  28 MB"] -> ["packs #", "shards # B"]
    """
    result = []
    for line in lines:
        text = _COLOUR.sub("", line).strip()
        if not text or _PASSING.search(text):
            continue
        for pattern, mask in () if exact and _DIGEST.fullmatch(text) else _MASKS:
            text = pattern.sub(mask, text)
        result.append(text)
    return result


def difference(shown: Sequence[str], printed: Sequence[str], *, exact: bool = False) -> str:
    """A diff of the masked lines; empty where the output is the one that the page shows."""
    expected, actual = masked(shown, exact=exact), masked(printed, exact=exact)
    if _matches(expected, actual):
        return ""
    diff = difflib.unified_diff(expected, actual, "the page", "the command", lineterm="", n=1000)
    return "\n".join([*diff, "", "printed:", *printed])


def _matches(expected: list[str], actual: list[str]) -> bool:
    lines = (r"(.*\n)*" if line == _ANY else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in actual)) is not None


PAGES_DATA = "2b5f56a6e1f6452af9694a76efb3c85df0c6eb4d00fae6a5d9b918bc14eba73e"
"""`data_digest` of the sample data with which the pages were written."""


def data_digest(folder: Path) -> str:
    """Digest of all files in a folder, which depend on the standard library of the Python."""
    digest = hashlib.sha256()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(folder).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()
