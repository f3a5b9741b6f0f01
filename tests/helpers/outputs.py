"""Compares the output that a page shows with the one that a command prints.

Numbers, digests, spaces and blank lines may differ. A line `...` stands for any lines.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MASKS = (
    (re.compile(r"\b[0-9a-f]{64}\b"), "#"),
    (re.compile(r"(?<![A-Za-z_\d])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"), "#"),  # but of sha256
    (re.compile(r"# [kMGT]?B\b"), "# B"),
    (re.compile(r"\s+"), " "),
)
# Lines that a slow machine or a first run adds.
_PASSING = re.compile(r"^compiling kernels|\d MB of memory$|^\w+: \d[\d.,]* of \d")


def masked(lines: Iterable[str]) -> list[str]:
    """The lines as they are compared.

    Example: ["packs   1,718", "", "shards  28 MB"] -> ["packs #", "shards # B"]
    """
    result = []
    for line in lines:
        text = _COLOUR.sub("", line).strip()
        if not text or _PASSING.search(text):
            continue
        for pattern, mask in _MASKS:
            text = pattern.sub(mask, text)
        result.append(text)
    return result


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """A diff of the masked lines; empty where the output is the one that the page shows."""
    expected, actual = masked(shown), masked(printed)
    lines = (r"(.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected)
    if re.fullmatch("".join(lines), "".join(f"{line}\n" for line in actual)):
        return ""
    diff = difflib.unified_diff(expected, actual, "the page", "the command", lineterm="", n=1000)
    return "\n".join([*diff, "", "printed:", *printed])
