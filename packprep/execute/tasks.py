"""Tasks of a build: each reads files and writes files, and its receipt gets its name last.

| task | may begin when | receipt |
|---|---|---|
| measure a source (places.py) | the build does | its file in sizes/ |
| tokenize a run of slices | all sources are measured | one of each token file |
| write a window | its token files exist | one of the window |

So a task may be done by any process, in any order, twice, or by two processes at once; all they
have in common is the staging directory. An executor does what `Tasks.open` lists until nothing is
left: array_tasks.py one after another in each part of a job array, ray_tasks.py on any free core.
The process that signs off does the remaining ones. It reads text in order, so it measures nothing.
"""

import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packprep.engines.parity import EngineChoice
from packprep.execute.job import Job
from packprep.execute.places import (
    MeasuredSlice,
    Places,
    find_places,
    is_measured,
    measure_source,
    places_of,
)
from packprep.execute.window_files import Windows, check_windows
from packprep.sources.position import Extent
from packprep.sources.source import check_unchanged
from packprep.sources.units import Slice, Start, bad_row, read_slices
from packprep.support.progress import Progress, Silent
from packprep.tokens.store import TokenFile, file_name, read_token_receipt, stored
from packprep.tokens.token_files import (
    BASE_MEMORY,
    DocumentError,
    Make,
    seal,
    slice_memory,
    slices_ahead,
    sync_tokens,
    tokenize_slice,
    tokenize_slices,
)
from packprep.windows.specs import WindowSpec, list_windows

Run = tuple[int, int]  # slices to tokenize: first and one past the last


@dataclass(frozen=True)
class Task:
    """A task without a receipt.

    kind: measure, tokenize or write.
    of: the source; the first slice and one past the last; or the name of the window.
    memory: bytes that it takes.
    """

    kind: str
    of: tuple[Any, ...]
    memory: int = field(default=BASE_MEMORY, compare=False)

    @property
    def name(self) -> str:
        return "-".join(map(str, (self.kind, *self.of)))


@dataclass
class Tasks:
    """Tasks of a job, with all that this process needs to do them.

    engine: loads the tokenizing engine when it is needed.
    elsewhere: makes token files in other processes; None to make them here.
    parts: highest number of processes.
    part: number of this one, which tokenizes every N-th run of slices; None if it has all.
    """

    job: Job
    engine: Callable[[], EngineChoice | None]
    elsewhere: Make | None = None
    progress: Progress = field(default_factory=Silent)
    parts: int = 1
    part: int | None = None

    def __post_init__(self) -> None:
        self._unmeasured = [*range(len(self.job.sources) * self.job.has_text)]
        self._missing: int | None = None  # bytes of text that this part has to tokenize
        self._counted = self._tokens = 0  # slices whose tokens are counted, from the first; tokens

    @cached_property
    def places(self) -> Places:
        """Places of all slices; every source must be measured."""
        if self.job.has_text:
            return find_places(self.job)
        return places_of(stored(self.job.tokens, digests=False) or (), len(self.job.sources))

    @cached_property
    def windows(self) -> Mapping[str, WindowSpec[MeasuredSlice]]:
        """Windows by name; none if they depend on more than the amounts of text.

        With max_tokens the last unit is known only at the end.
        """
        config = self.job.config
        if self.job.windows_need_tokens or config.max_tokens is not None:
            return {}
        rules = Windows(self.job, (), rows=self.places.rows).rules
        specs = list_windows(self.places.slices, rules, config.writing)
        check_windows(specs, config.packer.name, config.max_memory)
        return {spec.name: spec for spec in specs}

    @cached_property
    def _runs(self) -> list[Run]:
        runs = self.places.runs(self.parts)
        return runs if self.part is None else runs[self.part :: self.parts]

    def open(self) -> list[Task]:
        """Tasks that may begin now and have no receipt; the first are best done first.

        Sources and windows are those of all parts, beginning with the ones of this part.
        """
        if left := self.unmeasured():
            return [Task("measure", (source,)) for source in sorted(left, key=self._is_others)]
        receipts, written = _receipts(self.job.tokens), _receipts(self.job.receipts)
        ready = (
            spec
            for spec in self.windows.values()
            if spec.receipt not in written and all(part.receipt in receipts for part in spec.slices)
        )
        tasks = [
            Task("write", (spec.name,), BASE_MEMORY + spec.memory)
            for spec in sorted(ready, key=lambda spec: self._is_others(spec.number))
        ]
        end, memory = self.end(), BASE_MEMORY + 2 * slice_memory(self.job.config.unit_size)
        missing = 0
        for run in itertools.takewhile(lambda run: run[0] < end, self._runs):
            if places := [each for each in self._slices(run) if each.receipt not in receipts]:
                tasks.append(Task("tokenize", run, memory))
                missing += sum(place.text_bytes for place in places)
        if missing != self._missing:
            self._show(missing)
        return tasks

    def do(self, task: Task) -> int:
        """Do a task unless another process has; return how many of its files were missing."""
        does: dict[str, Callable[..., int]] = {
            "measure": self._measure,
            "tokenize": self._tokenize,
            "write": self._write,
        }
        return does[task.kind](*task.of)

    def unmeasured(self) -> list[int]:
        """Sources that are not measured yet; none of those whose tokens exist."""
        left = (source for source in self._unmeasured if not is_measured(self.job, source))
        self._unmeasured = [*left]
        return self._unmeasured

    def end(self) -> int:
        """One past the last slice that is needed, as far as that is known.

        It is lower than the number of slices once max_tokens is reached.
        """
        slices = self.places.slices
        most = self.job.config.tokens_to_read
        while most is not None and self._tokens < most and self._counted < len(slices):
            try:
                receipt = json.loads((self.job.tokens / slices[self._counted].receipt).read_bytes())
            except FileNotFoundError:
                return len(slices)
            self._tokens += receipt["tokens"]
            self._counted += 1
        if most is None or self._tokens < most:
            return len(slices)
        last = slices[self._counted - 1].unit
        return next(
            (number for number, place in enumerate(slices) if place.unit > last), len(slices)
        )

    def left(self) -> tuple[int, int, bool]:
        """Numbers of slices without a token file and of known windows without shards.

        Also True if none of them is needed.
        """
        receipts, written = _receipts(self.job.tokens), _receipts(self.job.receipts)
        slices = [place.receipt not in receipts for place in self.places.slices]
        windows = sum(spec.receipt not in written for spec in self.windows.values())
        return sum(slices), windows, not (windows or any(slices[: self.end()]))

    def seal(self, files: Sequence[Extent]) -> None:
        """Seal the token files of the whole input."""
        check_unchanged(self.job.sources)
        if self.job.config.keep_tokens and not self.job.packs:
            sync_tokens(self.job.tokens, files)
        seal(self.job.tokens, files)

    def seal_if_all(self) -> None:
        """Seal the token files if all of them exist and cover the whole input."""
        if self.job.config.tokens_to_read is None and not self.left()[0]:
            self.seal(self.places.slices)

    def make(
        self,
        start: Start,
        slices: int | None = None,
        report: Callable[[TokenFile], None] = lambda _: None,
        **options: Any,
    ) -> list[TokenFile]:
        """Token files of so many slices from a start on, or of all; existing ones are used again.

        report: called with each new file, in order. options: of `tokenize_slices`.
        """
        job, config = self.job, self.job.config

        def make(piece: Slice, stop: threading.Event) -> TokenFile:
            encoder = job.encoder(self.engine())
            return tokenize_slice(piece, job.tokens, encoder, job.sources, stop)

        read = read_slices(job.sources, job.plans[0], config.reading, job.scratch, start)
        try:
            with closing(read):
                return tokenize_slices(
                    itertools.islice(read, slices),
                    job.tokens,
                    self.elsewhere or make,
                    slices_ahead(config.running, config.unit_size, isolated=config.isolated),
                    report=report,
                    **options,
                )
        except DocumentError as error:
            raise bad_row(job.sources[error.source], error.row, error.detail) from None

    def _measure(self, source: int) -> int:
        if is_measured(self.job, source):
            return 0
        measure_source(self.job, source, self.job.plans[0][source])
        return 1

    def _tokenize(self, first: int, end: int) -> int:
        receipts = _receipts(self.job.tokens)
        places = enumerate(self.places.slices[first:end], first)
        if not (missing := [number for number, place in places if place.receipt not in receipts]):
            return 0
        # Without max_tokens: the last unit is known only when all units before it are tokenized,
        # see `windows`.
        self.make(self.places.start(missing[0]), end - missing[0], self._report)
        return len(missing)

    def _write(self, window: str) -> int:
        """Plan and write a window, unless one of its token files is damaged."""
        spec = self.windows[window]
        if spec.receipt in _receipts(self.job.receipts):
            return 0
        files = [
            read_token_receipt(self.job.tokens, file_name(place.unit, place.slice))
            for place in spec.slices
        ]
        intact = [file for file in files if file is not None]
        if len(intact) < len(files):
            return 0
        Windows(self.job, intact, rows=self.places.rows).write(spec.of_files(intact))
        return 1

    def _is_others(self, number: int) -> bool:
        return number % self.parts != self.part

    def _slices(self, run: Run) -> Sequence[MeasuredSlice]:
        return self.places.slices[slice(*run)]

    @cached_property
    def _all_text(self) -> int:
        return sum(place.text_bytes for run in self._runs for place in self._slices(run))

    def _report(self, file: TokenFile) -> None:
        self._show((self._missing or 0) - file.text_bytes)

    def _show(self, missing: int) -> None:
        """Show the progress of this part. missing: bytes of text that are not tokenized yet."""
        self._missing = missing
        done, total = (self._all_text - missing) / 1e6, self._all_text / 1e6
        self.progress.advance("tokenize", done, total, "MB")


def _receipts(directory: os.PathLike[str]) -> set[str]:
    """Names of the receipts in a directory."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.name.endswith(".json")}
    except FileNotFoundError:
        return set()
