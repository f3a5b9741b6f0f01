"""The token files of an index output: found, checked, mapped, and looked up by rows of a window."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from .token_file import TokenFileView, TokenPlaces

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


@dataclass(frozen=True, eq=False)
class Located:
    """Documents of a window. file: its token file in the window. row: int64, in that file."""

    file: NDArray[np.int64]
    row: NDArray[np.int64]


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
        files = [self.table.files[index] for index in self.table.windows[number]]
        return WindowRows(self, files, np.array(self.table.first_rows(number), np.int64))

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
            self._views = {}


class WindowRows:
    """Documents of the token files of a window, numbered from 0 over all of them."""

    def __init__(
        self, store: TokenStore, files: Sequence[TokenFileEntry], firsts: NDArray[np.int64]
    ) -> None:
        self._store, self._files, self._firsts = store, files, firsts

    @property
    def total(self) -> int:
        """Number of documents."""
        return int(self._firsts[-1])

    def locate(self, rows: NDArray[np.int32]) -> Located:
        """Token files of documents; rows must be below `total`."""
        file = np.searchsorted(self._firsts[1:], rows, side="right").astype(np.int64)
        return Located(file, rows - self._firsts[file])

    def view(self, file: int) -> TokenFileView:
        return self._store.view(self._files[file])

    def _each(self, located: Located) -> Iterator[tuple[int, NDArray[np.intp]]]:
        for file in np.unique(located.file).tolist():
            yield file, np.flatnonzero(located.file == file)

    def has(self, located: Located, name: str) -> bool:
        """True if the token files have a column of this name."""
        return any(name in self.view(file).names for file, _ in self._each(located))

    def lists(self, located: Located, name: str) -> tuple[TokenPlaces, np.dtype[Any]]:
        """Values per token of documents, each in the view of its file, and their type."""
        position, length = np.zeros((2, len(located.row)), np.int64)
        dtypes = set()
        for file, chosen in self._each(located):
            view = self.view(file)
            position[chosen], length[chosen] = view.lists(name, located.row[chosen])
            dtypes.add(view.dtype(name))
        if len(dtypes) > 1:
            raise FormatError(
                f"token files of different types are mixed in the column {name}; build again"
            )
        return TokenPlaces(position, length), dtypes.pop() if dtypes else np.dtype(np.int32)

    def numbers(self, located: Located, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Values per document of documents, [documents]."""
        values = np.zeros(len(located.row), dtype)
        for file, chosen in self._each(located):
            values[chosen] = self.view(file).numbers(name, located.row[chosen])
        return values

    def document_ids(self, located: Located) -> NDArray[np.int64]:
        """Input rows of documents."""
        firsts = np.array([file.first_document for file in self._files], np.int64)
        rows = located.row
        if self.has(located, "turn_rows"):
            rows = self.numbers(located, "turn_rows", np.dtype(np.int64))
        return firsts[located.file] + rows if len(rows) else np.empty(0, np.int64)

    def views(self, located: Located, dtype: np.dtype[Any]) -> tuple[NDArray[Any], ...]:
        """A view of each token file of the window; empty for those without documents here."""
        used = set(np.unique(located.file).tolist())
        return tuple(
            self.view(file).view(dtype) if file in used else np.empty(0, dtype)
            for file in range(len(self._files))
        )
