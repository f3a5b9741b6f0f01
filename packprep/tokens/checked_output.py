"""A finished output that another one is made of: each byte is compared with its digest once.

A command that writes a new digest over bytes that it has read signs them. So it reads them here,
and a damaged file is an error before anything is signed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path

from packprep.schemas.errors import FormatError
from packprep.schemas.index_table import TOKENS
from packprep.schemas.listed import Level, cache_note, check_file, is_cache, names_in
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.support.limits import usable_cores
from packprep.support.progress import Progress
from packprep.tokens.index_shards import AsPacks, as_packs, changed_token_files

_AT_ONCE = 8  # files, unless there are fewer cores


class CheckedOutput:
    """Files and packs of an output. Raises FormatError for a file that differs from the manifest.

    manifest: of the shards to read; default: the output's. All small files are compared at once.
    """

    def __init__(self, output: Output, manifest: Manifest | None = None) -> None:
        self.output = output
        self.manifest = manifest if manifest is not None else read_manifest(output)
        self._compared: set[str] = set()
        for entry in self.manifest.all_files:
            if not entry.is_shard and not entry.path.startswith(f"{TOKENS}/"):
                self.file(entry)

    def say_caches(self, progress: Progress) -> None:
        """Report files that `datasets` has left in the directory: they are left out."""
        names = names_in(self.output) if isinstance(self.output, Path) else []
        if names := [*filter(is_cache, names)]:
            progress.say(f"{self.output}: left out {cache_note(names)}")

    def __str__(self) -> str:
        return str(self.output)

    def file(self, entry: FileEntry) -> Path:
        """Path of a file with the digest of its entry."""
        level: Level = "size" if entry.path in self._compared else "sha256"
        try:
            path = check_file(self.output, entry, level)
        except FormatError as error:
            raise FormatError(f"{error}; restore the file or build again") from None
        self._compared.add(entry.path)
        return path

    def find(self, name: str) -> Path | None:
        """Path of a file by its name; None if the manifest does not list it."""
        entries = (entry for entry in self.manifest.all_files if entry.path == name)
        return next(map(self.file, entries), None)

    def shards(
        self, entries: Sequence[FileEntry]
    ) -> Iterator[tuple[FileEntry, AbstractContextManager[Path]]]:
        """Shards in order, each with a block that reads it; the next ones are compared meanwhile.

        The block has the path of the shard, and fails at its end if the digest differs. So nothing
        may be signed in it. An error in the block that the damage has caused is replaced.
        """
        threads = min(_AT_ONCE, usable_cores().value)
        with ThreadPoolExecutor(threads) as pool:
            compared = [pool.submit(self.file, entry) for entry in entries[:threads]]
            for number, entry in enumerate(entries):
                yield entry, self._reading(entry, compared[number])
                compared += [pool.submit(self.file, late) for late in entries[len(compared) :][:1]]

    @contextmanager
    def _reading(self, entry: FileEntry, compared: Future[Path]) -> Iterator[Path]:
        path = check_file(self.output, entry)
        try:
            yield path
        except Exception:
            compared.result()
            raise
        compared.result()

    @contextmanager
    def peeking(self, entry: FileEntry) -> Iterator[Path]:
        """Path of a shard of which the block reads a little, and that is compared if that fails."""
        try:
            yield check_file(self.output, entry)
        except Exception:
            self.file(entry)
            raise

    @cached_property
    def packs_of(self) -> AsPacks:
        """See `as_packs`; each token file of an index is compared when it is opened."""
        return as_packs(self.output, self.manifest, digests=True)

    def compare_store(self) -> None:
        """Compare the token files of an index that are in a store outside it."""
        for _, finding in changed_token_files(self.output, self.manifest):
            raise FormatError(finding)
