"""Documents of known lengths, by window: of a file of numbers, or of a finished output."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..schemas.arrays import Bools, Int32, Int64
from ..schemas.columns import FILLER
from ..schemas.manifest import Output, packs
from ..schemas.tokens import Documents, Pointers
from ..schemas.views import list_view, segments_of
from ..support.errors import InputError

_NUMBERS = re.compile(rb"[\s\[]*\d[\d\s,\[\]]*")
_LONGEST = 2**31 - 1


class Part(NamedTuple):
    """Documents that are planned together: those of a split of a window, by its number."""

    split: str
    window: int
    documents: Documents


def is_lengths(path: Path) -> bool:
    """True for a .npy file, and for a .txt or .json file that begins with numbers alone."""
    if path.suffix not in (".npy", ".txt", ".json") or not path.is_file():
        return False
    if path.suffix == ".npy":
        return True
    with path.open("rb") as file:
        return _NUMBERS.fullmatch(file.read(4096)) is not None


def lengths_of_file(path: Path) -> Documents:
    """Documents of the lengths in a file. Raises InputError for other values."""
    values: Any
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        else:
            text = path.read_text().translate(str.maketrans("[],", "   "))
            values = np.array(text.split(), np.int64)
    except (OSError, ValueError, OverflowError, EOFError):  # numpy would advise to unpickle it
        raise InputError(
            f"{path} cannot be read as lengths; expected whole numbers, the tokens of each "
            "document, in an array of numpy.save, a JSON list, or text"
        ) from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"{path} holds other values; expected integers, [documents]: their tokens")
    wrong = np.flatnonzero((values < 0) | (values > _LONGEST))
    if len(wrong):
        raise InputError(
            f"{path} row {wrong[0]} is {values[wrong[0]]}; expected 0 to {_LONGEST:,} tokens"
        )
    return _documents(values.astype(np.int32), np.arange(len(values)))


def parts_of_output(output: Output) -> list[Part]:
    """Documents of the packs of an output by window, as long as what of them is in packs."""
    windows = json.loads(output.files.read("report.json"))["windows"]
    made = []
    for split in output.manifest.splits:
        of_split = [window for window in windows if window["split"] == split]
        ends = np.cumsum([window["packs"] for window in of_split])
        columns = [np.concatenate(each) for each in zip(*_segments(output, split), strict=True)]
        of_window = np.searchsorted(ends, columns[0], side="right")
        for place, window in enumerate(of_split):
            mask = of_window == place
            documents = _joined(*(column[mask] for column in columns[1:]))
            made.append(Part(split, window["window"], documents))
    return made


def _segments(output: Output, split: str) -> Iterator[tuple[Any, ...]]:
    """Pack, document, part, start and tokens of the segments of each batch, without filler."""
    columns, first = output.manifest.layout.columns, 0
    extra = bool(output.manifest.data["inputs"]["options"].get("continuation_bos"))
    for batch in packs(output, split, check=False):
        where = batch.shard.path
        small = [c for c in columns if c.kind != "token" or c.standard == "tokens"]
        views = {c.standard: list_view(batch.batch, c.name, where) for c in small}
        segments = segments_of(views, where, batch.first)
        values = {name: view.flat for name, view in views.items()}
        count = len(segments.starts)
        pack = first + np.repeat(np.arange(len(batch.batch)), np.diff(segments.first))
        whole = np.full(count, FILLER)
        ids = values.get("document_ids")
        start = values.get("document_starts", np.zeros(count, np.int32))
        tokens = values.get("segment_lengths", segments.ends - segments.starts)
        part = values.get("pair_sides", values.get("turn_ids", whole))
        if ids is None:  # each segment is a document
            ids, part, start = pack * 2**32 + np.arange(count), whole, np.zeros(count, np.int32)
        tokens = tokens - (start > 0) * extra
        real = ids != FILLER
        yield tuple(each[real] for each in (pack, ids, part, start, tokens))
        first += len(batch.batch)


def _joined(*columns: Any) -> Documents:
    """Documents of segments; tokens that several of a document share count once.

    columns: document, part, start and tokens of each segment.
    """
    order = np.lexsort(columns[2::-1])
    ids, part, start, tokens = (column[order] for column in columns)
    first: Bools = np.append(True, (np.diff(ids) != 0) | (np.diff(part) != 0))[: len(ids)]
    before = np.append(0, (start.astype(np.int64) + tokens)[:-1])[: len(ids)]
    shared = np.where(first, 0, np.maximum(before - start, 0))
    starts = np.flatnonzero(first)
    length = np.add.reduceat(tokens - shared, starts) if len(starts) else tokens
    return _documents(length.astype(np.int32), ids[first], part[first])


def _documents(length: Int32, ids: Int64, part: Int32 | None = None) -> Documents:
    """Documents whose tokens are nowhere."""
    none = Pointers(np.zeros(len(length), np.int64), np.dtype(np.int32), ())
    return Documents(
        id=ids.astype(np.int64),
        part=np.full(len(length), -1, np.int32) if part is None else part.astype(np.int32),
        source=np.zeros(len(length), np.int32),
        length=length,
        tokens=none,
    )
