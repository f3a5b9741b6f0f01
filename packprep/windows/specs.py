"""All windows of a build as values, listed before any is planned.

A window has a fixed amount of text, so memory is bounded and plans do not depend on workers. Units
are dealt to windows in a seeded random order, so a window is a sample of the whole input; with
order input, they are dealt in input order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Ordering, Writing
from packprep.sources.position import Extent
from packprep.support.arrays import Int64
from packprep.support.hashing import Purpose, stream
from packprep.tokens.store import TokenFile
from packprep.windows.documents import (
    Documents,
    held_out,
    read_documents,
    renumber_groups,
    unit_order,
)
from packprep.windows.placement import MEMORY_PER_DOCUMENT

_Slice = TypeVar("_Slice", bound=Extent)
_Text = TypeVar("_Text", bound=Extent, covariant=True)


@dataclass(frozen=True, kw_only=True)
class WindowSpec(Generic[_Text]):
    """One window of one split: all that decides its packs.

    run: the epoch or the phase that it belongs to. number: over all runs. seed: of its random
    choices. slices: of its text, sorted. documents: of both splits, about. holdout: share of the
    validation split. draw: f(split) -> the documents that a mix draws; None to take all. mixed:
    entry of each source, to interleave shuffled packs of different entries.
    """

    run: int
    rules: PackRules
    slices: Sequence[_Text]
    documents: int
    number: int = 0
    split: str = "train"
    seed: int = 0
    holdout: float = 0.0
    draw: Callable[[str], Documents] | None = None
    mixed: Int64 | None = None

    @property
    def name(self) -> str:
        """Name of its work. Example: train-00003."""
        return f"{self.split}-{self.number:05d}"

    @property
    def receipt(self) -> str:
        """Name of its receipt, which exists once its shards are complete."""
        return f"{self.name}.json"

    @property
    def memory(self) -> int:
        """Bytes of memory that planning takes."""
        return self.documents * MEMORY_PER_DOCUMENT

    def of_files(self, files: Sequence[TokenFile]) -> "WindowSpec[TokenFile]":
        """The window with the token files of its slices."""
        return WindowSpec(**vars(self) | {"slices": files})


def list_windows(
    slices: Sequence[_Slice],
    rules: PackRules,
    writing: Writing,
    drawn: Sequence[WindowSpec[_Slice]] = (),
    first: int = 0,
) -> list[WindowSpec[_Slice]]:
    """All windows of these slices, split by split.

    drawn: windows of the mix that `writing` belongs to. first: number of the first window.
    """
    windows = drawn or [
        WindowSpec(
            run=epoch,
            rules=rules,
            slices=window,
            documents=sum(each.documents_made for each in window),
            holdout=writing.holdout,
        )
        for epoch in range(writing.epochs)
        for window in form_windows(slices, writing.window, rules.ordering, epoch)
    ]
    return [
        replace(
            window,
            number=number,
            split=split,
            seed=window_seed(rules.ordering.seed, number, split),
        )
        for split in writing.splits
        for number, window in enumerate(windows, first)
    ]


def form_windows(
    slices: Sequence[_Slice], window: int, ordering: Ordering, epoch: int = 0
) -> list[list[_Slice]]:
    """Slices of each window of an epoch, sorted by unit number.

    window: bytes of text; a window ends with the unit that reaches them. Epochs may have different
    numbers of windows.
    """
    units: dict[int, list[_Slice]] = {}
    for each in slices:
        units.setdefault(each.unit, []).append(each)
    numbers = np.array(list(units))
    numbers = numbers[unit_order(numbers, ordering, epoch)]
    windows: list[list[_Slice]] = []
    size = window
    for number in numbers.tolist():
        if size >= window:
            windows.append([])
            size = 0
        windows[-1] += units[number]
        size += sum(each.text_bytes for each in units[number])
    return [sorted(window, key=lambda each: (each.unit, each.slice)) for window in windows]


def window_seed(seed: int, number: int, split: str) -> int:
    """Seed of one window and split, which fits in int64. Each is independent of the others.

    seed: of the build.
    """
    return int(stream(seed, Purpose.WINDOW, number, int(split == "validation"))) >> 1


def read_window(
    spec: WindowSpec[TokenFile], directory: Path, max_memory: int | None = None
) -> Documents:
    """The documents of a window, from the token files of a directory.

    max_memory: see `read_documents`.
    """
    documents = (
        read_documents(directory, spec.slices, max_memory)
        if spec.draw is None
        else spec.draw(spec.split)
    )
    documents = renumber_groups(documents, spec.rules.skipped)
    if spec.draw is not None or not spec.holdout:
        return documents
    validation = held_out(documents, spec.holdout, spec.rules.ordering.seed)
    return documents.take(validation if spec.split == "validation" else ~validation)
