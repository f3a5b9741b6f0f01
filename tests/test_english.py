"""Phrases that are hard to read are nowhere in the project.

CONTRIBUTING.md shows what to write instead of each.
"""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PHRASES = (
    "mend it",
    "stands twice",
    "run the same command to go on",
    "free them and run the same command",
    "stand here again",
    "put together of several builds",
    "whoever finds no lock",
    "a holder that was asleep finds his successor",
    "what libraries are told",
    "told to whom it concerns",
    "measured by whomever",
    "ConfigError for ever",
    "with this little memory",
    "take so much of the disk",
    "what making the window gave",
)
"""The left column of the table in CONTRIBUTING.md; of long entries, a part."""

FOLDERS = ("packprep", "loaders", "schemas", "scripts", "tests", "docs", ".ci", ".github")
FILES = sorted(
    path
    for path in (
        *ROOT.glob("*.*"),
        *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*")),
    )
    if path.suffix in ("", ".md", ".py", ".toml", ".yml", ".yaml", ".html", ".css", ".json", ".txt")
    and path.is_file()
    and "golden" not in path.parts
    and path.name not in ("CONTRIBUTING.md", Path(__file__).name)
)


def words(text: str) -> str:
    """The text in one line and in lower case, without the marks of comments and joined strings."""
    joined = re.sub(r"[\"']\s*\n\s*[rf]*[\"']", "", text)
    return re.sub(r"[\s#]+", " ", joined).lower()


@cache
def project() -> dict[str, str]:
    """The words of each file by its path."""
    return {path.relative_to(ROOT).as_posix(): words(path.read_text()) for path in FILES}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_nowhere_in_the_project(phrase: str) -> None:
    found = [name for name, text in project().items() if phrase.lower() in text]
    assert found == []


def test_the_page_for_contributors_says_what_to_write_instead() -> None:
    table = (
        (ROOT / "CONTRIBUTING.md").read_text().split("| instead of | write |")[1].split("\n\n")[0]
    )
    left = [row.split(" | ")[0].lower() for row in table.splitlines()[2:]]
    assert [phrase for phrase in PHRASES if not any(phrase.lower() in cell for cell in left)] == []
    assert [cell for cell in left if not any(phrase.lower() in cell for phrase in PHRASES)] == []


def test_phrases_are_found_across_lines_of_comments_and_strings() -> None:
    assert "told to whom it concerns" in words("# Told to\n    # whom it concerns.")
    assert "run the same command" in words('"run the same "\n    f"command"')
