"""Documents of token files as arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config.stages import Ordering
from packprep.schemas.columns import STANDARD_COLUMNS, Column, DType, Kind
from packprep.schemas.errors import FormatError
from packprep.schemas.index.runs import Pointers
from packprep.schemas.index.token_file import read_stream
from packprep.schemas.views import chosen, list_view
from packprep.support.hashing import Purpose, drawn, mix, stream
from packprep.support.memory import MappedFiles
from packprep.tokens.store import TokenFile
from packprep.windows.labels import Labels

SPLIT = "pair_split"
"""Column of token files of pairs, and name of values of documents: tokens of the first side."""
TURN_ROWS = "turn_rows"
"""Column of token files that have documents for turns: row of each document in its file."""
PREFIX_GROUP = "prefix_group"
"""Column of token files, and name of values of documents: the rows of a number share prefixes."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Tokenized documents in input order, [documents] each.

    id: input row, which the documents of its turns share. tokens: the first token of each. length:
    tokens with BOS and EOS, 0 if empty. source: number of the source file. group: code of the
    group, or None. aligned: columns with a value per token, by name: the first value of each
    document. values: columns with a value per document, by name. mapped: the token files that the
    pointers point into. row: of each document, counted over the token files of its window; None if
    it was not read from one.
    """

    id: NDArray[np.int64]
    tokens: Pointers
    length: NDArray[np.int32]
    source: NDArray[np.int32]
    group: NDArray[np.int32] | None
    aligned: Mapping[str, Pointers] = field(default_factory=dict)
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    mapped: MappedFiles = MappedFiles()
    row: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.id)

    def listed(self, ids: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        """Mask of those with these ids, [documents]; None for no ids."""
        return np.zeros(len(self), np.bool_) if ids is None else np.isin(self.id, ids)

    def take(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> "Documents":
        """Select by a mask, or by indices in their order."""
        group = None if self.group is None else chosen(self.group, kept)
        return Documents(
            id=chosen(self.id, kept),
            tokens=self.tokens.take(kept),
            length=chosen(self.length, kept),
            source=chosen(self.source, kept),
            group=group,
            aligned={name: column.take(kept) for name, column in self.aligned.items()},
            values={name: chosen(values, kept) for name, values in self.values.items()},
            mapped=self.mapped,
            row=None if self.row is None else chosen(self.row, kept),
        )

    @property
    def parts(self) -> NDArray[np.int32]:
        """Tokens of the parts of each document, which share a pack, [parts, documents].

        A document is one part. A pair is two: its sides, one after the other.
        """
        if (split := self.values.get(SPLIT)) is None:
            return self.length[None]
        return np.stack([split, self.length - split])

    def at(self, rows: NDArray[Any]) -> "DocumentRows":
        """Some of the documents, by their indices."""
        return DocumentRows(self, rows)

    @property
    def labels(self) -> Labels | None:
        """Labels of the documents; None if every token is trained."""
        column = self.aligned.get("labels")
        return None if column is None else Labels(values=column)


@dataclass(frozen=True)
class DocumentRows:
    """Documents of a window; see `StoredRows`. rows: indices of them."""

    documents: Documents
    rows: NDArray[Any]

    def has(self, name: str) -> bool:
        """See `StoredRows.has`."""
        return name in self.documents.aligned

    def pointers(self, name: str) -> Pointers:
        """See `StoredRows.pointers`."""
        documents = self.documents
        column = documents.tokens if name == "tokens" else documents.aligned[name]
        return column.take(self.rows)

    def numbers(self, name: str) -> NDArray[Any]:
        """See `StoredRows.numbers`."""
        return self.documents.values[name].take(self.rows)

    @property
    def document_ids(self) -> NDArray[np.int64]:
        """See `StoredRows.document_ids`."""
        return self.documents.id.take(self.rows)


def unit_order(units: NDArray[np.int64], ordering: Ordering, run: int = 0) -> NDArray[np.int64]:
    """Order in which these units are dealt, as indices: seeded, or unchanged for order input.

    units: numbers of the units. run: each has another order.
    """
    if ordering.pack_order.name == "input":
        return np.arange(len(units))
    later = (run,) if run else ()
    key = stream(ordering.seed, Purpose.UNIT_ORDER, *later)
    return np.argsort(mix(key, units), kind="stable")


def read_documents(
    directory: Path, files: Sequence[TokenFile], max_memory: int | None = None
) -> Documents:
    """Documents of the token files of a window. The files are memory-mapped; no token is read yet.

    max_memory: the process releases pages of the files when it uses more bytes than this.
    """
    mapped = MappedFiles.open([directory / file.name for file in files], max_memory)
    batches = [read_stream(file)[1] for file in mapped.files]
    origins = [
        document_rows(of_file, _ids(file), _sources(file))
        for of_file, file in zip(batches, files, strict=True)
    ]
    ids, sources = (
        _join([ids for ids, _ in origins], np.int64),
        _join([sources for _, sources in origins], np.int32),
    )
    joined = [batch for of_file in batches for batch in of_file]
    rows = np.arange(len(ids), dtype=np.int32)
    return replace(join_documents(joined, ids, sources), mapped=mapped, row=rows)


def read_chosen(
    directory: Path,
    files: Sequence[TokenFile],
    chosen: Callable[[int, Documents], NDArray[np.int64]],
    max_memory: int | None = None,
) -> Documents:
    """Read selected documents from token files; nothing is kept of the others.

    chosen: f(number of the file, its documents) -> the rows to take, in order. max_memory: see
    `read_documents`.
    """
    mapped = MappedFiles.open([directory / file.name for file in files], max_memory)
    parts: list[Documents] = []
    groups: list[pa.Array[Any]] = []
    before = 0
    for number, file in enumerate(files):
        batches = read_stream(mapped.files[number])[1]
        documents = join_documents(batches, *document_rows(batches, _ids(file), _sources(file)))
        rows = chosen(number, documents)
        parts.append(replace(documents.take(rows), row=(before + rows).astype(np.int32)))
        before += len(documents)
        if documents.group is not None:  # its codes are only for this file
            groups += (
                pa.chunked_array([batch.column("group") for batch in batches]).take(rows).chunks
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
        row=_join([part.row for part in parts if part.row is not None], np.int32),
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


def document_rows(
    batches: Sequence[pa.RecordBatch], ids: NDArray[np.int64], sources: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Id and source of each document; ids, sources: of each row of the batches' file."""
    if not batches or TURN_ROWS not in batches[0].schema.names:
        return ids, sources
    rows = np.concatenate([batch.column(TURN_ROWS).to_numpy() for batch in batches])
    return ids[rows], sources[rows]


def _ids(file: TokenFile) -> NDArray[np.int64]:
    return np.arange(file.first_document, file.first_document + file.documents)


def _sources(file: TokenFile) -> NDArray[np.int32]:
    return np.repeat(
        np.array([part.source for part in file.parts], np.int32), [part.rows for part in file.parts]
    )


def join_documents(
    batches: Sequence[pa.RecordBatch], ids: NDArray[np.int64], sources: NDArray[np.int32]
) -> Documents:
    """Documents in record batches of token files, with their input rows and sources.

    See packprep.tokens for the columns. ids, sources: as `document_rows` gives them.
    """
    names = [name for name in batches[0].schema.names if name != TURN_ROWS] if batches else []
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
    """The schema of the token files of a build, which is the same in all of them."""
    with pa.memory_map(str(directory / files[0].name)) as file:
        return read_stream(file.read_buffer())[0]


def carried_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Columns of shards, in addition to the tokens, for token files with this schema."""
    columns = []
    for spec in schema:
        if spec.name == "labels":
            columns.append(STANDARD_COLUMNS["labels"])
        elif spec.name == SPLIT:
            columns += [STANDARD_COLUMNS["pair_ids"], STANDARD_COLUMNS["pair_sides"]]
        elif spec.name == "turn_ids":
            columns.append(STANDARD_COLUMNS["turn_ids"])
        elif spec.name not in ("tokens", "group", PREFIX_GROUP, TURN_ROWS):
            kind: Kind = "token" if pa.types.is_list(spec.type) else "segment"
            values = spec.type.value_type if kind == "token" else spec.type
            dtype: DType = np.dtype(values.to_pandas_dtype()).name
            columns.append(Column(name=spec.name, kind=kind, dtype=dtype))
    return tuple(columns)


def group_codes(values: "pa.ChunkedArray[Any]") -> NDArray[np.int32]:
    """A number for each distinct value, null included, [documents]."""
    codes = values.combine_chunks().dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes, np.int32)


def renumber_groups(documents: Documents, skipped: NDArray[np.int64] | None) -> Documents:
    """Documents with groups numbered as if those with these ids were not read; None: no change.

    Groups are packed in the order of their numbers.
    """
    if documents.group is None or skipped is None:
        return documents
    kept, group = ~documents.listed(skipped), np.zeros(len(documents), np.int32)
    group[kept] = group_codes(pa.chunked_array([documents.group[kept]]))
    return replace(documents, group=group)


def held_out(documents: Documents, share: float, seed: int) -> NDArray[np.bool_]:
    """Mask of the documents that the seed puts into the validation split, a share of all.

    It depends on seed and id only, so other options do not change it; with groups of prefixes, on
    the seed and the group, so that no prompt is in both splits. Rows without a group are drawn one
    by one.
    """
    numbers = documents.id
    if (groups := documents.values.get(PREFIX_GROUP)) is not None:
        numbers = np.where(groups == 0, numbers, groups)
    return drawn(stream(seed, Purpose.HOLDOUT), numbers, share)


def _join_pointers(parts: Sequence[Pointers]) -> Pointers:
    try:
        return Pointers.joined(parts)
    except ValueError:
        raise FormatError(
            "token files of different versions of packprep are mixed; delete OUT.incomplete and "
            "build again"
        ) from None


def _join(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return (
        np.concatenate(arrays, dtype=dtype, casting="same_kind") if arrays else np.empty(0, dtype)
    )
