"""Runs the blocks of a page, top to bottom, in one folder: a shell and a Python process per page.

Both keep their state from block to block, like the terminal of a reader. No page reaches the
network: proxies that do not exist catch every request that leaves the machine.
"""

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers import warm

from .blocks import Block, Command, PageError, check_page
from .outputs import PAGES_DATA, data_digest, difference

_LONGEST = 600  # seconds after which a page is stopped: a guard against blocks that never end

# Reads one JSON object per line: the source and the name of a block. Answers with a line that holds
# the mark and a status.
_PYTHON = r"""
import json, linecache, os, sys, traceback

def _serve(mark):
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    space = sys.modules["__main__"].__dict__
    for request in requests:
        block = json.loads(request)
        source, name = block["source"], block["name"]
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        status = 0
        try:
            exec(compile(source, name, "exec"), space)
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, f"\n{mark} {status}\n".encode())

_serve(sys.argv.pop())
"""


# Every page begins with `packprep sample data`, which takes seconds. It runs once for all pages of
# a test run, in a folder of its own, and later pages get copies of its files, with every EVERY-th
# row of the largest one.
_SHELL = r"""
warm() { "$PYTHON" -ISs "$WARM" "$ADDRESS" "$@"; }
python() { warm python "$@"; }
packprep() {
  if [ "$*" != "sample data" ]; then warm packprep "$@"; return; fi
  until [ -e "$SAMPLE" ]; do
    if mkdir "$SAMPLE.lock" 2>/dev/null; then
      mkdir "$SAMPLE.new"
      if ! (cd "$SAMPLE.new" && warm packprep sample data >output 2>&1); then
        cat "$SAMPLE.new/output"
        rm -r "$SAMPLE.new" "$SAMPLE.lock"
        return 1
      fi
      mv "$SAMPLE.new" "$SAMPLE"
    else
      sleep 0.1  # another page makes it
    fi
  done
  cp -R "$SAMPLE/data" . && cat "$SAMPLE/output"
  if [ "$EVERY" != 1 ]; then
    awk "NR % $EVERY == 0" "$SAMPLE/data/code.jsonl" > data/code.jsonl
  fi
}
"""


class _Process:
    """A process that is sent work, and answers with output and a status."""

    def __init__(self, arguments: list[str], mark: str, folder: Path, env: dict[str, str]) -> None:
        self._mark = mark
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=env,
            start_new_session=True,
            text=True,
            errors="replace",
        )

    def ask(self, work: str) -> tuple[int | None, list[str]]:
        """Status, None for a process that ended, and the lines it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(work)
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(self._mark):
                return int(line.split()[1]), lines
            lines.append(line.rstrip("\n"))
        return None, lines

    def kill(self) -> None:
        """End the process and all that it started in the background."""
        with suppress(ProcessLookupError, BrokenPipeError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(ProcessLookupError, BrokenPipeError):
                stream.close()


@dataclass
class Session:
    """The processes of one page."""

    folder: Path
    cache: Path  # of Hugging Face libraries
    sample: Path  # what `packprep sample data` wrote, once for several pages
    every: int = 1  # keep every n-th row of its code.jsonl
    fixed: bool = False  # the page does not read rows that are left out
    server: str = ""  # of tests/helpers/warm.py; without it every command is a new interpreter
    _mark: str = field(default_factory=lambda: f"block-{uuid.uuid4().hex}")
    _started: dict[str, _Process] = field(default_factory=dict)
    _status: int = 0
    _printed: list[str] = field(default_factory=list)

    def kill(self) -> None:
        for process in self._started.values():
            process.kill()

    def close(self) -> None:
        for process in self._started.values():
            process.close()

    def _process(self, name: str, *arguments: str) -> _Process:
        """Return the shell or the Python of the page, which the first block for it starts."""
        if name not in self._started:
            environment = warm.environment(self.cache)
            self._started[name] = _Process([*arguments], self._mark, self.folder, environment)
            if name == "bash":
                self._started[name].ask(f"{self._functions()}\nprintf '{self._mark} 0\\n'\n")
        return self._started[name]

    def _functions(self) -> str:
        """The variables and functions of _SHELL."""
        variables = {
            "SAMPLE": self.sample,
            "EVERY": self.every,
            "PYTHON": sys.executable,
            "WARM": warm.__file__,
            "ADDRESS": self.server,
        }
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items()]
        return "\n".join([*lines, _SHELL])

    def run(self, block: Block) -> None:
        """Run, write or compare one block; AssertionError where it is not as the page says."""
        if block.language == "python":
            compile(block.text, block.where, "exec")
        if block.file is not None:
            self._write(block, block.file)
        elif block.attributes.get("output") == "above":
            self._compare(block.where, block.text.splitlines(), self._printed)
        elif block.why_not is not None:
            pass
        elif block.language == "console":
            self._run_commands(block)
        elif block.language == "python":
            self._run_python(block)

    def _write(self, block: Block, name: str) -> None:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise PageError(f"{block.where}: {name} is outside of the page's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _run_commands(self, block: Block) -> None:
        commands = block.commands()
        for command in commands:
            where = f"{block.page}:{command.line}"
            if _installs(command, where):
                continue
            status, printed = self._ask_shell(command.text)
            last = command is commands[-1]
            shows_code = not last and commands[commands.index(command) + 1].text == "echo $?"
            expected = int(block.attributes.get("exit", 0)) if last else 0
            if not shows_code and status != expected:
                ending = "stopped the shell" if status is None else f"ended with {status}"
                raise AssertionError(
                    f"{where}: $ {command.text}\n{ending}, expected {expected}:\n"
                    + "\n".join(printed)
                )
            if command.output and block.attributes.get("output") != "varies":
                self._compare(f"{where}: $ {command.text}", command.output, printed)
            self._printed = printed

    def _ask_shell(self, command: str) -> tuple[int | None, list[str]]:
        shell = self._process("bash", "bash", "--noprofile", "--norc")
        if command.rstrip().endswith("&"):  # `$!` has to be the process, not a shell around it
            command = f"unset -f python; {command}"
        status, printed = shell.ask(
            f"(exit {self._status}); eval {shlex.quote(command)} </dev/null 2>&1; "
            f"printf '\\n%s %d\\n' {self._mark} $?\n"
        )
        self._status = status or 0
        return status, printed

    def _run_python(self, block: Block) -> None:
        client = (sys.executable, "-ISs", warm.__file__, self.server)
        python = self._process("python", *client, "python", "-c", _PYTHON, self._mark)
        request = json.dumps({"source": block.text, "name": block.where})
        status, self._printed = python.ask(request + "\n")
        if status != 0:
            raise AssertionError(f"{block.where}: failed:\n" + "\n".join(self._printed))

    def _compare(self, where: str, shown: Sequence[str], printed: Sequence[str]) -> None:
        if wrong := self._difference(shown, printed):
            raise AssertionError(f"{where}\nprints something else than the page shows:\n{wrong}")

    def _difference(self, shown: Sequence[str], printed: Sequence[str]) -> str:
        """Digests are compared too where the data are those of the pages."""
        exact = self.fixed and data_digest(self.sample / "data") == PAGES_DATA
        return difference(shown, printed, exact=exact)


def _installs(command: Command, where: str) -> bool:
    """True for `pip install ...`, which is not run: what it installs is compared instead.

    Extras of packprep must exist. A library that is not installed here skips the page.
    """
    text = command.text.strip()
    if not re.match(r"(python3? -m )?pip install ", text):
        return False
    for word in shlex.split(text.split("pip install ", 1)[1], comments=True):
        if word.startswith("-"):
            continue
        name, _, extras = re.split(r"[=<>~!]", word)[0].partition("[")
        if name in ("packprep", "."):
            known = importlib.metadata.metadata("packprep").get_all("Provides-Extra") or []
            for extra in extras.removesuffix("]").split(",") if extras else []:
                assert extra in known, f"{where}: packprep has no extra {extra!r}"
            continue
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{where}: {name} is not installed")
    return True


def run_page(
    blocks: list[Block], folder: Path, cache: Path, sample: Path, every: int = 1, server: str = ""
) -> None:
    """Run all blocks of a page in an empty folder."""
    check_page(blocks)
    text = "".join(block.text for block in blocks)
    fixed = every == 1 or not ("code.jsonl" in text or "data/*" in text)
    session = Session(folder, cache, sample, every, fixed, server)
    timer = threading.Timer(_LONGEST, session.kill)
    timer.start()
    try:
        for block in blocks:
            session.run(block)
    finally:
        timer.cancel()
        session.close()
