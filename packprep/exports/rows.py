"""Documents as rows, for trainers that pack by themselves: Arrow, Parquet and JSON lines.

input_ids       ids of a document, without padding
loss_mask       as long: 1 if the packs train the token. Nothing predicts the first token of a
                document, nor that of a piece that repeats no token of the one before: they have 0
document_id     input row, counted over the sources
document_start  offset of the first token in its document; above 0 if the packs lack its beginning
turn_id, pair_side and carried columns, if the output has them

Pieces of a document are put together; a piece after tokens that are in no pack begins a row of its
own. Rows are in the order of the input. Memory is about 100 bytes a segment: shards stay mapped.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Int64
from ..schemas.columns import NO_LOSS, STANDARD, WHOLE
from ..schemas.gather import Runs, copy_runs
from ..schemas.manifest import Output
from ..schemas.tokens import Documents, Pointers
from ..schemas.views import arrow_array
from ..support.ahead import ranges
from ..support.errors import ConfigError
from .tables import Tables
from .view import PackView, check_mask, ends_of, lists, views

_BATCH, _FILE = 1 << 19, 1 << 27  # tokens of a record batch, and of a file, about
_PARTS = {"pair_sides": "pair_side", "turn_ids": "turn_id"}
_NEEDED = ("document_ids", "document_starts")


def documents(output: Output, split: str, name: str) -> Tables:
    """The documents of a split, in files of about 600 MB."""
    pieces = _pieces(output, split)
    stride = int(output.manifest.data["inputs"]["options"].get("stride", 0))
    row = _row_of(pieces, stride)
    order = np.argsort(row, kind="stable")
    pieces, row = pieces.take(order), row[order]
    begins = np.append(True, row[1:] != row[:-1])
    again = np.where(begins, 0, stride)
    pieces = replace(
        pieces,
        length=pieces.length - again.astype(np.int32),
        tokens=pieces.tokens.shifted(again),
        aligned={name: each.shifted(again) for name, each in pieces.aligned.items()},
    )
    firsts = np.append(np.flatnonzero(begins), len(pieces))
    sizes, tokens = np.add.reduceat(pieces.length, firsts[:-1], dtype=np.int64), 0
    for first, last in ranges(sizes, _BATCH):
        some = pieces.take(np.arange(firsts[first], firsts[last]))
        yield f"data-{tokens // _FILE:05d}", _rows(some, firsts[first:last] - firsts[first], output)
        tokens += int(sizes[first:last].sum())


def _pieces(output: Output, split: str) -> Documents:
    """All segments of a split, sorted by document, first token and end."""
    if missing := [name for name in _NEEDED if name not in output.manifest.columns]:
        raise ConfigError(
            f"{output.files} has no column {missing[0]}, by which documents are put together; "
            "build again without --columns, or choose a format of packs"
        )
    pieces = Documents.joined([_segments(view, output) for view in views(output, split)])
    start = pieces.values["document_start"]
    return pieces.take(np.lexsort((start + pieces.length, start, pieces.part, pieces.id)))


def _segments(view: PackView, output: Output) -> Documents:
    """Segments without padding and repeated BOS; `document_start` is their first token.

    after_bos: such a BOS was before it, so that it was predicted.
    """
    check_mask(view, output)
    kept, values = np.flatnonzero(view.real > 0), view.values
    start = values["document_starts"][kept].astype(np.int64)
    options = output.manifest.data["inputs"]["options"]
    repeats = bool(options.get("continuation_bos")) and ends_of(output)["bos"] is not None
    after_bos = (start > 0) & repeats
    first = view.segments.starts[kept] + after_bos
    names: dict[str, list[str]] = {"token": [], "segment": [], "boundary": []}
    for name, column in output.manifest.columns.items():
        if name not in STANDARD or name in ("labels", *_PARTS):
            names[column.kind].append(name)
    parts = [values[name][kept] for name in _PARTS if name in values]
    return Documents(
        id=values["document_ids"][kept],
        part=parts[0] if parts else np.full(len(kept), WHOLE, np.int32),
        source=np.zeros(len(kept), np.int32),
        length=(view.real[kept] - after_bos).astype(np.int32),
        tokens=Pointers.into(values["tokens"], first),
        aligned={name: Pointers.into(values[name], first) for name in names["token"]},
        values={"document_start": start, "after_bos": after_bos}
        | {_PARTS.get(name, name): values[name][kept] for name in names["segment"]},
    )


def _row_of(pieces: Documents, stride: int) -> Int64:
    """First piece of the row of each piece. stride: tokens that neighbours share.

    Copies of a document, which a mix draws, may be cut at other places: each piece continues one
    that ends where it begins, of whichever copy, because their tokens are equal.
    """
    same = (pieces.id[1:] == pieces.id[:-1]) & (pieces.part[1:] == pieces.part[:-1])
    several = np.flatnonzero(np.append(same, False) | np.append(False, same))
    some, row = pieces.take(several), np.arange(len(pieces))
    columns = (several, some.id, some.part, some.values["document_start"], some.length)
    open_ends = dict[Any, list[int]]()
    for at, id_, part, start, length in zip(*(each.tolist() for each in columns), strict=True):
        if start and (before := open_ends.get((id_, part, start + stride))):
            row[at] = before.pop(0)
        open_ends.setdefault((id_, part, start + length), []).append(int(row[at]))
    return row


def _rows(pieces: Documents, firsts: Int64, output: Output) -> pa.RecordBatch:
    """Documents as rows. firsts: number of the first piece of each."""
    count = pieces.length.astype(np.int64)
    runs = Runs(pieces.tokens, count, np.zeros(len(count), np.bool_), count)

    def copied(values: Pointers) -> NDArray[Any]:
        out = np.empty(int(count.sum()), values.dtype)
        copy_runs(replace(runs, values=values), 0, 0, out)
        return out

    offsets = np.append(0, np.cumsum(np.add.reduceat(count, firsts)))
    aligned = {name: copied(values) for name, values in pieces.aligned.items()}
    values = {name: each[firsts] for name, each in pieces.values.items()}
    mask = np.ones(int(offsets[-1]), np.int8)
    if "labels" in aligned:
        mask[aligned.pop("labels") == NO_LOSS] = 0
    else:
        mask[(np.cumsum(count) - count)[~pieces.values["after_bos"]]] = 0
    values.pop("after_bos")
    columns = {
        "input_ids": lists(offsets, copied(pieces.tokens), "int32"),
        "loss_mask": lists(offsets, mask, "int8"),
        "document_id": arrow_array(pieces.id[firsts]),
    }
    if both := {*columns} & {*aligned, *values}:
        raise ConfigError(
            f"{output.files} has a carried column {min(both)}, which is another column of rows; "
            "choose a format of packs"
        )
    columns |= {name: arrow_array(each) for name, each in values.items()}
    columns |= {name: lists(offsets, each, str(each.dtype)) for name, each in aligned.items()}
    return pa.record_batch(columns)
