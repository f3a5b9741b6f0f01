"""A folder of a store, in which an output or an export is published; a store has no rename.

Shards go to the store at once, the rest is made in a directory of this machine. OUT.incomplete is
beside OUT, as it is beside a directory. It has the lock, folders of files under their working
names, and the record of the publication. Token files and receipts, or all of an export, are in
WORK_DIR/NAME.incomplete.

Readers see the whole output or export or nothing, and two builds never mix.

1. A record of the publication is written to OUT.incomplete/publication.json (create-if-absent): the
   manifest, every small file, and the final name of each large one. The record never changes,
   whichever process continues.
2. The store copies the large files to their final names. Then the small ones are written; those
   that `datasets` opens first come last.
3. manifest.json or export.json is created (create-if-absent). From now on readers see it all.
4. Everything that builds left in OUT.incomplete is deleted.

Every step may be done twice, or by two processes at once, because all of them write the same bytes.
A build that wakes up after another one took its place copies files that exist already, or sees that
its shards are gone and the output is finished.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from packprep.output.remote_lock import StoreLock, check_proven, store_holder, store_locked
from packprep.output.staging import NAMES, STORE, SUFFIX
from packprep.output.target import Publishable, Signed, Target
from packprep.schemas.canonical import canonical_json, digest_of, parse_json, read_object
from packprep.schemas.errors import FormatError
from packprep.schemas.files import inside
from packprep.schemas.storage.stores import Store
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, StoppedError, asked
from packprep.support.file_lock import Holder, holder
from packprep.support.progress import Progress

RECORD = "publication.json"
_AT_ONCE = 8  # uploads or copies at a time
_SMALL = (".json", ".yaml")  # files that are in the record of a publication
_OPENED_FIRST = (
    "dataset_info.json",
    "state.json",
    "dataset_dict.json",
)  # in this order, after every other file


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Everything that will be at the URL.

    shards: final names of large files by names in OUT.incomplete. files: text of every other file,
    by its path. manifest: text of the last file.
    """

    shards: dict[str, str]
    files: dict[str, str]
    manifest: str


class StoreTarget(Target[Signed]):
    """A folder of a store; see `Target`.

    path: its name in the working directory. Nothing is written there; the staging directory and the
    lock are beside it. unproven_store: the caller accepts a store that is not `PROVEN`.
    """

    replaces = False

    def __init__(
        self, kind: Publishable[Signed], url: str, work_dir: str | None, *, unproven_store: bool
    ) -> None:
        self.url, self._unproven = url.rstrip("/"), unproven_store
        bucket, _, name = self.url.partition("://")[2].rpartition("/")
        if "@" in bucket.partition("/")[0]:
            raise ConfigError(
                f"{self.url} holds credentials; put them into the environment or the "
                "configuration of the store"
            )
        if not bucket or not name:
            raise ConfigError(
                f"{self.url} is a bucket; give a folder in it, such as {self.url}/packed"
            )
        super().__init__(kind, Path(work_dir or ".", name))
        self._lock: StoreLock | None = None

    @cached_property
    def files(self) -> Store:
        with asked():
            return Store(self.url)

    @cached_property
    def work(self) -> Store:
        """The store of OUT.incomplete."""
        with asked():
            return Store(self.url + SUFFIX)

    def __str__(self) -> str:
        return self.url

    def holder(self) -> Holder | None:
        """See `Target.holder`; on another machine only a living process is known."""
        with asked():
            return holder(self.path) or store_holder(self.work)

    @contextmanager
    def held(self, staging: Path | None, *, shared: bool = False) -> Iterator[None]:
        """See `Target.held`: a lock against work on other machines, in other directories.

        ConfigError if the store is not proven, and that is not accepted.
        """
        check_proven(self.url, accepted=self._unproven)
        owner = secrets.token_hex(8) if staging is None else _token(staging, self.url)
        activity = f"{self} {self.kind.activity}"
        locked = store_locked(self.work, activity, owner, shared=shared, staging=staging)
        with locked as self._lock:
            yield

    def finished(self) -> Signed | None:
        with asked():
            return super().finished()

    def existing(self, same: Callable[[Signed], None], progress: Progress) -> Signed | None:
        if (manifest := self.kind.read(self.files)) is not None:
            return manifest
        if (record := self.pending()) is not None:
            same(self.signed(record))
            progress.say(f"{self} is signed off: publishing resumes")
            return self._finish(record, progress)
        if name := next(iter(self.files.list()), None):
            raise ConfigError(
                f"{self} contains {name} and is not {self.kind.name}; choose another -o"
            )
        return None

    def shards(self, staging: Path) -> Store:
        """See `Target.shards`: a folder in OUT.incomplete."""
        return self.work.under(_token(staging, self.url))

    def publish(self, staging: Path, progress: Progress) -> Signed:
        if self._lock is not None:
            self._lock.check()
        manifest, content = self.kind.signed_in(staging)
        moves = self._sent(staging, manifest, progress)
        rest = {*self.kind.sizes(manifest)} - {*moves.values()}
        texts = {path: inside(staging, path).read_bytes().decode() for path in rest}
        publication = Publication(shards=moves, files=texts, manifest=content.decode())
        manifest = self._finish(self.begin(publication), progress)
        self.tidy()
        shutil.rmtree(staging)
        return manifest

    def _sent(self, staging: Path, manifest: Signed, progress: Progress) -> dict[str, str]:
        """Final names of large files by their names in OUT.incomplete; those here are sent there.

        Names of these have the digest of the manifest, so that an object of the same size is the
        same file.
        """
        moves: dict[str, str] = {}
        if (staging / NAMES).exists():
            names, folder = parse_json((staging / NAMES).read_bytes()), _token(staging, self.url)
            moves = {f"{folder}/{Path(name).name}": final for name, final in names.items()}
        sizes, folder = self.kind.sizes(manifest), digest_of(manifest.data)[:16]
        here = [p for p in sizes if p not in moves.values() and not p.endswith(_SMALL)]

        def send(path: str) -> None:
            name = f"{folder}/{path}"
            stored = self.work.find(name)
            if stored is None or stored.bytes != sizes[path]:
                with self.work.writing(name) as upload, inside(staging, path).open("rb") as file:
                    shutil.copyfileobj(file, upload, 8 << 20)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, _ in enumerate(pool.map(send, here), 1):
                progress.advance("send", number, len(here), "files")
        return moves | {f"{folder}/{path}": path for path in here}

    def pending(self) -> Publication | None:
        """Publication that a build has begun and not finished, if there is one."""
        try:
            return Publication(**parse_json(self.work.read(RECORD)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise FormatError(
                f"{self.work.where(RECORD)} was not written by packprep; delete it, then try again"
            ) from None

    def signed(self, publication: Publication) -> Signed:
        """The last file of a publication."""
        return self.kind.parse(publication.manifest.encode(), RECORD)

    def begin(self, publication: Publication) -> Publication:
        """Write the record of a publication, or return that of another build of the same output.

        StoppedError if a different build was faster; the same command then reports the state.
        """
        if not self.work.create(RECORD, canonical_json(asdict(publication))):
            recorded = self.pending()
            if recorded is None or self.signed(recorded).data != self.signed(publication).data:
                raise StoppedError(
                    f"{self} is being published by another build; wait until it is done"
                )
            return recorded
        if self.files.find(self.kind.last) is not None:  # created after the last check
            self.work.delete([RECORD])
            raise StoppedError(
                f"{self} was published by another build meanwhile; run the same command again"
            )
        return publication

    def _finish(self, publication: Publication, progress: Progress) -> Signed:
        """Do the steps of a publication that are not done yet.

        ConfigError if files were deleted before they were published: then nothing can finish it.
        """
        manifest = self.signed(publication)
        sizes, existing = self.kind.sizes(manifest), self.files.list()
        missing = [
            (working, final)
            for working, final in publication.shards.items()
            if final not in existing or existing[final].bytes != sizes[final]
        ]

        def copy(move: tuple[str, str]) -> None:
            self.work.copy_to(move[0], self.files, move[1])

        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for number, _ in enumerate(pool.map(copy, missing), 1):
                    progress.advance("publish", number, len(missing), "files")
        except FileNotFoundError as error:
            if (finished := self.kind.read(self.files)) and finished.data == manifest.data:
                return finished  # another process was faster and has deleted the working files
            raise ConfigError(
                f"a shard of {self} was deleted before it was published ({error}); delete {self} "
                f"and {self.work.url}, then build again"
            ) from None
        for path in sorted(publication.files, key=_write_order):
            self.files.write(path, publication.files[path].encode())
        self.files.create(self.kind.last, publication.manifest.encode())
        return manifest

    def tidy(self) -> None:
        """Delete everything that builds left in OUT.incomplete, but locks, which have holders."""
        names = [name for name in self.work.list() if not name.startswith("lock.")]
        self.work.delete([name for name in names if name != RECORD])
        # Last: without the record nobody would know that a publication was begun.
        self.work.delete([name for name in names if name == RECORD])
        self.work.forget_uploads("")


def _write_order(path: str) -> tuple[int, str]:
    """Sort key of small files: the order in which they are written."""
    name = PurePosixPath(path).name
    return (_OPENED_FIRST.index(name) + 1 if name in _OPENED_FIRST else 0, path)


def _token(staging: Path, url: str) -> str:
    """Name of this staging directory's folder in OUT.incomplete; every directory has its own."""
    known = read_object(staging / STORE)
    if not {"output", "token"} <= set(known):
        known = {"output": url, "token": secrets.token_hex(8)}
        write_file(staging / STORE, canonical_json(known))
    if known["output"] != url:
        raise ConfigError(
            f"{staging} is an unfinished build of {known['output']}; choose another --work-dir, or "
            "finish that build"
        )
    return str(known["token"])
