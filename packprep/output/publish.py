"""Publication of an output in a store, which has no rename.

Readers see nothing or all of it, and two builds never mix.

1. The whole of what will be there is written down as OUT.incomplete/publication.json, created only
   where there is none: the manifest, every small file, and which shard gets which name. Nothing of
   it changes any more, whoever goes on.
2. Shards are copied to their names inside the store; then come the small files, those that
   `datasets` begins with last.
3. manifest.json is created, again only where there is none: now the output is there.
4. What builds have left in OUT.incomplete goes.

Every step may be done twice and by two at once, for all that write here write the same bytes: a
build that wakes up after another one took its place copies what is there already, or finds its own
shards gone and the output finished.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from packprep.schemas.canonical import canonical_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, inside
from packprep.schemas.manifest import Manifest, parse_manifest
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.progress import Progress

RECORD = "publication.json"
_AT_ONCE = 8  # copies under way
_OPENED_FIRST = (
    "dataset_info.json",
    "state.json",
    "dataset_dict.json",
)  # in this order, behind every other file


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Content of the URL once it is published.

    shards: from names in OUT.incomplete to final ones. files: text of every other file.
    """

    shards: dict[str, str]
    files: dict[str, str]
    manifest: str

    @property
    def parsed(self) -> Manifest:
        return parse_manifest(self.manifest.encode(), RECORD)


def prepared(staging: Path, folder: str, moves: Mapping[str, str]) -> Publication:
    """The publication of an output that is signed in its staging directory.

    folder: of the shards, in OUT.incomplete.

    moves: final names of shards by their working ones.
    """
    content = (staging / MANIFEST).read_text("utf-8")
    manifest = parse_manifest(content.encode(), str(staging / MANIFEST))
    small = [entry.path for entry in manifest.all_files if not entry.is_shard]
    return Publication(
        shards={f"{folder}/{Path(working).name}": final for working, final in moves.items()},
        files={path: inside(staging, path).read_bytes().decode() for path in small},
        manifest=content,
    )


def pending(work: Store) -> Publication | None:
    """The publication that a build has begun and not finished, if there is one."""
    try:
        loaded = json.loads(work.read(RECORD))
        return Publication(
            shards=loaded["shards"], files=loaded["files"], manifest=loaded["manifest"]
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{work.where(RECORD)} is not what packprep writes; delete it to go on"
        ) from None


def begin(output: Store, work: Store, mine: Publication) -> Publication:
    """Write down what will be published.

    Or take over what another build of the same has written down.

    StoppedError where another one was faster; the same command then says what is there.
    """
    if not work.create(RECORD, canonical_json(asdict(mine))):
        theirs = pending(work)
        if theirs is None or theirs.parsed.data != mine.parsed.data:
            raise StoppedError(
                f"{output.url} is being published by another build; wait until it is done"
            )
        return theirs
    if output.find(MANIFEST) is not None:  # since we looked
        work.delete([RECORD])
        raise StoppedError(
            f"{output.url} was published by another build meanwhile; run the same command to see"
        )
    return mine


def finish_publication(
    output: Store, work: Store, publication: Publication, progress: Progress
) -> Manifest:
    """Do what is not done yet.

    ConfigError where somebody has deleted shards, for which there is no way on.
    """
    manifest = publication.parsed
    sizes = {entry.path: entry.bytes for entry in manifest.files if entry.is_shard}
    there = output.list()
    missing = {
        working: final
        for working, final in publication.shards.items()
        if final not in there or there[final].bytes != sizes[final]
    }

    def copy(move: tuple[str, str]) -> None:
        work.copy_to(move[0], output, move[1])

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, _ in enumerate(pool.map(copy, missing.items())):
                progress.advance("publish", number + 1, len(missing), "shards")
    except FileNotFoundError as error:
        if (found := published(output)) is not None and found.data == manifest.data:
            return found  # another process was faster and has taken the shards away
        raise ConfigError(
            f"a shard of {output.url} is gone before it was published ({error}); delete "
            f"{output.url} and {work.url}, "
            "and build again"
        ) from None
    for path in sorted(publication.files, key=_place):
        output.write(path, publication.files[path].encode())
    output.create(MANIFEST, publication.manifest.encode())
    return manifest


def _place(path: str) -> tuple[int, str]:
    """Sorts small files in the order in which they are written."""
    name = Path(path).name
    return (_OPENED_FIRST.index(name) + 1 if name in _OPENED_FIRST else 0, path)


def published(output: Store) -> Manifest | None:
    """The manifest of what is at the URL; None where there is none."""
    try:
        return parse_manifest(output.read(MANIFEST), output.where(MANIFEST))
    except FileNotFoundError:
        return None


def tidy(work: Store) -> None:
    """Take away all that builds have left in OUT.incomplete, but locks.

    Those belong to their holders.
    """
    left = [name for name in work.list() if not name.startswith("lock.")]
    work.delete([name for name in left if name != RECORD])
    work.delete(
        [name for name in left if name == RECORD]
    )  # last: without it nobody would know what was begun
    work.forget_uploads("")
