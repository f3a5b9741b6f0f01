"""A page in Markdown in; its fenced blocks out.

A fence names a language and attributes: ```console output="varies". The attributes are

    file="train.py"       write the block to this file; a later console block runs it
    not-run="needs S3"    do not run the block, and why
    output="varies"       console: run it and do not compare its output
    output="above"        text: the output of the block above
    exit="1"              console: the last command ends with this code; all others with 0
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PUBLISHED = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
PAGES = [ROOT / "README.md", *sorted(path for path in _PUBLISHED if path.parent.name != "next")]

SHELL = ("sh", "bash", "shell", "zsh")
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<language>[\w+-]*)(?P<rest>.*)$")
_ATTRIBUTE = re.compile(r'\s+([\w-]+)="([^"]*)"')
_KNOWN = {
    "console": {"not-run", "output", "exit"},
    "text": {"output", "file", "not-run"},
    "python": {"not-run", "file"},
}


class PageError(AssertionError):
    """A block is written wrongly; the message begins with page and line."""


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the lines that the page shows below it."""

    line: int
    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of the fence
    language: str
    attributes: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_code(self) -> bool:
        """True for shell and Python: what has to run, or say why it cannot."""
        return self.language in ("console", "python", *SHELL)

    @property
    def why_not(self) -> str | None:
        """The reason why it does not run, or None."""
        return self.attributes.get("not-run")

    @property
    def file(self) -> str | None:
        return self.attributes.get("file")

    def commands(self) -> list[Command]:
        """The commands of a console block.

        A line that begins with `$ ` begins a command. It goes on in lines that begin with `> `, and
        behind a backslash. Any other line is output.
        """
        commands: list[Command] = []
        lines: list[str] = []  # of the command that is not complete yet
        output: list[str] = []
        start = 0

        def end() -> None:
            if lines:
                commands.append(Command(start, "\n".join(lines), tuple(output)))

        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            if line.startswith("$ "):
                end()
                lines, output, start = [line[2:]], [], number
            elif not lines:
                raise PageError(f"{self.page}:{number}: output above the first command: {line}")
            elif not output and line.startswith("> "):
                lines.append(line[2:])
            elif not output and lines[-1].endswith("\\"):
                lines.append(line)
            else:
                output.append(line)
        end()
        return commands


def blocks_of(markdown: str, page: str) -> list[Block]:
    """All fenced blocks of a page, in order; PageError for a fence that is not understood."""
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(markdown.splitlines(), 1):
        if opened is None:
            opened = _FENCE.match(line)
            start, lines = number, []
        elif line.strip() == opened["marks"]:
            blocks.append(_block(page, start, opened, lines))
            opened = None
        else:
            lines.append(line.removeprefix(opened["indent"]))
    if opened is not None:
        raise PageError(f"{page}:{start}: the block has no end")
    return blocks


def _block(page: str, line: int, fence: re.Match[str], lines: list[str]) -> Block:
    language, rest = fence["language"], fence["rest"].rstrip()
    attributes = dict(_ATTRIBUTE.findall(rest))
    if _ATTRIBUTE.sub("", rest):
        raise PageError(f'{page}:{line}: {rest.strip()} is no attribute such as file="train.py"')
    known = _KNOWN.get(language, {"file", "not-run"})
    if unknown := sorted(attributes.keys() - known):
        raise PageError(
            f"{page}:{line}: a {language} block has no {', '.join(unknown)}; it may have "
            f"{', '.join(sorted(known))}"
        )
    if not attributes.get("not-run", "a reason").strip():
        raise PageError(f"{page}:{line}: not-run names no reason")
    return Block(page, line, language, attributes, "".join(f"{text}\n" for text in lines))


def check_page(blocks: list[Block]) -> None:
    """Raise PageError for code that nothing runs although it gives no reason."""
    for place, block in enumerate(blocks):
        if block.language == "console":
            block.commands()
        if not block.is_code or block.why_not or block.language == "console":
            continue
        if block.file is None:
            if block.language in SHELL:
                raise PageError(
                    f'{block.where}: write ```console with "$ " before each command, file="..." or '
                    'not-run="..."'
                )
            continue
        imported = f"from {block.file.removesuffix('.py')} import "
        if not any(
            block.file in _words(later) or (later.is_code and imported in later.text)
            for later in blocks[place + 1 :]
        ):
            raise PageError(f"{block.where}: no later console block runs {block.file}")


def _words(block: Block) -> set[str]:
    """Words of the commands that run; of FILE.py:FUNCTION the file."""
    if block.language != "console" or block.why_not:
        return set()
    words: set[str] = set()
    for command in block.commands():
        try:
            parts = shlex.split(command.text, comments=True)
            words |= {part.partition(".py:")[0] + ".py" * (".py:" in part) for part in parts}
        except ValueError:
            words.update(command.text.split())
    return words


def load(path: Path) -> list[Block]:
    """The blocks of a page of the documentation."""
    return blocks_of(path.read_text(), name_of(path))


def name_of(path: Path) -> str:
    """The path of a page in the checkout."""
    return path.relative_to(ROOT).as_posix()
