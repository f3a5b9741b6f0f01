"""Packed shards as a sequence of packs, each a handful of numpy views into the mapped files.

Opening reads the manifest and one schema per shard: no token is read, nothing is copied or allocated for the data.
A pack costs a few microseconds and the page faults of its own tokens. Views stay valid as long as they are kept.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas import (
    MANIFEST,
    Column,
    FileEntry,
    FormatError,
    ListView,
    Manifest,
    check_batch,
    check_boundaries,
    check_file,
    check_files,
    check_schema,
    list_view,
    read_manifest,
)


class Segment(NamedTuple):
    """A document, or a piece of one. tokens: its own, without padding at its end.

    document_id: input row, -1 for filler. start: offset of its first own token in the document. Either is None if the
    shards were written without that column.
    """

    document_id: int | None
    start: int | None
    tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One packed sequence. columns: every column that was written, by name, as a read-only view of the file."""

    columns: Mapping[str, NDArray[Any]]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [tokens]"""
        return self.columns["tokens"]

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """int32 [segments + 1]: 0, then the end of each segment."""
        return self.columns["cu_seqlens"]

    @property
    def position_ids(self) -> NDArray[np.int32]:
        """int32 [tokens], from 0 in every segment: the stored column, or made from cu_seqlens when there is none."""
        if (stored := self.columns.get("position_ids")) is not None:
            return stored
        starts, lengths = self.cu_seqlens[:-1], np.diff(self.cu_seqlens)
        return np.arange(len(self.tokens), dtype=np.int32) - np.repeat(starts, lengths)

    @property
    def document_ids(self) -> NDArray[np.int64] | None:
        """int64 [segments]: input row of each segment, -1 for filler; None if it was not written."""
        return self.columns.get("document_ids")

    @property
    def document_starts(self) -> NDArray[np.int32] | None:
        """int32 [segments]: offset in its document of each segment's first own token; None if it was not written."""
        return self.columns.get("document_starts")

    @property
    def segment_lengths(self) -> NDArray[np.int32] | None:
        """int32 [segments]: tokens of each segment without the padding at its end; None if nothing is padded."""
        return self.columns.get("segment_lengths")

    @property
    def labels(self) -> NDArray[np.int32] | None:
        """int32 [tokens], unshifted, -100 where no loss; None if it was not written."""
        return self.columns.get("labels")

    def segments(self) -> Iterator[Segment]:
        """The segments in pack order, filler with them."""
        first, lengths = self.cu_seqlens[:-1], self.segment_lengths
        last = self.cu_seqlens[1:] if lengths is None else first + lengths
        ids: Iterable[int | None] = repeat(None) if self.document_ids is None else self.document_ids.tolist()
        starts: Iterable[int | None] = repeat(None) if self.document_starts is None else self.document_starts.tolist()
        for document_id, start, begin, end in zip(ids, starts, first.tolist(), last.tolist(), strict=False):
            yield Segment(document_id, start, self.tokens[begin:end])


class PackedShards:
    """The packs of one split of a packprep output: `len`, `shards[i]`, iteration, all in stored order.

    path: a directory that `packprep build` wrote, or the directory of one split in it. split: which split to read;
    needed only where documents were held out and there are several ("train" and "validation"). Checked at open: the
    manifest, and the size and schema of every shard of the split; as packs are read: their list lengths and
    cu_seqlens. verify=True checks everything first: digests, surplus files and every invariant of every pack.

    >>> for document_id, start, tokens in PackedShards("packed")[0].segments(): ...

    Raises FormatError for a file that is damaged, ValueError for a split that is not there. Pickles as its path.
    """

    def __init__(self, path: str | Path, *, split: str | None = None, verify: bool = False) -> None:
        self.path, split = _find(Path(path), split)
        self.manifest: Manifest = read_manifest(self.path)
        self.split = _choose(self.manifest, split, self.path)
        if verify and (findings := check_files(self.path, self.manifest, "sha256")):
            more = f" (and {len(findings) - 1} more findings)" if len(findings) > 1 else ""
            raise FormatError(findings[0] + more)
        self._shards = [_Shard(self.path, entry, self.manifest.columns) for entry in self.manifest.shards(self.split)]
        self._ends = list(accumulate(shard.entry.packs or 0 for shard in self._shards))
        if verify:
            segments = sum(shard.verify(self.manifest) for shard in self._shards)
            if segments != (expected := self.manifest.splits[self.split].segments):
                raise FormatError(
                    f"{self.path} holds {segments} segments of {self.split}; the manifest says {expected}"
                )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Pack:
        """Pack `index`, counted from the end if negative. IndexError outside the packs there are."""
        packs = len(self)
        if not -packs <= index < packs:
            raise IndexError(f"pack {index} of {self.path} was asked for; it has {packs}")
        index %= packs
        shard = bisect_right(self._ends, index)
        return self._shards[shard].pack(index - (self._ends[shard - 1] if shard else 0))

    def __iter__(self) -> Iterator[Pack]:
        for shard in self._shards:
            yield from map(shard.pack, range(shard.entry.packs or 0))

    def __repr__(self) -> str:
        counts = self.manifest.splits[self.split]
        return f"PackedShards({str(self.path)!r}, split={self.split!r}: {counts.packs} packs, {counts.tokens} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackedShards, split=self.split), (self.path,)

    @property
    def report(self) -> dict[str, Any]:
        """The build's report.json, checked against the manifest. FormatError if the output has none."""
        for entry in self.manifest.all_files:
            if entry.path == "report.json":
                file = check_file(self.path, entry, "sha256")
                try:
                    report: dict[str, Any] = json.loads(file.read_bytes())
                except ValueError as error:
                    raise FormatError(f"{file} is not JSON: {error}; build again") from None
                return report
        raise FormatError(f"{self.path} has no report.json in its manifest; expected the output of packprep build")


class _Shard:
    """One shard file. Its record batches are mapped when the first pack is asked for."""

    def __init__(self, directory: Path, entry: FileEntry, columns: tuple[Column, ...]) -> None:
        self.entry = entry
        self.columns = columns
        self._file = check_file(directory, entry)
        with self._stream() as stream:
            check_schema(stream.schema, columns, self.entry.path)
        self._batches: list[pa.RecordBatch] | None = None
        self._starts: list[int] = []
        self._views: dict[int, dict[str, ListView]] = {}

    def _stream(self) -> pa.ipc.RecordBatchStreamReader:
        try:
            return pa.ipc.open_stream(pa.memory_map(str(self._file)))
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(f"{self._file} is not a whole Arrow stream: {error}; restore the file or build again")

    @property
    def batches(self) -> list[pa.RecordBatch]:
        if self._batches is None:
            try:
                batches = [batch for batch in self._stream() if len(batch)]
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(error) from None
            packs = sum(map(len, batches))
            if packs != self.entry.packs:
                raise FormatError(f"{self._file} holds {packs} packs; the manifest says {self.entry.packs}")
            self._starts = list(accumulate(map(len, batches), initial=0))[:-1]
            self._batches = batches
        return self._batches

    def pack(self, row: int) -> Pack:
        batches = self.batches
        batch = bisect_right(self._starts, row) - 1
        if batch not in self._views:
            self._views[batch] = {
                column.name: list_view(batches[batch], column.name, self.entry.path) for column in self.columns
            }
        at = row - self._starts[batch]
        rows = {name: view.row(at) for name, view in self._views[batch].items()}
        return self._pack(rows, row)

    def _pack(self, rows: dict[str, NDArray[Any]], row: int) -> Pack:
        where = f"{self.entry.path} pack {row}"
        tokens, boundaries = len(rows["tokens"]), len(rows["cu_seqlens"])
        check_boundaries(rows["cu_seqlens"], tokens, where)
        expected = {"token": tokens, "segment": boundaries - 1, "boundary": boundaries}
        for column in self.columns:
            if len(rows[column.name]) != expected[column.kind]:
                raise FormatError(
                    f"{where}: {column.name} has {len(rows[column.name])} values; expected {expected[column.kind]}"
                )
        real = rows.get("segment_lengths")
        if real is not None and ((real < 0) | (real > np.diff(rows["cu_seqlens"]))).any():
            raise FormatError(
                f"{where}: a segment is shorter than the tokens that segment_lengths gives it, or they are < 0"
            )
        return Pack(rows)

    def verify(self, manifest: Manifest) -> int:
        """Check every invariant of every pack, and the shard's number of tokens. Returns its number of segments."""
        first = tokens = segments = 0
        for batch in self.batches:
            check_batch(
                batch,
                self.columns,
                max_length=manifest.max_length,
                vocab_size=manifest.vocab_size,
                where=self.entry.path,
                first_pack=first,
            )
            token_offsets = list_view(batch, "tokens", self.entry.path).offsets
            boundaries = list_view(batch, "cu_seqlens", self.entry.path).offsets
            first += len(batch)
            tokens += int(token_offsets[-1]) - int(token_offsets[0])
            segments += int(boundaries[-1]) - int(boundaries[0]) - len(batch)
        if tokens != self.entry.tokens:
            raise FormatError(f"{self._file} holds {tokens} tokens; the manifest says {self.entry.tokens}")
        return segments


def _find(path: Path, split: str | None) -> tuple[Path, str | None]:
    """The directory of the manifest, and the split if `path` is the directory of one."""
    if not (path / MANIFEST).exists() and (path.parent / MANIFEST).exists():
        return path.parent, split or path.name
    return path, split


def _choose(manifest: Manifest, split: str | None, path: Path) -> str:
    names = list(manifest.splits)
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        asked = "no split was chosen" if split is None else f"split {split!r} was asked for"
        raise ValueError(f"{path} has the splits {', '.join(names)} and {asked}; pass split={names[0]!r}")
    return split
