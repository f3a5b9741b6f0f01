"""An output in a store.

Built in a directory of this machine, but for its shards, and published by its manifest.

Beside OUT stands OUT.incomplete, as beside a directory: the lock, a folder of shards for each
staging directory that works for it, and what is being published (publish.py). Token files and
receipts lie in WORK_DIR/NAME.incomplete.
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.output.publish import begin, finish_publication, pending, prepared, published, tidy
from packprep.output.remote_lock import StoreLock, store_holder, store_locked
from packprep.output.shard_folder import StoreShards
from packprep.output.staging import BUILD, NAMES, STORE, SUFFIX, difference
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.stores import Store
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import Source
from packprep.support.errors import ConfigError, asked
from packprep.support.file_lock import Holder, holder
from packprep.support.progress import Progress


class StoreOutput:
    """A folder of a store; see `BuildOutput`.

    path: its name in the working directory, which holds only the staging directory and the lock
    beside it.
    """

    replaces = one_split_does = False

    def __init__(self, config: BuildConfig) -> None:
        self.url = config.output.rstrip("/")
        _, _, rest = self.url.partition("://")
        bucket, _, name = rest.rpartition("/")
        if "@" in bucket.partition("/")[0]:
            raise ConfigError(
                f"{self.url} holds credentials; put them into the environment or the store's own "
                "configuration"
            )
        if not bucket or not name:
            raise ConfigError(
                f"{self.url} is a whole bucket; give a folder in it, such as {self.url}/packed"
            )
        self.path = Path(config.work_dir or ".", name)
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
        """See `BuildOutput.held`: keeps builds of other machines and directories out."""
        with store_locked(
            self.work, f"{self} is being built", _token(staging, self.url), shared=shared
        ) as self._lock:
            yield

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """See `LocalOutput.already_built`.

        An output of the same inputs that is half published is finished first.
        """
        manifest = published(self.store)
        if manifest is None and (record := pending(self.work)) is not None:
            what = f"{self} is being published by a build with other settings"
            self._check_same(
                record.parsed,
                inputs,
                what,
                f"finish that one, or delete {self} and {self.work.url}",
            )
            progress.say(f"{self} is signed off: publishing goes on")
            manifest = finish_publication(self.store, self.work, record, progress)
        if manifest is not None:
            self._check_same(
                manifest, inputs, f"{self} was built with other settings", "or delete it first"
            )
            return manifest
        if found := next(iter(self.store.list()), None):
            raise ConfigError(
                f"{self} holds {found} and is not an output of packprep; choose another -o"
            )
        return None

    def _check_same(
        self, manifest: Manifest, inputs: dict[str, Any], what: str, advice: str
    ) -> None:
        if manifest.identity != digest_of(inputs):
            changed = difference({"inputs": manifest.data["inputs"]}, {"inputs": inputs})
            raise ConfigError(f"{what} ({changed}); choose another -o, {advice}")

    def finished(self) -> Manifest | None:
        with asked():
            return published(self.store)

    def holder(self) -> Holder | None:
        """See `WholeOutput.holder`; a process elsewhere is known for as long as it is alive."""
        with asked():
            return holder(self.path) or store_holder(self.work)

    def begin(self, staging: Path) -> None:
        """Drop what a killed process had half sent of the shards of this staging directory."""
        self.work.forget_uploads(_token(staging, self.url))

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.publish`."""
        if self._lock is not None:
            self._lock.check()
        moves = json.loads((staging / NAMES).read_bytes())
        record = begin(self.store, self.work, prepared(staging, _token(staging, self.url), moves))
        manifest = finish_publication(self.store, self.work, record, progress)
        tidy(self.work)
        shutil.rmtree(staging)
        return manifest

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.keep`."""
        tidy(self.work)
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            build = json.loads((staging / BUILD).read_bytes())
            if digest_of(build["inputs"]) == manifest.identity:
                shutil.rmtree(staging)
        progress.say(f"{self} is this build already: nothing to do")
        return manifest


def store_shards(url: str, staging: Path) -> StoreShards:
    """Folder of the shards of a staging directory."""
    return StoreShards(Store(f"{url.rstrip('/')}{SUFFIX}/{_token(staging, url.rstrip('/'))}"))


def _token(staging: Path, url: str) -> str:
    """Token of this staging directory's folder in OUT.incomplete; no other has the same."""
    path = staging / STORE
    try:
        known = json.loads(path.read_bytes())
        output, token = str(known["output"]), str(known["token"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        output, token = url, secrets.token_hex(8)
        write_file(path, canonical_json({"output": output, "token": token}))
    if output != url:
        raise ConfigError(
            f"{staging} is an unfinished build of {output}; choose another --work-dir, or finish "
            "that one"
        )
    return token
