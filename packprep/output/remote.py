"""An output in a store.

Its shards go to the store at once, the rest is built in a directory of this machine; the manifest
publishes it.

OUT.incomplete is beside OUT, as it is beside a directory. It has the lock, a folder of shards for
each staging directory that works on the output, and the record of the publication (publish.py).
Token files and receipts are in WORK_DIR/NAME.incomplete.
"""

import contextlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.output.build_facts import difference
from packprep.output.publish import begin, finish_publication, pending, prepared, published, tidy
from packprep.output.remote_lock import StoreLock, check_proven, store_holder, store_locked
from packprep.output.staging import BUILD, NAMES, STORE, SUFFIX
from packprep.schemas.canonical import canonical_json, digest_of, parse_json
from packprep.schemas.index_table import TOKENS
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.places import Files
from packprep.schemas.storage.stores import Store
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import Source
from packprep.support.errors import ConfigError, asked
from packprep.support.file_lock import Holder, holder
from packprep.support.progress import Progress


class StoreOutput:
    """A folder of a store; see `BuildOutput`.

    path: its name in the working directory. Nothing is written there; the staging directory and the
    lock are beside it.
    """

    replaces = one_split_does = False

    def __init__(self, config: BuildConfig) -> None:
        self.url = config.output.rstrip("/")
        _, _, rest = self.url.partition("://")
        if self.url.startswith("hf://"):
            raise ConfigError(
                f"{self.url} is on the hub, which cannot create a file only where there is none; "
                "build into a directory, then run packprep push DIR USER/NAME"
            )
        bucket, _, name = rest.rpartition("/")
        if "@" in bucket.partition("/")[0]:
            raise ConfigError(
                f"{self.url} holds credentials; put them into the environment or the "
                "configuration of the store"
            )
        if not bucket or not name:
            raise ConfigError(
                f"{self.url} is a bucket; give a folder in it, such as {self.url}/packed"
            )
        self.path = Path(config.work_dir or ".", name)
        self._unproven = config.unproven_store
        self._lock: StoreLock | None = None

    def __str__(self) -> str:
        return self.url

    @cached_property
    def store(self) -> Store:
        with asked():
            return Store(self.url)

    @cached_property
    def work(self) -> Store:
        with asked():
            return Store(self.url + SUFFIX)

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        return list(sources)

    @contextmanager
    def held(self, staging: Path, *, shared: bool = False) -> Iterator[None]:
        """See `BuildOutput.held`: a lock against builds on other machines, in other directories.

        ConfigError if the store is not proven, and the config does not accept that.
        """
        check_proven(self.url, accepted=self._unproven)
        with store_locked(
            self.work, f"{self} is being built", _token(staging, self.url), shared=shared
        ) as self._lock:
            yield

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """See `LocalOutput.already_built`.

        A half-published output of the same inputs is finished first.
        """
        manifest = published(self.store)
        if manifest is None and (record := pending(self.work)) is not None:
            self._check_same(
                record.parsed,
                inputs,
                f"{self} is being published by a build with other settings",
                f"finish that build, or delete {self} and {self.work.url}",
            )
            progress.say(f"{self} is signed off: publishing resumes")
            manifest = finish_publication(self.store, self.work, record, progress)
        if manifest is not None:
            self._check_same(
                manifest,
                inputs,
                f"{self} was built with other settings",
                "and delete the old output when nobody reads it: an output in a store cannot be "
                "replaced at once, so readers would see a mix of old and new files"
                if config.overwrite
                else "or delete it first",
            )
            return manifest
        if name := next(iter(self.store.list()), None):
            raise ConfigError(
                f"{self} contains {name} and is not an output of packprep; choose another -o"
            )
        return None

    def _check_same(
        self, manifest: Manifest, inputs: dict[str, Any], state: str, advice: str
    ) -> None:
        if manifest.identity != digest_of(inputs):
            changed = difference({"inputs": manifest.data["inputs"]}, {"inputs": inputs})
            raise ConfigError(f"{state} ({changed}); choose another -o, {advice}")

    def finished(self) -> Manifest | None:
        with asked():
            return published(self.store)

    def holder(self) -> Holder | None:
        """See `WholeOutput.holder`; on another machine only a living process is known."""
        with asked():
            return holder(self.path) or store_holder(self.work)

    def begin(self, staging: Path) -> None:
        """Drop unfinished uploads that a killed process left for this staging directory."""
        self.work.forget_uploads(_token(staging, self.url))

    def shards(self, staging: Path) -> Files:
        """See `WholeOutput.shards`: a folder in OUT.incomplete."""
        return self.work.under(_token(staging, self.url))

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.publish`."""
        if self._lock is not None:
            self._lock.check()
        moves = parse_json((staging / NAMES).read_bytes())
        moves |= self._send_tokens(staging, manifest)
        record = begin(self.store, self.work, prepared(staging, _token(staging, self.url), moves))
        manifest = finish_publication(self.store, self.work, record, progress)
        tidy(self.work)
        shutil.rmtree(staging)
        return manifest

    def _send_tokens(self, staging: Path, manifest: Manifest) -> dict[str, str]:
        """Upload the token files of an index beside its shards; final names by working names."""
        files, moves = self.shards(staging), {}
        for entry in manifest.all_files:
            if entry.path.startswith(f"{TOKENS}/"):
                name = entry.path.replace("/", "-")
                moves[name] = entry.path
                sent = files.find(name)
                if sent is None or sent.bytes != entry.bytes:
                    with files.writing(name) as upload, (staging / entry.path).open("rb") as file:
                        shutil.copyfileobj(file, upload, 8 << 20)
        return moves

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.keep`."""
        tidy(self.work)
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            build = parse_json((staging / BUILD).read_bytes())
            if digest_of(build["inputs"]) == manifest.identity:
                shutil.rmtree(staging)
        progress.say(f"{self} is this build already: nothing to do")
        return manifest


def _token(staging: Path, url: str) -> str:
    """Name of this staging directory's folder in OUT.incomplete; every directory has its own."""
    path = staging / STORE
    try:
        known = parse_json(path.read_bytes())
        output, token = str(known["output"]), str(known["token"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        output, token = url, secrets.token_hex(8)
        write_file(path, canonical_json({"output": output, "token": token}))
    if output != url:
        raise ConfigError(
            f"{staging} is an unfinished build of {output}; choose another --work-dir, or finish "
            "that build"
        )
    return token
