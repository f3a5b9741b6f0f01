"""Windows: runs of units packed together, and the documents in them as arrays.

A window holds a fixed amount of text, so memory is bounded and no plan depends on workers. Unless
packs are to stay in input order, units are dealt to windows in an order that the seed decides, so a
window is a sample of the whole input.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.packing.kernels.gather import Pointers
from packprep.schemas.columns import STANDARD_COLUMNS, Column, DType, Kind
from packprep.schemas.errors import FormatError
from packprep.schemas.views import list_view
from packprep.sources.position import Extent
from packprep.support.hashing import Purpose, drawn, mix, stream
from packprep.support.memory import MappedFiles
from packprep.tokens.store import TokenFile
from packprep.windows.labels import Labels

_Slice = TypeVar("_Slice", bound=Extent)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Tokenized documents in input order, [documents] each.

    id: input row. tokens: the first token of each. length: tokens with BOS and EOS, 0 for none.
    source: number of the source file. group: code of the group, or None. aligned: the first value
    of each in further columns with a value per token, by name. values: columns with a value per
    document, by name. mapped: the token files among what is pointed into.
    """

    id: NDArray[np.int64]
    tokens: Pointers
    length: NDArray[np.int32]
    source: NDArray[np.int32]
    group: NDArray[np.int32] | None
    aligned: Mapping[str, Pointers] = field(default_factory=dict)
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    mapped: MappedFiles = MappedFiles()

    def __len__(self) -> int:
        return len(self.id)

    def take(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> "Documents":
        """Those of a mask, or of indices in their order."""
        group = None if self.group is None else self.group[kept]
        return Documents(
            id=self.id[kept],
            tokens=self.tokens.take(kept),
            length=self.length[kept],
            source=self.source[kept],
            group=group,
            aligned={name: column.take(kept) for name, column in self.aligned.items()},
            values={name: values[kept] for name, values in self.values.items()},
            mapped=self.mapped,
        )

    @property
    def labels(self) -> Labels | None:
        """Labels of the documents; None where every token is trained."""
        column = self.aligned.get("labels")
        return None if column is None else Labels(values=column)


def form_windows(files: Sequence[_Slice], config: BuildConfig) -> list[list[_Slice]]:
    """Slices of each window, by unit number inside it.

    A window ends with the unit that reaches its size.
    """
    units: dict[int, list[_Slice]] = {}
    for file in files:
        units.setdefault(file.unit, []).append(file)
    numbers = np.array(list(units))
    numbers = numbers[unit_order(numbers, config)]
    windows: list[list[_Slice]] = []
    size = config.window
    for number in numbers.tolist():
        if size >= config.window:
            windows.append([])
            size = 0
        windows[-1] += units[number]
        size += sum(file.text_bytes for file in units[number])
    return [sorted(window, key=lambda file: (file.unit, file.slice)) for window in windows]


def unit_order(units: NDArray[np.int64], config: BuildConfig) -> NDArray[np.int64]:
    """Places of these units, by number, in the order in which they are dealt.

    As the seed has them, or as they are.
    """
    if config.order == "input":
        return np.arange(len(units))
    return np.argsort(mix(stream(config.seed, Purpose.UNIT_ORDER), units), kind="stable")


def read_documents(
    directory: Path, files: Sequence[TokenFile], max_memory: int | None = None
) -> Documents:
    """Documents of a window's token files, which are memory-mapped: no token is read yet.

    max_memory: bytes over which the process gives back what it has read of them.
    """
    mapped = MappedFiles.open([directory / file.name for file in files], max_memory)
    batches = [batch for file in mapped.files for batch in _batches(file)]
    ids, sources = (
        _join([_ids(file) for file in files], np.int64),
        _join([_sources(file) for file in files], np.int32),
    )
    return replace(join_documents(batches, ids, sources), mapped=mapped)


def read_chosen(
    directory: Path,
    files: Sequence[TokenFile],
    chosen: Callable[[int, Documents], NDArray[np.int64]],
    max_memory: int | None = None,
) -> Documents:
    """Some documents of token files that hold far more than are wanted.

    Only of these is anything kept.

    chosen: f(number of the file, its documents) -> the rows that are wanted, in order. max_memory:
    see above.
    """
    mapped = MappedFiles.open([directory / file.name for file in files], max_memory)
    parts: list[Documents] = []
    groups: list[pa.Array] = []
    for number, file in enumerate(files):
        batches = _batches(mapped.files[number])
        documents = join_documents(batches, _ids(file), _sources(file))
        rows = chosen(number, documents)
        parts.append(documents.take(rows))
        if documents.group is not None:  # its codes are those of one file
            groups += (
                pa.chunked_array([batch.column("group") for batch in batches])
                .take(pa.array(rows))
                .chunks
            )
    if not parts:
        return join_documents([], np.empty(0, np.int64), np.empty(0, np.int32))
    first = parts[0]
    return replace(
        first,
        id=_join([part.id for part in parts], np.int64),
        tokens=_join_pointers([part.tokens for part in parts]),
        length=_join([part.length for part in parts], np.int32),
        source=_join([part.source for part in parts], np.int32),
        group=group_codes(pa.chunked_array(groups)) if groups else None,
        aligned={
            name: _join_pointers([part.aligned[name] for part in parts]) for name in first.aligned
        },
        values={
            name: _join([part.values[name] for part in parts], values.dtype)
            for name, values in first.values.items()
        },
        mapped=mapped,
    )


def _batches(file: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(file) as reader:
        return list(reader)


def _ids(file: TokenFile) -> NDArray[np.int64]:
    return np.arange(file.first_document, file.first_document + file.documents)


def _sources(file: TokenFile) -> NDArray[np.int32]:
    return np.repeat(
        np.array([part.source for part in file.parts], np.int32), [part.rows for part in file.parts]
    )


def join_documents(
    batches: Sequence[pa.RecordBatch], ids: NDArray[np.int64], sources: NDArray[np.int32]
) -> Documents:
    """Documents of record batches of token files, with their input rows and sources.

    See tokens.py for the columns.
    """
    names = batches[0].schema.names if batches else []
    aligned: dict[str, Pointers] = {}
    values: dict[str, NDArray[Any]] = {}
    length: NDArray[np.int32] = np.empty(0, np.int32)
    groups = None
    for name in names:
        columns = [batch.column(batch.schema.get_field_index(name)) for batch in batches]
        if name == "group":
            groups = group_codes(pa.chunked_array(columns))
        elif pa.types.is_list(columns[0].type):
            views = [list_view(batch, name, "a token file") for batch in batches]
            aligned[name] = _join_pointers(
                [Pointers.into(view.values, view.offsets[:-1]) for view in views]
            )
            if name == "tokens":
                length = _join([np.diff(view.offsets) for view in views], np.int32)
        else:
            values[name] = np.concatenate(
                [column.to_numpy(zero_copy_only=False) for column in columns]
            )
    tokens = aligned.pop("tokens") if aligned else Pointers.null(0)
    return Documents(
        id=ids,
        tokens=tokens,
        length=length,
        source=sources,
        group=groups,
        aligned=aligned,
        values=values,
    )


def file_schema(directory: Path, files: Sequence[TokenFile]) -> pa.Schema:
    """The columns of a build's token files, which are the same in all of them."""
    with pa.ipc.open_stream(directory / files[0].name) as reader:
        return reader.schema


def carried_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of token files with this schema that go into shards beside the tokens."""
    columns = []
    for of_file in schema:
        if of_file.name == "labels":
            columns.append(STANDARD_COLUMNS["labels"])
        elif of_file.name == "pair_split":
            columns += [STANDARD_COLUMNS["pair_ids"], STANDARD_COLUMNS["pair_sides"]]
        elif of_file.name not in ("tokens", "group"):
            kind: Kind = "token" if pa.types.is_list(of_file.type) else "segment"
            values = of_file.type.value_type if kind == "token" else of_file.type
            dtype: DType = np.dtype(values.to_pandas_dtype()).name
            columns.append(Column(name=of_file.name, kind=kind, dtype=dtype))
    return tuple(columns)


def group_codes(values: pa.ChunkedArray) -> NDArray[np.int32]:
    """A number for each different value, null included, [documents]."""
    codes = values.combine_chunks().dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes, np.int32)


def held_out(ids: NDArray[np.int64], config: BuildConfig) -> NDArray[np.bool_]:
    """Mask of the documents that the seed puts into the validation split.

    By id, so the same whatever else changes.
    """
    return drawn(stream(config.seed, Purpose.HOLDOUT), ids, config.holdout)


def _join_pointers(parts: Sequence[Pointers]) -> Pointers:
    try:
        return Pointers.joined(parts)
    except ValueError:
        raise FormatError(
            "token files of two versions of packprep stand together; build with --restart"
        ) from None


def _join(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return (
        np.concatenate(arrays, dtype=dtype, casting="same_kind") if arrays else np.empty(0, dtype)
    )
