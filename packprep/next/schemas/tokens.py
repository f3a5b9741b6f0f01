"""Token files: Arrow streams with a row a document, mapped and read through addresses.

Columns of a token file: `tokens` (list of uint16 or int32), `row` (int32, row of the document,
counted from the first row of the file), `part` (int32: side of a pair, message of a turn, number of
a document in a row of ids; -1 for a whole row), then, where rows have them, `labels` (list<int32>,
-100 where there is no loss) or `mask` (list<int8>, 1 where there is a loss), `group` (int64, a hash
of the text), and carried columns: a list has a value for each token, a number is of the document.
A row without text has one document of no tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Bools, Int32, Int64
from .errors import FormatError
from .views import list_view, numpy_values

OWN = ("tokens", "row", "part", "group")


@dataclass(frozen=True, eq=False, slots=True)
class Pointers:
    """Addresses of values of one type, and the memory that they point into, which they keep alive.

    address: int64 [pointers]. dtype: of the values.
    """

    address: Int64
    dtype: np.dtype[Any]
    memory: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.address)

    @staticmethod
    def into(values: NDArray[Any], index: NDArray[np.integer[Any]]) -> "Pointers":
        """Pointers to values[index]; an index of len(values) is allowed, but must not be read."""
        address = values.ctypes.data + values.itemsize * index.astype(np.int64)
        return Pointers(address, values.dtype, (values,))

    @staticmethod
    def joined(parts: "Sequence[Pointers]") -> "Pointers":
        """Concatenate one or more parts of one type."""
        address = np.concatenate([part.address for part in parts])
        return Pointers(address, parts[0].dtype, tuple(m for part in parts for m in part.memory))

    def take(self, index: Bools | NDArray[np.integer[Any]]) -> "Pointers":
        """Select by a mask, or by indices in their order."""
        return replace(self, address=self.address[index])

    def shifted(self, values: NDArray[Any]) -> "Pointers":
        """Each pointer moved forward by that many values."""
        moved = self.address + self.dtype.itemsize * values.astype(np.int64)
        return replace(self, address=moved)

    def read(self) -> NDArray[Any]:
        """The value at each pointer, [pointers]."""
        if not len(self):
            return np.empty(0, self.dtype)
        first = int(self.address.min())
        index = (self.address - first) // self.dtype.itemsize
        return span(first, int(index.max()) + 1, self.dtype).take(index)


class _Span:
    """Memory as numpy reads it: `count` values from an address on."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        data = {"data": (address, True), "shape": (count,)}
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, **data}


def span(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array over memory that something else keeps alive."""
    return np.asarray(_Span(int(address), int(count), dtype))


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Documents of token files, sorted by source, row and part; [documents] each.

    id: input row over all sources; documents of one row share it. part: see above. source: number
    of the source. length: tokens, BOS and EOS included; 0 for a row without text. tokens: first
    token of each. aligned: by name, first value of each in a column with a value per token (labels,
    mask, carried). values: by name, a value per document. group: number of the group by first
    appearance over all rows of the window; None without groups. hashes: of the group, as the files
    have it.
    """

    id: Int64
    part: Int32
    source: Int32
    length: Int32
    tokens: Pointers
    aligned: Mapping[str, Pointers] = field(default_factory=dict)
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    group: Int32 | None = None
    hashes: Int64 | None = None

    def __len__(self) -> int:
        return len(self.id)

    def take(self, index: Bools | NDArray[np.integer[Any]]) -> "Documents":
        """Select by a mask, or by indices in their order."""
        return Documents(
            id=self.id[index],
            part=self.part[index],
            source=self.source[index],
            length=self.length[index],
            tokens=self.tokens.take(index),
            aligned={name: column.take(index) for name, column in self.aligned.items()},
            values={name: values[index] for name, values in self.values.items()},
            group=None if self.group is None else self.group[index],
            hashes=None if self.hashes is None else self.hashes[index],
        )

    @staticmethod
    def joined(parts: "Sequence[Documents]") -> "Documents":
        """Concatenate one or more parts with the same columns; groups are numbered again."""
        first = parts[0]

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in parts])

        return Documents(
            id=joined("id"),
            part=joined("part"),
            source=joined("source"),
            length=joined("length"),
            tokens=Pointers.joined([part.tokens for part in parts]),
            aligned={
                name: Pointers.joined([part.aligned[name] for part in parts])
                for name in first.aligned
            },
            values={
                name: np.concatenate([part.values[name] for part in parts]) for name in first.values
            },
            **_grouped(None if first.hashes is None else joined("hashes")),
        )


def mapped_documents(
    path: Path, first_row: int, rows_of_sources: Mapping[int, int], columns: Sequence[str] = ()
) -> Documents:
    """The documents of a token file, which is mapped: nothing is read but lengths and numbers.

    first_row: input row of the first row of the file. rows_of_sources: rows of the file by source,
    in the order of the sources. columns: other columns to read; all if empty. Raises FormatError
    for a file that is not a token file.
    """
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file.read_buffer()) as stream:
            names, batches = stream.schema.names, list(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(
            f"{path} is not a token file: {error}; delete it and run the command again"
        ) from None
    if missing := [name for name in ("tokens", "row", "part") if name not in names]:
        raise FormatError(f"{path} has no column {missing[0]}; delete it and run again")
    lists, numbers = dict[str, list[Pointers]](), dict[str, list[NDArray[Any]]]()
    lengths = []
    for batch in batches:
        for name in names:
            if columns and name not in (*OWN, *columns):
                continue
            column = batch.column(name)
            if pa.types.is_list(column.type):
                view = list_view(batch, name, str(path))
                lists.setdefault(name, []).append(Pointers.into(view.values, view.offsets[:-1]))
                if name == "tokens":
                    lengths.append(np.diff(view.offsets))
            else:
                numbers.setdefault(name, []).append(numpy_values(column))
    if not batches:
        return no_documents()
    aligned = {name: Pointers.joined(parts) for name, parts in lists.items()}
    values = {name: np.concatenate(parts) for name, parts in numbers.items()}
    row = values.pop("row")
    sources = np.array([*rows_of_sources], np.int32)
    ends = np.cumsum([*rows_of_sources.values()], dtype=np.int64)
    return Documents(
        id=row + np.int64(first_row),
        part=values.pop("part"),
        source=sources[np.searchsorted(ends, row, side="right")],
        length=np.concatenate(lengths, dtype=np.int32),
        tokens=aligned.pop("tokens"),
        aligned=aligned,
        **_grouped(values.pop("group", None)),
        values=values,
    )


def no_documents() -> Documents:
    """Return documents of nothing."""
    none, numbers = np.empty(0, np.int64), np.empty(0, np.int32)
    tokens = Pointers(none, np.dtype(np.int32), ())
    return Documents(id=none, part=numbers, source=numbers, length=numbers, tokens=tokens)


def _grouped(hashes: Int64 | None) -> dict[str, Any]:
    """Groups numbered by first appearance: hashes [7, 3, 7] -> [0, 1, 0]."""
    if hashes is None:
        return {}
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return {"hashes": hashes, "group": number[inverse]}
