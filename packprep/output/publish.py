"""Publication of an output in a store, which has no rename.

Readers see the whole output or nothing, and two builds never mix.

1. A record of the publication is written to OUT.incomplete/publication.json (create-if-absent): the
   manifest, every small file, and the final name of each shard. The record never changes, whichever
   process continues.
2. The store copies the shards to their final names. Then the small files are written; those that
   `datasets` opens first come last.
3. manifest.json is created (create-if-absent). From now on readers see the output.
4. Everything that builds left in OUT.incomplete is deleted.

Every step may be done twice, or by two processes at once, because all of them write the same bytes.
A build that wakes up after another one took its place copies files that exist already, or sees that
its shards are gone and the output is finished.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from packprep.schemas.canonical import canonical_json, parse_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, inside
from packprep.schemas.manifest import Manifest, parse_manifest
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.progress import Progress

RECORD = "publication.json"
_AT_ONCE = 8  # copies at a time
_OPENED_FIRST = (
    "dataset_info.json",
    "state.json",
    "dataset_dict.json",
)  # in this order, after every other file


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Everything that will be at the URL.

    shards: final names by names in OUT.incomplete. files: text of every other file, by its path.
    """

    shards: dict[str, str]
    files: dict[str, str]
    manifest: str

    @property
    def parsed(self) -> Manifest:
        return parse_manifest(self.manifest.encode(), RECORD)


def prepared(staging: Path, folder: str, moves: Mapping[str, str]) -> Publication:
    """Publication of an output that is signed in its staging directory.

    folder: folder of the shards in OUT.incomplete. moves: final names of shards by their working
    names.
    """
    content = (staging / MANIFEST).read_text("utf-8")
    manifest = parse_manifest(content.encode(), str(staging / MANIFEST))
    small = [entry.path for entry in manifest.all_files if entry.path not in moves.values()]
    return Publication(
        shards={f"{folder}/{Path(working).name}": final for working, final in moves.items()},
        files={path: inside(staging, path).read_bytes().decode() for path in small},
        manifest=content,
    )


def pending(work: Store) -> Publication | None:
    """Publication that a build has begun and not finished, if there is one."""
    try:
        loaded = parse_json(work.read(RECORD))
        return Publication(
            shards=loaded["shards"], files=loaded["files"], manifest=loaded["manifest"]
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{work.where(RECORD)} was not written by packprep; delete it, then try again"
        ) from None


def begin(output: Store, work: Store, publication: Publication) -> Publication:
    """Write the record of a publication, or return the record of another build of the same output.

    StoppedError if a different build was faster; the same command then reports the state.
    """
    if not work.create(RECORD, canonical_json(asdict(publication))):
        recorded = pending(work)
        if recorded is None or recorded.parsed.data != publication.parsed.data:
            raise StoppedError(
                f"{output.url} is being published by another build; wait until it is done"
            )
        return recorded
    if output.find(MANIFEST) is not None:  # created after the last check
        work.delete([RECORD])
        raise StoppedError(
            f"{output.url} was published by another build meanwhile; run the same command again"
        )
    return publication


def finish_publication(
    output: Store, work: Store, publication: Publication, progress: Progress
) -> Manifest:
    """Do the steps of a publication that are not done yet.

    ConfigError if shards were deleted before they were published: then nothing can finish it.
    """
    manifest = publication.parsed
    sizes = {entry.path: entry.bytes for entry in manifest.all_files}
    existing = output.list()
    missing = {
        working: final
        for working, final in publication.shards.items()
        if final not in existing or existing[final].bytes != sizes[final]
    }

    def copy(move: tuple[str, str]) -> None:
        work.copy_to(move[0], output, move[1])

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, _ in enumerate(pool.map(copy, missing.items())):
                progress.advance("publish", number + 1, len(missing), "shards")
    except FileNotFoundError as error:
        if (finished := published(output)) is not None and finished.data == manifest.data:
            return finished  # another process was faster and has deleted the working shards
        raise ConfigError(
            f"a shard of {output.url} was deleted before it was published ({error}); delete "
            f"{output.url} and {work.url}, then build again"
        ) from None
    for path in sorted(publication.files, key=_write_order):
        output.write(path, publication.files[path].encode())
    output.create(MANIFEST, publication.manifest.encode())
    return manifest


def _write_order(path: str) -> tuple[int, str]:
    """Sort key of small files: the order in which they are written."""
    name = Path(path).name
    return (_OPENED_FIRST.index(name) + 1 if name in _OPENED_FIRST else 0, path)


def published(output: Store) -> Manifest | None:
    """Manifest of the output at the URL; None if there is none."""
    try:
        return parse_manifest(output.read(MANIFEST), output.where(MANIFEST))
    except FileNotFoundError:
        return None


def tidy(work: Store) -> None:
    """Delete everything that builds left in OUT.incomplete, except locks, which have holders."""
    names = [name for name in work.list() if not name.startswith("lock.")]
    work.delete([name for name in names if name != RECORD])
    # Last: without the record nobody would know that a publication was begun.
    work.delete([name for name in names if name == RECORD])
    work.forget_uploads("")
