"""Documents put together from their segments, as packs of one segment each.

    pack 0   [document 7: tokens 0 to 4095]      document 7 has 6,000 tokens
    pack 9   [document 7: 4096 to 5999] [8] [9]  documents 8 and 9 are whole

A whole document comes with its pack. Pieces wait for the last shard that has one of their document;
all of them are in one window of the build. A token that two pieces have is in the document once,
and is trained if one of them trains it. A piece after tokens that are in no pack begins a document
of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.exports.packs import PackBatch, pack_batch, read_packs
from packprep.exports.unshared import plain_columns
from packprep.inspect.policy import Policy
from packprep.schemas.columns import FILLER, NO_LOSS, STANDARD_COLUMNS, WHOLE_ROW, Column
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.schemas.names import column_view, list_array
from packprep.schemas.storage.reader import Reader
from packprep.schemas.trees import OF_ROWS
from packprep.schemas.views import ListView
from packprep.support.arrays import Bools, Int64
from packprep.support.errors import ConfigError

_TOKENS = 1 << 19  # of a batch of documents that were in pieces, about
_NEEDED = ("document_ids", "document_starts")
_PLACES = (*_NEEDED, "turn_ids", "pair_sides")
_OF_PACKS = ("position_ids", "segment_lengths")  # columns that documents do not need


def document_columns(manifest: Manifest) -> tuple[Column, ...]:
    """Columns of documents: those of the packs, and labels."""
    columns = plain_columns(manifest.columns) if manifest.has_trees else manifest.columns
    kept = {column.name: column for column in columns if column.name not in _OF_PACKS}
    return tuple((kept | {"labels": STANDARD_COLUMNS["labels"]}).values())


@dataclass(frozen=True, kw_only=True)
class _Segments:
    """Segments without padding and repeated BOS.

    keys: of their documents. starts: first token of each in its document. begins, sizes: its tokens
    in the columns that have a value per token. The other columns have a value per segment.
    """

    keys: Int64
    starts: Int64
    begins: Int64
    sizes: Int64
    columns: dict[str, NDArray[Any]]
    of_tokens: frozenset[str]

    @property
    def ends(self) -> Int64:
        return self.starts + self.sizes

    @property
    def tokens(self) -> Int64:
        """[tokens], place of each in the columns, segment by segment."""
        return _ranges(self.begins, self.sizes)

    def take(self, at: Int64 | Bools) -> "_Segments":
        """Some of the segments, or all of them in another order."""
        columns = {
            name: values if name in self.of_tokens else values[at]
            for name, values in self.columns.items()
        }
        places = {name: getattr(self, name)[at] for name in ("keys", "starts", "begins", "sizes")}
        return replace(self, columns=columns, **places)

    def copied(self) -> "_Segments":
        """The segments with columns of their own, of no other tokens."""
        tokens = self.tokens
        columns = {
            name: values[tokens] if name in self.of_tokens else values
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns, begins=np.cumsum(self.sizes) - self.sizes)

    @staticmethod
    def joined(parts: "Sequence[_Segments]") -> "_Segments":
        """All segments of parts that were copied."""
        sizes = np.concatenate([part.sizes for part in parts])
        return replace(
            parts[0],
            keys=np.concatenate([part.keys for part in parts]),
            starts=np.concatenate([part.starts for part in parts]),
            begins=np.cumsum(sizes) - sizes,
            sizes=sizes,
            columns={
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            },
        )


class JoinedDocuments:
    """Documents of the shards of a split. Reads the shards' columns of segments first.

    Memory is a record batch, the pieces that wait, and 16 bytes for each document in pieces. Raises
    ConfigError if the pieces of a document cannot be found.
    """

    def __init__(self, reader: Reader, entries: Sequence[FileEntry]) -> None:
        """entries: the shards, in their order."""
        manifest = reader.manifest
        self._reader, self._entries = reader, entries
        self._columns = document_columns(manifest)
        self._policy = policy = Policy.from_manifest(manifest)
        names = {column.name for column in self._columns}
        if missing := [name for name in _NEEDED if name not in names]:
            raise ConfigError(
                f"the shards of {reader} have no {missing[0]}, which documents are put together "
                "by; build again without --columns, or choose a format of packs"
            )
        later = [keys[starts > 0] for _, keys, starts in self._places(len(entries))]
        self._cut = np.unique(np.concatenate([np.empty(0, np.int64), *later]))
        if len(self._cut) and not policy.says_cuts:
            raise ConfigError(
                f"{reader} was merged from outputs that cut documents in different ways, so their "
                "pieces cannot be put together; export each of these outputs"
            )
        self._last = np.zeros(len(self._cut), np.int64)  # shard of the last piece
        for number, keys, _ in self._places(len(entries) if len(self._cut) else 0):
            at, is_cut = self._find(keys)
            self._last[at[is_cut]] = number
        self._waiting: list[_Segments] = []
        self._next = 0  # shard whose turn it is

    def of_shard(self, number: int) -> Iterator[PackBatch]:
        """Documents that end with a shard: whole ones by pack, then those in pieces by id.

        The shards before it are read again if the last call was not for the one before.
        """
        if number != self._next:
            self._waiting = []
            for earlier in {
                shard for shard, keys, _ in self._places(number) if self._waits(keys, number).any()
            }:
                for segments in self._segments(earlier):
                    self._wait(segments.take(self._waits(segments.keys, number)))
        for segments in self._segments(number):
            _, is_cut = self._find(segments.keys)
            self._wait(segments.take(is_cut))
            whole = segments.take(~is_cut)
            if len(whole.keys):
                yield self._batch(whole, np.arange(len(whole.keys)))
        yield from self._put_together(number)
        self._next = number + 1

    def _places(self, shards: int) -> Iterator[tuple[int, Int64, Int64]]:
        """Shard, keys and starts of the segments of each record batch of the first shards."""
        names = {name: OF_ROWS[name] if self._is_tree else name for name in _PLACES}
        stored = {column.name for column in self._reader.manifest.columns}
        names = {name: column for name, column in names.items() if column in stored}
        for number, entry in enumerate(self._entries[:shards]):
            for batch in self._reader.read(entry, [*names.values()], "columns"):
                columns = {
                    name: column_view(batch.rows, column, batch.where).flat
                    for name, column in names.items()
                }
                kept = columns["document_ids"] != FILLER
                columns = {name: values[kept] for name, values in columns.items()}
                yield number, self._keys(columns, batch.where), columns["document_starts"]

    @property
    def _is_tree(self) -> bool:
        return self._reader.manifest.has_trees

    def _keys(self, columns: dict[str, NDArray[Any]], where: str) -> Int64:
        """A number for each document: of its row, its turn and its side of a pair."""
        ids, rows = columns["document_ids"], self._reader.manifest.num_documents
        if (highest := int(ids.max(initial=0))) >= rows:
            raise FormatError(
                f"{where} has document {highest:,}; the sources have {rows:,} rows, numbered from "
                "0; restore the file or build again"
            )
        turns: Any = columns.get("turn_ids", np.full(1, WHOLE_ROW))
        sides: Any = columns.get("pair_sides", np.zeros(1, np.int8))
        keys: Int64 = ((turns.astype(np.int64) - WHOLE_ROW) * 2 + sides) * rows + ids
        return keys

    def _find(self, keys: Int64) -> tuple[Int64, Bools]:
        """Place of each key among documents in pieces, and True if it is there."""
        if not len(self._cut):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self._cut, keys), len(self._cut) - 1)
        return at, self._cut[at] == keys

    def _waits(self, keys: Int64, number: int) -> Bools:
        """True for pieces of documents that end with this shard or a later one."""
        at, is_cut = self._find(keys)
        return is_cut & (self._last[at] >= number) if len(self._cut) else is_cut

    def _wait(self, pieces: _Segments) -> None:
        if len(pieces.keys):
            self._waiting.append(pieces.copied())

    def _segments(self, number: int) -> Iterator[_Segments]:
        """The segments of each record batch of a shard."""
        kinds = {column.name: column.kind for column in self._columns}
        of_tokens = frozenset(name for name, kind in kinds.items() if kind == "token")
        kept_kinds = ("token", "segment")
        for batch in read_packs(self._reader, self._entries[number]):
            view = batch.view
            kept = np.flatnonzero((batch.real_lengths > 0) & (view.columns["document_ids"] >= 0))
            columns = {
                name: values if name in of_tokens else values[kept]
                for name, values in (view.columns | {"labels": batch.labels}).items()
                if kinds.get(name) in kept_kinds
            }
            starts = columns["document_starts"].astype(np.int64)
            policy = self._policy
            bos = (starts > 0) & (policy.continuation_bos and policy.bos is not None)
            yield _Segments(
                keys=self._keys(columns, view.where),
                starts=starts,
                begins=view.starts[kept] + bos,
                sizes=batch.real_lengths[kept] - bos,
                columns=columns,
                of_tokens=of_tokens,
            )

    def _put_together(self, number: int) -> Iterator[PackBatch]:
        """Documents in pieces of which a shard has the last."""
        if not self._waiting:
            return
        pieces = _Segments.joined(self._waiting)
        at, _ = self._find(pieces.keys)
        ends_here = self._last[at] == number
        self._waiting = []
        self._wait(pieces.take(~ends_here))
        if not ends_here.any():
            return
        pieces = pieces.take(ends_here)
        pieces = pieces.take(np.lexsort((pieces.ends, pieces.starts, pieces.keys)))
        runs = self._runs(pieces)
        order = np.argsort(runs, kind="stable")
        pieces, runs = pieces.take(order), runs[order]
        after = np.cumsum(pieces.sizes)
        first = 0
        while first < len(runs):  # whole documents of about _TOKENS tokens
            reached = int(np.searchsorted(after, after[first] + _TOKENS))
            last = len(runs)
            if reached < len(runs):
                last = int(np.searchsorted(runs, runs[reached], side="right"))
            yield self._batch(pieces.take(np.arange(first, last)), runs[first:last] - runs[first])
            first = last

    def _runs(self, pieces: _Segments) -> Int64:
        """Number of the document that each piece belongs to. pieces: by key, start and end.

        Copies of a document, which a mix draws, may be cut at other places: each piece continues
        one that ends where it begins, of whichever copy, because their tokens are equal.
        """
        keys, starts, ends = pieces.keys, pieces.starts, pieces.ends
        if not self._policy.repeated:
            follows = (keys[1:] == keys[:-1]) & (starts[1:] <= ends[:-1])
            return np.append(0, np.cumsum(~follows))
        runs, open_ends, count = np.empty(len(keys), np.int64), dict[Any, list[int]](), 0
        due = starts + self._policy.stride
        for number, (key, start, wanted, end) in enumerate(
            zip(keys.tolist(), starts.tolist(), due.tolist(), ends.tolist(), strict=True)
        ):
            before = open_ends.get((key, wanted)) if start else None
            run = before.pop(0) if before else count
            count += run == count
            runs[number] = run
            open_ends.setdefault((key, end), []).append(run)
        return runs

    def _batch(self, segments: _Segments, runs: Int64) -> PackBatch:
        """Documents as packs. runs: [segments], number of the document of each, rising."""
        firsts = np.flatnonzero(np.append(True, runs[1:] != runs[:-1]))
        into = segments.starts - segments.starts[firsts][runs]
        sizes = np.maximum.reduceat(into + segments.sizes, firsts)
        bounds = np.append(0, np.cumsum(sizes))
        source = segments.tokens
        target = _ranges(bounds[runs] + into, segments.sizes)
        trained = segments.columns["labels"][source] != NO_LOSS
        documents = np.arange(len(firsts) + 1)
        arrays = []
        for column in self._columns:
            values: Any = segments.columns.get(column.name)
            if column.name == "cu_seqlens":
                offsets, values = 2 * documents, np.stack([0 * sizes, sizes], 1).ravel()
            elif column.kind == "segment":
                offsets, values = documents, values[firsts]
            elif column.name == "labels":
                offsets, stored = bounds, values
                values = np.full(bounds[-1], NO_LOSS, np.int32)
                values[target[trained]] = stored[source[trained]]
            else:
                offsets, stored = bounds, values
                values = np.empty(bounds[-1], stored.dtype)
                values[target] = stored[source]
            values = values.astype(column.numpy_dtype, copy=False)
            arrays.append(list_array(ListView(offsets.astype(np.int32), values)))
        rows = pa.record_batch(arrays, names=[column.name for column in self._columns])
        return pack_batch(rows, self._columns, "documents")


def _ranges(begins: Int64, sizes: Int64) -> Int64:
    """Numbers from each begin on. Example: begins=[4, 0], sizes=[2, 3] -> [4, 5, 0, 1, 2]."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + sizes, sizes)
