"""The output: absent or complete.

A build works in OUT.incomplete beside it, and one rename makes it OUT.

Two others are classes of their own with the same methods: one that only grows (appending.py), and
one in a store, where nothing is renamed (storeoutput.py).
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packprep.config.build_config import BuildConfig
from packprep.output.shard_folder import LocalShards, ShardFolder
from packprep.output.staging import PARTS, difference
from packprep.schemas import MANIFEST, Manifest, digest_of, is_url, read_manifest, sync_directory
from packprep.sources.source import Source
from packprep.support.errors import ConfigError
from packprep.support.file_lock import Holder, holder
from packprep.support.linux import exchange
from packprep.support.progress import Progress

if TYPE_CHECKING:
    from packprep.output.remote import StoreOutput


class LocalOutput:
    """A directory. path: the directory; its staging directory and its lock stand beside it."""

    def __init__(self, config: BuildConfig) -> None:
        self.path = Path(config.output)
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is not a directory; choose another -o")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def replaces(self) -> bool:
        """True if the build is to replace an old output that exists."""
        return (self.path / MANIFEST).exists()

    one_split_does = False  # whether a split may be without documents if another has some

    @contextmanager
    def held(self, staging: Path, *, shared: bool = False) -> Iterator[None]:
        """Locks that a build holds beside the lock of `path`: none.

        shared: for a task, which does not even hold that.
        """
        yield

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """Those of the sources that are to be built: all."""
        return list(sources)

    def check(self) -> bool:
        """True if an output is there; ConfigError where something else is."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return False
        if not (self.path / MANIFEST).exists():
            raise ConfigError(f"{self} exists and is not an output of packprep; choose another -o")
        return True

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """The manifest of an output of the same inputs.

        None where there is none to keep; ConfigError for any other.
        """
        if not self.check():
            return None
        manifest = read_manifest(self.path)
        if manifest.identity == digest_of(inputs):
            return manifest
        if config.overwrite:
            return None
        changed = difference({"inputs": manifest.data["inputs"]}, {"inputs": inputs})
        raise ConfigError(
            f"{self} was built with other settings ({changed}); choose another -o, or --overwrite"
        )

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """For what is already built: take away what its build may have left.

        Returns the manifest of the output.
        """
        remove_replaced(self.path)
        progress.say(f"{self} is this build already: nothing to do")
        return manifest

    def begin(self, staging: Path) -> None:
        """Called once before shards are written."""

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Let what is signed in the staging directory take its place.

        Returns the manifest of the output.
        """
        publish(staging, self.path)
        return manifest

    def finished(self) -> Manifest | None:
        """The manifest of what is there, if it is a whole output."""
        return read_manifest(self.path) if (self.path / MANIFEST).exists() else None

    def holder(self) -> Holder | None:
        """The process that builds it, if one does; or one that did, and died."""
        return holder(self.path)


def place_of(config: BuildConfig) -> "LocalOutput | StoreOutput":
    """Output directory of a build of all sources.

    A build that adds to an output has `appending.output_of`.
    """
    if not is_url(config.output):
        return LocalOutput(config)
    from packprep.output.remote import StoreOutput

    return StoreOutput(config)


def shards_of(config: BuildConfig, staging: Path) -> ShardFolder:
    """Folder of a build's shards until they have their final names."""
    if not is_url(config.output):
        return LocalShards(staging / "shards")
    from packprep.output.remote import store_shards

    return store_shards(config.output, staging)


def publish(staging: Path, output: Path) -> None:
    """Take away what is not part of the output; one rename makes it appear.

    Until then an old one stays in its place.

    May be called again after it was interrupted anywhere.
    """
    for name in PARTS:
        if (path := staging / name).is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    sync_directory(staging)
    replaced = replaced_of(output)
    if output.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    if output.exists() and exchange(staging, output):
        staging.rename(replaced)  # at once not taken for work that can go on
    else:
        if output.exists():
            output.rename(replaced)
        staging.rename(output)
    sync_directory(output.parent)
    remove_replaced(output)


def remove_replaced(output: Path) -> None:
    """Delete an old output; the new one stands in its place."""
    shutil.rmtree(replaced_of(output), ignore_errors=True)


def replaced_of(output: Path) -> Path:
    """Path of an old output before it is deleted."""
    return output.with_name(output.name + ".replaced")
