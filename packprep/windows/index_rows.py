"""Packs to the shards of an index output: their plan, without tokens.

`schemas/README.md` describes the columns. A reader makes the same packs of them, and of the token
files, as a build that writes shards: both by `packprep.schemas.index.packs`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config.stages import Cutting
from packprep.schemas.columns import FILLER, Column
from packprep.schemas.index_table import (
    TOKENS,
    IndexTable,
    TokenFileEntry,
    index_columns,
)
from packprep.schemas.names import list_array
from packprep.schemas.views import ListView
from packprep.tokens.store import TokenFile
from packprep.windows.placement import Packs


def columns_of_index(cutting: Cutting, multiple: int) -> tuple[Column, ...]:
    """Columns of the shards of an index output. multiple: of the lengths of padded segments."""
    needed = {
        "bos": cutting.continuation_bos,
        "segment_lengths": multiple > 1,
        # With trees, row_label_starts counts tokens that are repeated.
        "repeated": cutting.stride > 0 and not (cutting.train_overlap or cutting.share_prefixes),
        "front": cutting.too_long.side == "balanced",
        "hole": cutting.too_long.side == "balanced",
        "segment_parents": cutting.share_prefixes > 0,
    }
    return index_columns([name for name, is_needed in needed.items() if is_needed])


def index_batches(
    packs: Packs, parts: Sequence[tuple[int, int]], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Record batches of an index: packs parts[i][0]..parts[i][1] - 1 each, one after another."""
    if not parts:
        return
    first, last = parts[0][0], parts[-1][1]
    plan, of_documents = packs.plan(first, last), packs.documents.row
    assert of_documents is not None
    values: dict[str, NDArray[Any]] = dict.fromkeys(("repeated", "hole"), np.zeros(1, np.int32))
    values["front"] = plan.columns["segment_lengths"] - plan.columns["bos"]
    values.update(plan.columns)
    starts = {"segment": plan.offsets}
    if plan.row_offsets is None:
        rows = values["store_rows"]
        values["store_rows"] = np.where(rows < 0, FILLER, of_documents[rows])
    else:
        starts["row"] = plan.row_offsets
        values["row_store_rows"] = of_documents[values["row_store_rows"]]
    stored: list[tuple[str, NDArray[Any]]] = []
    for column in columns:
        whole = np.broadcast_to(values[column.name], int(starts[column.kind][-1]))
        stored.append((column.kind, np.ascontiguousarray(whole, column.numpy_dtype)))
    schema = pa.schema([(column.name, column.arrow_type) for column in columns])
    for start, end in parts:
        arrays = []
        for kind, whole in stored:
            offsets = starts[kind][start - first : end - first + 1]
            lists = (offsets - offsets[0]).astype(np.int32)
            arrays.append(list_array(ListView(lists, whole[int(offsets[0]) : int(offsets[-1])])))
        yield pa.record_batch(arrays, schema=schema)


def index_table(
    columns: Sequence[Column],
    files: Sequence[TokenFile],
    windows: Sequence[Sequence[TokenFile]],
    shards: Sequence[int],
    folder: Path,
    ids: tuple[int, int],
) -> IndexTable:
    """The table of an index output in its manifest.

    windows: token files of each. shards: window of each shard. folder: of the token files. ids: of
    BOS and of padding.
    """
    number_of = {file.name: number for number, file in enumerate(files)}
    return IndexTable(
        columns=tuple(columns),
        files=tuple(
            TokenFileEntry(
                path=f"{folder.name}/{file.name}",
                bytes=file.bytes,
                xxh3=file.xxh3,
                rows=file.documents_made,
                first_document=file.first_document,
            )
            for file in files
        ),
        windows=tuple(tuple(number_of[file.name] for file in window) for window in windows),
        shards=tuple(shards),
        bos_id=ids[0],
        pad_id=ids[1],
    )


def store_facts(staging: Path, folder: Path) -> tuple[dict[str, str | None], list[Path]]:
    """Place of the token store for the manifest, and its files if they are in the output.

    folder: of the token files of this build. The place of a store in the output is None.
    """
    if folder.is_relative_to(staging / TOKENS):
        return {folder.name: None}, sorted(folder.glob("*.arrow"))
    return {folder.name: str(folder.parent.absolute())}, []
