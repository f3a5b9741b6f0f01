"""Windows: runs of units packed together, and the documents in them as arrays.

A window holds a fixed amount of text, so memory is bounded and no plan depends on workers. Unless packs are to stay in
input order, units are dealt to windows in an order that the seed decides, so a window is a sample of the whole input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config import BuildConfig
from packprep.hashing import drawn, mix
from packprep.schemas import list_view
from packprep.tokens import TokenFile


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Tokenized documents in input order, [documents] each.

    id: input row. address: where the tokens are in memory. length: tokens with BOS and EOS, 0 for none.
    source: number of the source file. group: code of the group, or None. keep: what the addresses point into.
    """

    id: NDArray[np.int64]
    address: NDArray[np.int64]
    length: NDArray[np.int32]
    source: NDArray[np.int32]
    group: NDArray[np.int32] | None
    keep: Any

    def __len__(self) -> int:
        return len(self.id)

    def take(self, kept: NDArray[np.bool_]) -> "Documents":
        group = None if self.group is None else self.group[kept]
        return Documents(
            id=self.id[kept], address=self.address[kept], length=self.length[kept], source=self.source[kept],
            group=group, keep=self.keep,
        )  # fmt: skip


def form_windows(files: Sequence[TokenFile], config: BuildConfig) -> list[list[TokenFile]]:
    """Token files of each window, by unit number inside it; a window ends with the unit that reaches its size."""
    units: dict[int, list[TokenFile]] = {}
    for file in files:
        units.setdefault(file.unit, []).append(file)
    numbers = np.array(list(units))
    if config.order != "input":
        numbers = numbers[np.argsort(mix(config.seed, numbers), kind="stable")]
    windows: list[list[TokenFile]] = []
    size = config.window
    for number in numbers.tolist():
        if size >= config.window:
            windows.append([])
            size = 0
        windows[-1] += units[number]
        size += sum(file.text_bytes for file in units[number])
    return [sorted(window, key=lambda file: (file.unit, file.slice)) for window in windows]


def read_documents(directory: Path, files: Sequence[TokenFile]) -> Documents:
    """Documents of a window's token files, which are memory-mapped: no token is read yet."""
    address, length, groups, batches = [], [], [], []
    for file in files:
        with pa.memory_map(str(directory / file.name)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                view = list_view(batch, "tokens", file.name)
                address.append(view.values.ctypes.data + 4 * view.offsets[:-1].astype(np.int64))
                length.append(np.diff(view.offsets))
                if "group" in batch.schema.names:
                    groups.append(batch["group"])
                batches.append(batch)
    ids = [np.arange(file.first_document, file.first_document + file.documents) for file in files]
    sources = [
        np.repeat(np.array([part.source for part in file.parts], np.int32), [part.rows for part in file.parts])
        for file in files
    ]
    return Documents(
        id=_join(ids, np.int64), address=_join(address, np.int64), length=_join(length, np.int32),
        source=_join(sources, np.int32),
        group=group_codes(pa.chunked_array(groups)) if groups else None, keep=batches,
    )  # fmt: skip


def group_codes(values: pa.ChunkedArray) -> NDArray[np.int32]:
    """A number for each different value, null included, [documents]."""
    codes = values.combine_chunks().dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes, np.int32)


def held_out(ids: NDArray[np.int64], config: BuildConfig) -> NDArray[np.bool_]:
    """Which documents the seed puts into the validation split: by id, so the same whatever else changes."""
    # Not the stream that orders units: a document's number would say something about a unit's place.
    return drawn(config.seed + 1, ids, config.holdout)


def _join(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(arrays, dtype=dtype, casting="same_kind") if arrays else np.empty(0, dtype)
