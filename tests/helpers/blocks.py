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
_SHELL = ("sh", "bash", "shell", "zsh")
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<language>[\w+-]*)(?P<rest>.*)$")
_ATTRIBUTE = re.compile(r'\s+([\w-]+)="([^"]+)"')
_KNOWN = {"console": {"not-run", "output", "exit"}, "text": {"output", "file"}}


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
        return self.language in ("console", "python", *_SHELL)

    @property
    def why_not(self) -> str | None:
        """The reason why it does not run, or None."""
        return self.attributes.get("not-run")

    @property
    def file(self) -> str | None:
        return self.attributes.get("file")

    def commands(self) -> list[Command]:
        """The commands of a console block; of any other block none.

        A line that begins with `$ ` begins a command. It continues in lines that begin with `> `,
        and after a backslash. Any other line is output.
        """
        commands: list[Command] = []
        lines: list[str] = []  # of the command that is not complete yet
        output: list[str] = []
        start = 0

        def end() -> None:
            if lines:
                commands.append(Command(start, "\n".join(lines), tuple(output)))

        text = self.text if self.language == "console" else ""
        for number, line in enumerate(text.splitlines(), self.line + 1):
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


def load(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order; PageError for a fence that is not understood."""
    page = path.relative_to(ROOT).as_posix()
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(path.read_text().splitlines(), 1):
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
    known = _KNOWN.get(language, {"file", "not-run"})
    if _ATTRIBUTE.sub("", rest) or attributes.keys() - known:
        raise PageError(f"{page}:{line}: {rest.strip()} has more than {', '.join(sorted(known))}")
    return Block(page, line, language, attributes, "".join(f"{text}\n" for text in lines))


def check_page(blocks: list[Block]) -> None:
    """Raise PageError for code that nothing runs although it gives no reason."""
    for place, block in enumerate(blocks):
        if not block.is_code or block.why_not or block.language == "console":
            continue
        if block.file is None and block.language != "python":
            raise PageError(f'{block.where}: write ```console, or give file="..." or not-run="..."')
        if block.file is not None:
            imported = f"from {block.file.removesuffix('.py')} import "
            later = blocks[place + 1 :]
            if not any(block.file in _words(each) or imported in each.text for each in later):
                raise PageError(f"{block.where}: no later block runs {block.file}")


def _words(block: Block) -> set[str]:
    """Words of the commands of a block that run; of FILE.py:FUNCTION the file."""
    commands = [] if block.why_not else block.commands()
    words = {word for command in commands for word in shlex.split(command.text, comments=True)}
    return words | {f"{word.partition('.py:')[0]}.py" for word in words if ".py:" in word}
