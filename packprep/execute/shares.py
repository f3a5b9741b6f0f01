"""Tasks of a build that many processes share; all they have in common is its staging directory.

There are three kinds of tasks: measure a source (places.py), tokenize a run of slices, and write a
window that has all its token files. Each task reads files and writes files, and gives its result
the final name last. So a task may be done by any process, in any order, twice, or by two processes
at once. array_tasks.py does tasks one after another in the tasks of a job array; ray_tasks.py does
them on any free core. The process that signs off does the remaining ones.
"""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

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
from packprep.sources.formats.row_plan import RowPlan
from packprep.sources.source import check_unchanged
from packprep.sources.units import Slice, bad_row, read_slices
from packprep.tokens.store import TokenFile, file_name, read_token_receipt, stored
from packprep.tokens.token_files import (
    DocumentError,
    Make,
    seal,
    slices_ahead,
    sync_tokens,
    tokenize_slice,
    tokenize_slices,
)
from packprep.windows.specs import WindowSpec, list_windows

Run = tuple[int, int]  # slices to tokenize: first and one past the last


@dataclass
class Shares:
    """Tasks of a job, with all that this process needs to do them.

    parts: highest number of processes.
    engine: loads the tokenizing engine when it is needed.
    elsewhere: makes token files in other processes; None to make them here.
    """

    job: Job
    parts: int
    engine: Callable[[], EngineChoice | None]
    elsewhere: Make | None = None
    _counted: int = 0  # slices from the beginning whose tokens are counted
    _tokens: int = 0  # their tokens

    @cached_property
    def plans(self) -> list[RowPlan]:
        return self.job.plans()[0]

    @cached_property
    def places(self) -> Places:
        """Places of all slices; every source must be measured."""
        if self.job.has_text:
            return find_places(self.job)
        return places_of(stored(self.job.tokens, digests=False) or (), len(self.job.sources))

    def unmeasured(self) -> list[int]:
        """Sources that are not measured yet; none of those whose tokens are there."""
        sources = range(len(self.job.sources) * self.job.has_text)
        return [number for number in sources if not is_measured(self.job, number)]

    def measure(self, source: int) -> None:
        if not is_measured(self.job, source):
            measure_source(self.job, source, self.plans[source])

    @cached_property
    def runs(self) -> list[Run]:
        return self.places.runs(self.parts)

    def missing(self, run: Run) -> list[int]:
        """Slices of a run that have no token file."""
        receipts = self._token_receipts()
        return [
            number for number in range(*run) if self.places.slices[number].receipt not in receipts
        ]

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

    def is_complete(self) -> bool:
        """True if all slices that are needed have token files, and all known windows shards."""
        receipts = self._token_receipts()
        needed = self.places.slices[: self.end()]
        return all(each.receipt in receipts for each in needed) and not self.unwritten()

    def seal(self) -> None:
        """Seal the token files if all of them exist and cover the whole input."""
        receipts = self._token_receipts()
        if self.job.config.tokens_to_read is None and all(
            place.receipt in receipts for place in self.places.slices
        ):
            check_unchanged(self.job.sources)
            if not self.job.packs:
                sync_tokens(self.job.tokens, self.places.slices)
            seal(self.job.tokens, self.places.slices)

    def text_bytes(self, run: Run) -> int:
        return sum(place.text_bytes for place in self.places.slices[slice(*run)])

    def tokenize(self, run: Run, report: Callable[[TokenFile], None] = lambda _: None) -> None:
        """Make the missing token files of a run.

        report: called with each file, in order.
        """
        missing = self.missing(run)
        if not missing:
            return
        config, scratch = self.job.config, self.job.scratch
        start = self.places.start(missing[0])
        slices = read_slices(self.job.sources, self.plans, config.reading, scratch, start)
        try:
            with closing(slices):
                # Without max_tokens: the last unit is known only when all units before it are
                # tokenized, see `windows`.
                tokenize_slices(
                    itertools.islice(slices, run[1] - missing[0]),
                    self.job.tokens,
                    self.elsewhere or self._made,
                    slices_ahead(config.running, config.unit_size, isolated=config.isolated),
                    report=report,
                )
        except DocumentError as error:
            raise bad_row(self.job.sources[error.source], error.row, error.detail) from None

    def _made(self, piece: Slice, stop: threading.Event) -> TokenFile:
        encoder = self.job.encoder(self.engine())
        return tokenize_slice(piece, self.job.tokens, encoder, self.job.sources, stop)

    @cached_property
    def windows(self) -> Mapping[str, WindowSpec[MeasuredSlice]]:
        """Windows by name; none if they depend on more than the amounts of text.

        With max_tokens the last unit is known only at the end.
        """
        config = self.job.config
        if self.job.windows_need_tokens or config.max_tokens is not None:
            return {}
        specs = list_windows(self.places.slices, config.pack_rules(), config.writing)
        check_windows(specs, config.packer.name, config.max_memory)
        return {spec.name: spec for spec in specs}

    def ready(self) -> Iterator[WindowSpec[MeasuredSlice]]:
        """Windows that are not written and have all their token files."""
        receipts, written = self._token_receipts(), _names(self.job.receipts)
        for spec in self.windows.values():
            if spec.receipt not in written and all(
                part.receipt in receipts for part in spec.slices
            ):
                yield spec

    def is_written(self, window: str) -> bool:
        return self.windows[window].receipt in _names(self.job.receipts)

    def unwritten(self) -> int:
        """Number of windows that are not written yet."""
        written = _names(self.job.receipts)
        return sum(spec.receipt not in written for spec in self.windows.values())

    def write(self, window: str) -> bool:
        """Plan and write a window; False if one of its token files is damaged."""
        spec = self.windows[window]
        files = [
            read_token_receipt(self.job.tokens, file_name(place.unit, place.slice))
            for place in spec.slices
        ]
        intact = [file for file in files if file is not None]
        if len(intact) < len(files):
            return False
        Windows(self.job, intact, rows=self.places.rows).write(spec.of_files(intact))
        return True

    def tokenized_bytes(self) -> int:
        """Bytes of text that are tokenized."""
        receipts = self._token_receipts()
        return sum(place.text_bytes for place in self.places.slices if place.receipt in receipts)

    def _token_receipts(self) -> set[str]:
        return _names(self.job.tokens)


def _names(directory: os.PathLike[str]) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.name.endswith(".json")}
    except FileNotFoundError:
        return set()
