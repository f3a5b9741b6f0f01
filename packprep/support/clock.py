"""Seconds that a build spends in each of its stages."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

START = "start"
"""Stage before the work: imports, the tokenizer, the engine, kernels. Rates leave it out."""


@dataclass
class StageClock:
    """Seconds spent in each stage, of all threads that are in it."""

    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(stage, time.monotonic() - start)

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def total(self) -> dict[str, float]:
        return {name: round(spent, 3) for name, spent in self.seconds.items()} | {
            "total": round(time.monotonic() - self.started, 3)
        }
