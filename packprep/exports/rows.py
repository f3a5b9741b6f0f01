"""Documents as rows, for trainers that pack by themselves: Arrow, Parquet and JSON lines.

input_ids       ids of a document, without padding
loss_mask       as long: 1 if the packs train the token. Nothing predicts the first token of a
                document, nor that of a piece that repeats no token of the one before: they have 0
document_id     input row, counted over the sources
document_start  offset of the first token in its document; above 0 if the packs lack its beginning
turn_id, pair_side and carried columns, if the output has them
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packprep.exports.documents import document_columns
from packprep.exports.folder import ExportFolder
from packprep.exports.packs import PackBatch
from packprep.exports.tables import ArrowWriter, ParquetWriter, lists
from packprep.schemas.columns import STANDARD_COLUMNS
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import array, list_array
from packprep.schemas.views import ListView
from packprep.support.errors import ConfigError

_ID_NAMES = {
    "document_ids": "document_id",
    "document_starts": "document_start",
    "turn_ids": "turn_id",
    "pair_sides": "pair_side",
}
_NAMES = ("input_ids", "loss_mask", *_ID_NAMES.values())


def _fields(batch: PackBatch, kinds: Mapping[str, str]) -> dict[str, "pa.Array[Any]"]:
    """kinds: of the columns that are written as they are, by name."""
    if batch.has_other_targets:
        raise ConfigError(
            "the output has labels that are other ids than the tokens, and rows have only a mask "
            "for them; choose another format, such as parquet"
        )
    columns = batch.view.columns
    fields = {
        "input_ids": lists(batch.packs, batch.tokens, pa.int32()),
        "loss_mask": lists(batch.packs, batch.trained, pa.int8()),
    }
    fields |= {field: array(columns[name]) for name, field in _ID_NAMES.items() if name in columns}
    offsets = batch.packs.astype(np.int32)
    for name, kind in kinds.items():
        of_tokens = kind == "token"
        values = columns[name]
        fields[name] = list_array(ListView(offsets, values)) if of_tokens else array(values)
    return fields


def _of_kind(writer: Any, folder: ExportFolder, manifest: Manifest, split: str) -> ArrowWriter:
    """Open the writer of a split. writer: class of it."""
    kinds = {
        column.name: column.kind
        for column in document_columns(manifest)
        if column.name not in STANDARD_COLUMNS and column.kind in ("token", "segment")
    }
    if taken := [name for name in _NAMES if name in kinds]:
        raise ConfigError(
            f"the output has a carried column {taken[0]}, which is the name of another column of "
            "rows; carry it as another name, or choose a format of packs"
        )
    opened: ArrowWriter = writer(folder, manifest, split, partial(_fields, kinds=kinds))
    return opened


class _JsonlWriter(ParquetWriter):
    """Files of JSON lines of a split, one for each shard."""

    def _name(self, number: int) -> str:
        return super()._name(number).replace(".parquet", ".jsonl")

    def _open(self, file: Any, schema: pa.Schema) -> Any:
        return _JsonLines(file)


class _JsonLines:
    """Rows as lines of JSON. Their names need no escapes, and all values are numbers."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> "_JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept back."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        parts: list[Any] = []
        for number, (name, column) in enumerate(
            zip(batch.schema.names, batch.columns, strict=True)
        ):
            start = f'{", " if number else "{"}"{name}": '
            if isinstance(column, pa.ListArray):
                texts = pa.ListArray.from_arrays(column.offsets, column.values.cast(pa.string()))
                parts += [start + "[", pc.binary_join(texts, ", "), "]"]
            else:
                parts += [start, column.cast(pa.string())]
        lines: Any = pc.binary_join_element_wise(*parts, "}\n", "")
        ends = np.frombuffer(lines.buffers()[1], np.int32)
        self._file.write(memoryview(lines.buffers()[2])[: int(ends[len(lines)])])


arrow_rows = partial(_of_kind, ArrowWriter)
parquet_rows = partial(_of_kind, ParquetWriter)
jsonl_rows = partial(_of_kind, _JsonlWriter)
