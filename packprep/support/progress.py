"""Progress of a running build.

A terminal shows a live line, a log gets a plain line every ten seconds, and Python gets nothing.
Everything goes to standard error; standard output is for results.
"""

import sys
import time
from types import TracebackType
from typing import Any, Protocol

from packprep.support.linux import resident

_PLAIN_EVERY = 10.0  # seconds between plain lines
_LIVE_EVERY = 0.1  # seconds between changes of a live line


class Progress(Protocol):
    """Receiver of a build's progress.

    phase: a step of the start that counts nothing, such as "loading tokenizer"; rates begin after
    the last one. done and total: amounts of `unit`, a plural; total is None if it is unknown.
    """

    def say(self, line: str) -> None: ...

    def wait(self, phase: str) -> None: ...

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None: ...


class Silent:
    """Progress that prints nothing: the default of `packprep.build` in Python, and --quiet."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def close(self) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def wait(self, phase: str) -> None:
        pass

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        pass


class Console:
    """Lines on standard error; a context manager, which removes a live line at the end.

    first: shown until there is a phase to wait for, or something to count.
    """

    def __init__(self, first: str) -> None:
        self._first = first
        self._live: Any = None
        self._tasks: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._latest = self._shown = time.monotonic()

    def __enter__(self) -> "Console":
        if sys.stderr.isatty():
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [
                TextColumn("{task.description:<9}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            ]
            self._live = Progress(*columns, console=RichConsole(stderr=True), transient=True)
            self._live.start()
            self._show("start", 0, None, self._first)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the live line and show the cursor again."""
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def wait(self, phase: str) -> None:
        """Show what a build waits for; nothing if something is counted already."""
        if self._started:
            return
        self._latest = time.monotonic()
        if self._live is not None:
            self._show("start", 0, None, phase)
            self._live.refresh()

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        now = time.monotonic()
        # A stage begins when the one before ended.
        started = self._started.setdefault(stage, self._latest)
        self._latest = now
        rate = done / (now - started) if now > started else 0.0
        one = unit.removesuffix("s") if f"{done:,.0f}" == "1" else unit
        text = f"{done:,.0f} {one}" + (f", {rate:,.1f} {unit}/s" if rate else "")
        left = (total - done) / rate if total and rate and total > done else None
        if self._live is not None:
            if now - self._shown >= _LIVE_EVERY or done == total or stage not in self._tasks:
                self._show(stage, done, total, text + _left(left) + _memory())
                self._shown = now
        elif now - self._shown >= _PLAIN_EVERY:
            self.say(f"{stage}: {text}{_left(left)}{_memory()}")
            self._shown = now

    def _show(self, stage: str, done: float, total: float | None, text: str) -> None:
        if stage not in self._tasks:
            for task in self._tasks.values():
                self._live.update(task, visible=False)
            self._tasks[stage] = self._live.add_task(stage, total=total, text=text)
        self._live.update(self._tasks[stage], completed=done, total=total, text=text)


def open_progress(first: str = "loading libraries", *, quiet: bool = False) -> Console | Silent:
    """Context manager for the progress of a command."""
    return Silent() if quiet else Console(first)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:,.0f} s left"


def _memory() -> str:
    """Memory of this process now, in words; "" if the system does not tell."""
    sizes = resident()
    return "" if sizes is None else f", {sizes[0] / 1e6:,.0f} MB of memory"
