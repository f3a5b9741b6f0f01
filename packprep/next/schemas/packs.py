"""Every tool reads the packs of an output here, whatever it holds: shards, or a plan."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .errors import FormatError
from .files import Files, file_digest
from .manifest import FileEntry, Manifest, read_manifest


@dataclass(frozen=True)
class Output:
    """A finished output."""

    files: Files
    manifest: Manifest

    @property
    def name(self) -> str:
        """Its place, for messages."""
        return str(self.files)


@dataclass(frozen=True)
class PackBatch:
    """Consecutive packs of a shard. first: number of the first one in its shard."""

    shard: FileEntry
    first: int
    batch: pa.RecordBatch


def open_output(place: str | Path) -> Output:
    """A finished output. Raises FormatError if it is none."""
    files = Files(place)
    return Output(files, read_manifest(files))


def packs(
    output: Output,
    split: str = "train",
    names: Collection[str] | None = None,
    *,
    check: bool = True,
) -> Iterator[PackBatch]:
    """The packs of a split in record batches, with the columns of the files.

    names: columns to read; None for all. check: compare the digest of each shard with the manifest
    first. Raises FormatError for a shard that is missing, damaged, or has other packs.
    """
    for shard in output.manifest.shards(split):
        path = output.files.local(shard.path)
        check_file(output, shard, digest=check)
        first = 0
        try:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file.read_buffer()) as stream:
                for batch in stream:
                    yield PackBatch(shard, first, batch if names is None else batch.select(names))
                    first += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path} is damaged: {error}; restore it or build again") from None
        if first != shard.packs:
            raise FormatError(f"{path} has {first:,} packs; the manifest lists {shard.packs:,}")


def check_file(output: Output, entry: FileEntry, *, digest: bool = True) -> None:
    """Raise FormatError unless a file is there with its size and, if asked, its digest."""
    path = output.files.local(entry.path)
    if not path.is_file():
        raise FormatError(f"{path} is missing; restore it or build again")
    if (size := path.stat().st_size) != entry.bytes:
        raise FormatError(f"{path} has {size:,} bytes; the manifest lists {entry.bytes:,}")
    if digest and file_digest(path) != entry.sha256:
        raise FormatError(f"{path} has another sha256 than the manifest; restore it")
