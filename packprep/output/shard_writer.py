"""Packs to shard files: Arrow IPC streams, hashed while they are written.

A record batch has about half a million tokens. `datasets.load_from_disk` opens streams only.
`save_to_disk` is not used: older versions of `datasets` cannot open what newer ones save, it writes
in place, and it checks nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Writing
from packprep.engines.tokenizer import Tokenizer
from packprep.output.hashed_file import HashedFile, LateSha256
from packprep.packing.kernels.gather import copy_compiled
from packprep.schemas.canonical import file_digest, parse_json
from packprep.schemas.columns import STANDARD_COLUMNS, Column, columns_of_type
from packprep.schemas.index.packs import PlannedPacks
from packprep.schemas.manifest import FileEntry
from packprep.schemas.names import Names, needed_columns, stored_columns, stored_schema
from packprep.schemas.storage.places import Files
from packprep.schemas.storage.stores import Stored
from packprep.schemas.validate import check_batch
from packprep.sources.units import ranges
from packprep.support.ahead import ahead
from packprep.support.from_json import from_json
from packprep.windows.index_rows import columns_of_index, index_batches
from packprep.windows.placement import Packs

# Larger record batches hash and write slower: they do not fit the processor's cache.
BATCH_TOKENS = 1 << 19

Count = Any  # int, or int64 [packs]


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Layout that all shards of a build share."""

    columns: tuple[Column, ...]
    max_length: int
    vocab_size: int
    bos_id: int
    pad_id: int
    names: Names = "packprep"
    added: tuple[str, ...] = ()  # columns that are written only because `names` needs them
    index: tuple[Column, ...] = ()  # columns of an index, written in place of all others

    @property
    def file_columns(self) -> tuple[Column, ...]:
        """The columns that the files have."""
        return self.index or self.stored_columns

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns as the files name them."""
        return stored_columns(self.columns, self.names)

    @property
    def schema(self) -> pa.Schema:
        return (
            pa.schema([(column.name, column.arrow_type) for column in self.index])
            if self.index
            else stored_schema(self.columns, self.names)
        )

    @staticmethod
    def of(
        rules: PackRules, writing: Writing, tokenizer: Tokenizer, carried: Sequence[Column] = ()
    ) -> "ShardLayout":
        """Layout of a build's shards.

        Padding and repeated tokens need a column of labels, because they carry no loss; padding
        also needs a column of real lengths. The names of `hf` need labels and position_ids.
        ConfigError if the vocabulary is too large for `token_type`.
        carried: columns of the token files other than tokens.
        """
        cutting, multiple = rules.cutting, rules.packing.pad_segment_to_multiple
        padded = multiple > 1
        filler = writing.multiple.packs > 1 and writing.multiple.remainder == "fill"
        repeated = cutting.stride > 0 and not cutting.train_overlap
        trees = cutting.share_prefixes > 0
        labels = padded or filler or repeated or trees or STANDARD_COLUMNS["labels"] in carried
        names = ["tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts"]
        chosen = (*writing.columns, "tokens", "cu_seqlens", *(["labels"] if labels else []))
        added = [name for name in needed_columns(writing.names) if name not in chosen]
        names = [name for name in names if name in (*chosen, *added)]
        names += ["labels"] if "labels" in (*chosen, *added) else []
        names += ["segment_lengths"] if padded else []
        if trees:
            added_names, carried = _tree_columns(carried)
            names += added_names
        types = columns_of_type(tokenizer.shard_type(writing.token_type), cutting.max_length)
        standard = tuple(types[name] for name in names)
        return ShardLayout(
            columns=standard + tuple(column for column in carried if column not in standard),
            max_length=cutting.max_length,
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos.id if tokenizer.bos else 0,
            pad_id=tokenizer.pad_id,
            names=writing.names,
            added=tuple(added),
            index=columns_of_index(cutting, multiple) if writing.materialize == "index" else (),
        )


def _tree_columns(carried: Sequence[Column]) -> tuple[list[str], list[Column]]:
    """Names of the columns that trees need, and the carried columns, with a value for each row."""
    own = {column.name for column in carried}
    names = ["segment_parents", "label_weights", "row_ids", "row_starts"]
    names += ["row_turns"] if "turn_ids" in own else []
    names += ["row_sides"] if "pair_sides" in own else []
    names += ["row_segments", "row_ends", "row_trained", "row_label_starts"]
    return names, [
        Column(name=column.name, kind="row", dtype=column.dtype)
        if column.kind == "segment" and column.name not in STANDARD_COLUMNS
        else column
        for column in carried
    ]


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """Receipt of a written shard.

    It is written after the shard, and proves that this has not changed: by its version, which is
    one request, or, on disk, by its digest, which means reading the shard.

    version: see `Stored`. run, window: that it belongs to; run: None if the output is one.
    """

    name: str
    split: str
    bytes: int
    sha256: str
    packs: int
    segments: int
    tokens: int
    version: str = ""
    run: int | None = None
    window: int = 0

    def intact(self, files: Files) -> bool:
        """True if the file exists and matches the receipt. Without a version it is read."""
        if not files.holds(self.name, Stored(self.bytes, self.version)):
            return False
        if self.version:
            return True
        with files.open(self.name) as file:
            return file_digest(file) == self.sha256


def receipt_like(entry: FileEntry, name: str, split: str, size: int, sha256: str) -> ShardFile:
    """Receipt of a shard that has the packs of another one. size: bytes of the new file."""
    assert entry.packs is not None
    assert entry.tokens is not None
    return ShardFile(
        name=name,
        split=split,
        bytes=size,
        sha256=sha256,
        packs=entry.packs,
        segments=0,
        tokens=entry.tokens,
        run=entry.run,
    )


def read_shard_receipt(path: Path, made_from: str) -> ShardFile | None:
    """Receipt of a shard that was made from the same inputs; None if there is none."""
    try:
        loaded = parse_json(path.read_bytes())
        return from_json(ShardFile, loaded) if loaded.pop("made_from") == made_from else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def cut_shards(packs: Packs, layout: ShardLayout, shard_size: int) -> list[tuple[int, int]]:
    """Ranges of packs, each of about shard_size bytes."""
    return ranges(shard_bytes(packs, layout), shard_size)


def shard_bytes(packs: Packs, layout: ShardLayout) -> NDArray[np.int64]:
    """Bytes that each pack takes in a shard, [packs]."""
    sizes: NDArray[np.int64] = column_bytes(
        layout.columns, packs.lengths, np.diff(packs.offsets), 1, packs.rows_per_pack
    )
    return sizes


def column_bytes(
    columns: Sequence[Column], tokens: Count, segments: Count, packs: Count, rows: Count = 0
) -> Count:
    """Bytes of the columns of some packs; for arrays, of each pack.

    Arrow's framing is not counted: some kB a batch.
    """
    per = {"token": tokens, "segment": segments, "boundary": segments + packs, "row": rows}
    return sum(4 * packs + per[column.kind] * column.numpy_dtype.itemsize for column in columns)


def write_shard(
    files: Files,
    name: str,
    split: str,
    packs: Packs,
    first: int,
    last: int,
    layout: ShardLayout,
    window: int = 0,
) -> ShardFile:
    """Write packs first..last - 1; the file appears under its name once it is complete on disk."""

    def checked(part: tuple[int, int]) -> pa.RecordBatch:
        batch = record_batch(packs, first + part[0], first + part[1], layout)
        check_batch(
            batch,
            layout.columns,
            max_length=layout.max_length,
            vocab_size=layout.vocab_size,
            where=name,
            first_pack=part[0],
        )
        return batch

    tokens, segments = (
        int(packs.lengths[first:last].sum()),
        int(packs.offsets[last] - packs.offsets[first]),
    )
    rows = int(packs.rows_per_pack[first:last].sum())
    content = column_bytes(layout.file_columns, tokens, segments, last - first, rows)
    parts = ranges(packs.lengths[first:last], BATCH_TOKENS, at_most=True)
    if layout.index:
        in_window = [(first + start, first + end) for start, end in parts]
        batches = index_batches(packs, in_window, layout.index)
        size, sha256 = write_batches(files, name, batches, layout.schema, content, at_once=True)
    else:
        with ThreadPoolExecutor(1) as pool:  # gathering beside hashing and writing
            batches = ahead(lambda part: pool.submit(checked, part), parts, 2)
            size, sha256 = write_batches(files, name, batches, layout.schema, content)
    stored = files.find(name)
    return ShardFile(
        name=name,
        split=split,
        bytes=size,
        sha256=sha256,
        packs=last - first,
        segments=segments,
        tokens=tokens,
        version=stored.version if stored is not None else "",
        window=window,
    )


def write_batches(
    files: Files,
    name: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    content: int = 0,
    *,
    at_once: bool = False,
) -> tuple[int, str]:
    """Write an Arrow stream, which appears under its name once it is complete on disk.

    content: bytes of its columns if known, to preallocate them. at_once: make all of a small file
    in memory first. Returns its bytes and sha256.
    """
    with files.writing(name) as raw:
        file = HashedFile(raw, LateSha256(), room=content)
        if at_once:
            memory = pa.BufferOutputStream()
            with pa.ipc.new_stream(memory, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.write(memory.getvalue())
            return file.bytes, file.digest()
        # Arrow takes any object with these methods; its stubs ask for a class of `io`.
        with pa.ipc.new_stream(file, schema) as writer:  # type: ignore[arg-type]
            for batch in batches:
                writer.write_batch(batch)
        digest = file.digest()
    return file.bytes, digest


def record_batch(packs: Packs, first: int, last: int, layout: ShardLayout) -> pa.RecordBatch:
    """Packs first..last - 1 as one record batch in the columns of a file."""
    plan, ids = packs.plan(first, last), (layout.bos_id, layout.pad_id)
    batch = PlannedPacks(plan, packs.documents.at, layout.columns, ids, copy_compiled)
    return batch.record_batch(layout.names)


def iterate_batches(packs: Packs, layout: ShardLayout) -> Iterator[pa.RecordBatch]:
    """All packs as record batches, for outputs that stay in memory."""
    for first, last in ranges(packs.lengths, BATCH_TOKENS, at_most=True):
        yield record_batch(packs, first, last, layout)
