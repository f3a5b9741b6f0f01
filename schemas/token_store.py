"""Packs whose tokens are in token stores: how what `--columns plan` writes is read.

A shard of such an output has a row for each pack and the columns of `gather.Table`. Its `document`
is a place: the number of a document in the token files, which follow one another. `plan.files` of
the manifest lists these, and `run.stores` says where they were.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Int64
from .columns import FILLER, plan_columns
from .files import FormatError
from .gather import Layout, Table, TablePacks
from .manifest import Output, PlanFile
from .tokens import Documents, Pointers, token_columns
from .views import list_view


class _Opened(NamedTuple):
    """Columns of a token file, "" are the offsets of lists. addresses: of the first values."""

    columns: Mapping[str, NDArray[Any]]
    addresses: Mapping[str, int]
    lists: frozenset[str]


class TokenStore:
    """The token files of a plan; each is opened when a document of it is first asked for.

    Each store is looked for in `output.stores`, where it was, and where it was from the output.
    memory: None maps the files; else they are read, and about so many bytes are kept. Raises
    FormatError if a store is nowhere, or if a file is missing or has another size.
    """

    def __init__(self, output: Output, memory: int | None = None) -> None:
        self.files = files = output.manifest.token_files
        self._again = {key: known["again"] for key, known in output.manifest.run["stores"].items()}
        self._folders = {key: self._find(output, key) for key in self._again}
        self._memory, self._digest = memory, _digest()
        for file in files:
            self.path(file)
        self._places = np.append(0, np.cumsum([file.documents for file in files], dtype=np.int64))
        self._rows = np.append(0, np.cumsum([file.rows for file in files], dtype=np.int64))
        largest = max([1, *(file.bytes for file in files)])
        self._opened = lru_cache(None if memory is None else memory // largest + 1)(self._open)

    def packs(self, batch: pa.RecordBatch, layout: Layout, where: str) -> TablePacks:
        """The packs of a batch of a plan. where: their place, for messages.

        Raises FormatError for what is not in a document or a pack, because memory is read by it.
        """
        names = [column.name for column in plan_columns(layout.columns)]
        views = {name: list_view(batch, name, where) for name in names}
        columns = {name: view.flat.astype(np.int64) for name, view in views.items()}
        offsets, places = views["length"].places, columns["document"]
        if "hole" in columns and not columns["hole"].any():
            del columns["front"], columns["hole"]
        needed = np.unique(np.maximum(places, 0))  # some document, for filler
        if any(column.standard == "pair_sides" for column in layout.columns):
            # The second side of a pair begins where the first ends.
            needed = np.union1d(needed, np.maximum(needed - 1, 0))
        documents = self.documents(needed)
        columns["document"] = np.where(places < 0, FILLER, np.searchsorted(needed, places))
        packs = TablePacks(Table(columns=columns, offsets=offsets), documents, layout)
        if any(len(view.flat) != offsets[-1] for view in views.values()) or not _is_sound(packs):
            raise FormatError(
                f"{where} are no packs of the documents of their store; restore the file"
            )
        return packs

    def documents(self, places: Int64) -> Documents:
        """The documents at these places, in this order.

        Raises FormatError for a place without a document, and for a file that is not as it was.
        """
        if places.max(initial=0) >= self._places[-1]:
            raise FormatError(f"document {places.max()} is not in its store; restore the plan")
        file = np.searchsorted(self._places[1:], places, side="right")
        used, number = np.unique(file, return_inverse=True)
        opened = tuple(self._opened(each) for each in used.tolist())

        def at(name: str, index: Int64) -> Pointers:
            address = np.array([each.addresses[name] for each in opened])[number]
            dtype = opened[0].columns[name].dtype
            return Pointers(address + dtype.itemsize * index, dtype, opened)

        row = places - self._places[file]
        starts, ends = (at("", index).read().astype(np.int64) for index in (row, row + 1))
        aligned = {name: at(name, starts) for name in opened[0].lists}
        others = opened[0].columns.keys() - {*aligned, ""}
        values = {name: at(name, row).read() for name in others}
        return Documents(
            id=values.pop("row") + self._rows[file],
            part=values.pop("part"),
            source=np.zeros(len(places), np.int32),
            length=(ends - starts).astype(np.int32),
            tokens=aligned.pop("tokens"),
            aligned=aligned,
            values=values,
        )

    def _find(self, output: Output, key: str) -> Path:
        """Folder of the files of a key. Raises FormatError if there is none."""
        known = output.manifest.run["stores"][key]
        beside = Path(str(output.files), known["relative"])
        places = [Path(place) for place in (*output.stores, known["path"], beside)]
        for entry in (place if place.name == key else place / key for place in places):
            if entry.is_dir():
                return entry
        raise FormatError(
            f"{output.files} is a plan of packs, and its tokens are not in {known['path']}/{key} "
            f"any more; say where they are (store), or make them again: {self._again[key]}"
        )

    def _open(self, number: int) -> _Opened:
        file = self.files[number]
        lists, columns = token_columns(self.read(file), file.path)
        offsets = lists["tokens"].offsets
        if len(offsets) != file.documents + 1 or not all(
            np.array_equal(view.offsets, offsets) for view in lists.values()
        ):
            raise self._changed(file, "has other documents than the plan")
        columns |= {"": offsets, **{name: view.values for name, view in lists.items()}}
        addresses = {name: values.ctypes.data for name, values in columns.items()}
        return _Opened(columns, addresses, frozenset(lists))

    def path(self, file: PlanFile) -> Path:
        """Path of a token file. Raises FormatError if it is missing or has another size."""
        path = self._folders[file.key] / Path(file.path).name
        size = path.stat().st_size if path.is_file() else None
        if size != file.bytes:
            found = "is missing" if size is None else f"has {size:,} bytes, not {file.bytes:,}"
            raise self._changed(file, found)
        return path

    def read(self, file: PlanFile) -> pa.Buffer:
        """The bytes of a token file. Raises FormatError if they have changed."""
        path = str(self.path(file))
        with pa.memory_map(path) if self._memory is None else pa.OSFile(path, mode="r") as opened:
            buffer = opened.read_buffer()
        if self._digest is not None and self._digest(buffer) != file.digest:
            raise self._changed(file, "has changed since it was written")
        return buffer

    def _changed(self, file: PlanFile, found: str) -> FormatError:
        path = self._folders[file.key] / Path(file.path).name
        return FormatError(f"{path} {found}; make it again: {self._again[file.key]}")


def _is_sound(packs: TablePacks) -> bool:
    columns, offsets = {**packs.table.columns}, packs.table.offsets
    room = np.where(packs.filler, 0, packs.documents.length[packs.document])
    del columns["document"]
    start, count, bos = (columns[name] for name in ("start", "count", "bos"))
    missing = np.where(columns.get("front", count) < count, columns.get("hole", 0), 0)
    inside = (start + count + missing <= room) & (count + bos <= packs.length) & (packs.length > 0)
    tokens = np.diff(packs.starts[offsets])
    return bool(
        inside.all()
        and min(values.min(initial=0) for values in columns.values()) >= 0
        and np.diff(offsets).min(initial=1) > 0
        and tokens.max(initial=0) <= packs.layout.max_length
    )


def _digest() -> Callable[[Any], str] | None:
    """The function that makes digests of token files; None, and a warning, if there is none."""
    try:
        from xxhash import xxh3_128_hexdigest
    except ImportError:
        warnings.warn("without xxhash only sizes of token files are compared", stacklevel=2)
        return None
    return xxh3_128_hexdigest
