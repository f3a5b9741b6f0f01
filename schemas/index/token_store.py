"""The token files of an index output: found, checked, mapped, and looked up by rows of a window."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..canonical import file_size, file_xxh3
from ..errors import FormatError
from ..files import inside
from ..index_table import TOKENS, TokenFileEntry
from ..manifest import FetchedOutput, FileEntry, Manifest, Output
from .runs import Pointers
from .token_file import TokenFiles, TokenFileView

_MOVED = "give the folder of the store (--store DIR, in Python store=DIR)"
_AGAIN = "restore it or build again"


Stores = str | Path | Sequence[str | Path] | None
"""Folders of token stores that have moved: one, several, or none."""


def store_places(manifest: Manifest, store: Stores = None) -> dict[str, str | None]:
    """Folder of the token store of each key of an index output; None if it is the output's own.

    store: folders that are searched first. A key that none of them has is where the manifest says.
    """
    given = [store] if isinstance(store, (str, Path)) else [*(store or ())]
    places: dict[str, str | None] = dict(manifest.run.get("stores") or {})
    for key in {file.key for file in manifest.index_table.files}:
        before = places.get(key)
        lost = before is not None and not Path(before, key).is_dir()
        here = next((folder for folder in given if Path(folder, key).is_dir()), None)
        if here is None and lost and given:
            here = given[-1]  # where it is missed, and named
        places[key] = before if here is None else str(here)
    return places


class TokenStore:
    """Token files of an index output.

    output: its directory, or an output at a URL. store: see `store_places`. digests: compare each
    file when it is mapped.
    """

    def __init__(
        self,
        output: Output,
        manifest: Manifest,
        store: Stores = None,
        *,
        digests: bool = False,
    ) -> None:
        self._output, self._digests = output, digests
        self._places = store_places(manifest, store)
        self.table = manifest.index_table
        self._listed = {entry.path: entry for entry in manifest.all_files}
        self._views: dict[str, TokenFileView] = {}
        self._windows: dict[int, WindowRows] = {}
        self._lock = threading.Lock()

    def check(self, *, digests: bool = False) -> None:
        """Raise FormatError for the first token file that is missing or has changed.

        digests: compare contents too. Only then files at a URL are fetched.
        """
        for file in self.table.used:
            if digests:
                self.compare(file)
            elif self._fetched(file) is None:  # else it is checked when it is fetched
                self.path(file)

    def compare(self, file: TokenFileEntry) -> None:
        """Raise FormatError if a token file is missing or its digest differs."""
        path = self.path(file)
        if (digest := file_xxh3(path)) != file.xxh3:
            raise FormatError(f"{path} has xxh3 {digest}; expected {file.xxh3}; {_AGAIN}")

    def changed(self) -> Iterator[tuple[str, str]]:
        """Token files outside the output that are missing or changed, each with a sentence."""
        for file in self.table.used:
            try:
                if not self.is_listed(file):
                    self.compare(file)
            except FormatError as error:
                yield file.path, str(error)

    def is_listed(self, file: TokenFileEntry) -> bool:
        """True if a token file is a file of the output itself."""
        return not self._places.get(file.key)

    def path(self, file: TokenFileEntry) -> Path:
        """Path of a token file, fetched if necessary. FormatError if it is missing or changed."""
        if (fetched := self._fetched(file)) is not None:
            return fetched[0].fetch(fetched[1])
        folder = self._places.get(file.key)
        if folder is None and not isinstance(self._output, Path):
            raise FormatError(f"{self._output} has no token file {file.path}; {_MOVED}")
        local = self._output / TOKENS if isinstance(self._output, Path) else Path()
        path = inside(Path(folder) if folder is not None else local, file.path)
        size = file_size(path)
        if size is None:
            raise FormatError(f"{path} is missing; it has tokens of this index: {_MOVED}")
        if size != file.bytes:
            raise FormatError(f"{path} has {size} bytes; expected {file.bytes}; {_AGAIN}")
        return path

    def _fetched(self, file: TokenFileEntry) -> tuple[FetchedOutput, FileEntry] | None:
        """Output at a URL that has the token file, and the entry to fetch it by."""
        if isinstance(self._output, Path) or not self.is_listed(file):
            return None
        entry = self._listed.get(f"{TOKENS}/{file.path}")
        return None if entry is None else (self._output, entry)

    def window(self, number: int) -> "WindowRows":
        """Rows of a window."""
        if (window := self._windows.get(number)) is None:
            files = [self.table.files[index] for index in self.table.windows[number]]
            firsts = np.array(self.table.first_rows(number), np.int64)
            window = self._windows[number] = WindowRows(self, files, firsts)
        return window

    def view(self, file: TokenFileEntry) -> TokenFileView:
        """The mapped token file."""
        with self._lock:
            view = self._views.get(file.path)
        if view is None:
            if self._digests:
                self.compare(file)
            path, buffer = self._map(file)
            view = TokenFileView(buffer, str(path), file.rows)
            with self._lock:
                view = self._views.setdefault(file.path, view)
        return view

    def _map(self, file: TokenFileEntry) -> tuple[Path, pa.Buffer]:
        while True:
            path = self.path(file)
            try:
                with pa.memory_map(str(path)) as mapped:
                    return path, mapped.read_buffer()
            except FileNotFoundError:  # deleted from a cache before it was opened
                continue
            except OSError as error:
                raise FormatError(f"{path} cannot be mapped: {error}; {_AGAIN}") from None

    def fetch(self, window: int) -> None:
        """Fetch the token files of a window, if they are at a URL."""
        for number in self.table.windows[window]:
            if self._fetched(file := self.table.files[number]) is not None:
                self.path(file)

    def release(self) -> None:
        """Close all files until they are read again; what was looked up stays valid."""
        with self._lock:
            self._views, self._windows = {}, {}


class WindowRows:
    """Documents of the token files of a window, numbered from 0 over all of them.

    A file is opened when one of its documents is first asked for.
    """

    def __init__(
        self, store: TokenStore, files: Sequence[TokenFileEntry], firsts: NDArray[np.int64]
    ) -> None:
        self._store, self._files, self._firsts = store, files, firsts
        self._opened: tuple[frozenset[int], TokenFiles] = frozenset(), TokenFiles([], [], [])

    @property
    def total(self) -> int:
        """Number of documents."""
        return int(self._firsts[-1])

    def at(self, rows: NDArray[np.integer[Any]]) -> "Located":
        """Some of the documents, by their numbers, which must be below `total`."""
        return Located(self._open(rows), rows)

    def _open(self, rows: NDArray[np.integer[Any]]) -> TokenFiles:
        """Token files with those of the documents."""
        opened, files = self._opened
        if len(opened) < len(self._files):
            used = np.zeros(len(self._files), np.bool_)
            used[np.searchsorted(self._firsts[1:], rows, side="right")] = True
            if not opened.issuperset(needed := np.flatnonzero(used).tolist()):
                numbers = sorted(opened.union(needed))
                entries = [self._files[number] for number in numbers]
                files = TokenFiles(
                    [self._store.view(entry) for entry in entries],
                    self._firsts[numbers].tolist(),
                    [entry.first_document for entry in entries],
                )
                self._opened = frozenset(numbers), files
        return files


class Located:
    """Documents of some token files, and where their values are; see `StoredRows`."""

    def __init__(self, files: TokenFiles, rows: NDArray[np.integer[Any]]) -> None:
        self._files = files
        self._batch = np.searchsorted(files.ends, rows, side="right")
        self._row = rows - files.starts[self._batch]
        self._lists: dict[str, tuple[Pointers, NDArray[np.int64]]] = {}

    def has(self, name: str) -> bool:
        """See `StoredRows.has`."""
        return name in self._files.names

    def pointers(self, name: str) -> Pointers:
        """See `StoredRows.pointers`. FormatError for offsets outside a file, and mixed types."""
        return self._list(name)[0]

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Number of values per token of each document."""
        return self._list(name)[1]

    def _list(self, name: str) -> tuple[Pointers, NDArray[np.int64]]:
        if name not in self._lists:
            column, batch = self._files.column(name, lists=True), self._batch
            assert column.offsets is not None
            offsets = Pointers(
                column.offsets[batch] + 4 * self._row, np.dtype(np.int32), self._files.memory
            )
            first, last = (values.astype(np.int64) for values in offsets.read(2))
            bad = (first < 0) | (last < first) | (last > column.sizes[batch])
            if bad.any():
                view = self._files.views[self._files.file[batch[bad][0]]]
                raise FormatError(
                    f"{view.where} column {name} has list offsets outside its values; restore the "
                    "file or build again"
                )
            address = column.values[batch] + column.dtype.itemsize * first
            self._lists[name] = Pointers(address, column.dtype, self._files.memory), last - first
        return self._lists[name]

    def numbers(self, name: str) -> NDArray[Any]:
        """See `StoredRows.numbers`."""
        column = self._files.column(name, lists=False)
        address = column.values[self._batch] + column.dtype.itemsize * self._row
        (values,) = Pointers(address, column.dtype, self._files.memory).read(1)
        return values

    @property
    def document_ids(self) -> NDArray[np.int64]:
        """See `StoredRows.document_ids`."""
        if self.has("turn_rows"):
            rows = self.numbers("turn_rows")
        else:
            rows = self._files.in_file[self._batch] + self._row
        ids: NDArray[np.int64] = self._files.documents[self._batch] + rows
        return ids
