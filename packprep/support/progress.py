"""Progress of a command on standard error: a live line on a terminal, else a line now and then."""

import sys
import time
from typing import Any, Protocol

_EVERY = 10.0  # seconds between lines where standard error is no terminal


class Progress(Protocol):
    """What a build reports. total: None if unknown. unit: a plural, such as MB."""

    def say(self, line: str) -> None:
        """Print a line."""

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        """Show how much of a stage is done."""


class Silent:
    """Progress that prints nothing: the default in Python, and with --quiet."""

    def say(self, line: str) -> None:
        """Print nothing."""

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        """Print nothing."""


class Console:
    """Progress on standard error; `close` removes a live line."""

    def __init__(self) -> None:
        self._status: Any = None
        self._began: dict[str, float] = {}
        self._shown = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console as Rich

            self._status = Rich(stderr=True).status("loading libraries")
            self._status.start()

    def close(self) -> None:
        """Remove the live line."""
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Print a line."""
        if self._status is not None:
            self._status.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        """Show how much of a stage is done, its rate, and the time that is left."""
        now = time.monotonic()
        seconds = now - self._began.setdefault(stage, now)
        text = f"{stage}: {done:,.0f}{'' if total is None else f' of {total:,.0f}'} {unit}"
        if seconds > 0 and done > 0:
            text += f", {done / seconds:,.1f} {unit}/s"
            if total is not None and total > done:
                left = round((total - done) * seconds / done)
                text += f", {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        if self._status is not None:
            self._status.update(text)
        elif now - self._shown >= _EVERY:
            self.say(text)
            self._shown = now
