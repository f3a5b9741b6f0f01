"""Interface of an output, as a build sees it; mypy checks every output against it.

`directory.LocalOutput` is absent or complete, `remote.StoreOutput` is in a store, which has no
rename, and `execute.append.GrowingOutput` gets more documents.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from packprep.config.build_config import BuildConfig
from packprep.schemas import Manifest
from packprep.schemas.storage.places import Files
from packprep.sources.source import Source
from packprep.support.file_lock import Holder
from packprep.support.progress import Progress


class BuildOutput(Protocol):
    """An output that a build makes.

    The build calls `held`, then `wanted`, then `already_built`; then either `keep`, or `begin` and
    `publish`. Messages name the output by str(output).
    """

    @property
    def path(self) -> Path:
        """Path beside which the build has its staging directory and its lock.

        It is on this machine and need not exist.
        """

    @property
    def replaces(self) -> bool:
        """True if a finished build replaces an old output at `path`."""

    @property
    def one_split_does(self) -> bool:
        """True if a split may be empty when another one has documents."""

    def held(self, staging: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the locks that a build needs in addition to the lock of `path`, if any.

        shared: True for a task of an array, which does not hold the lock of `path` either.
        """

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """Sources that are to be built.

        ConfigError for a source that the output has with other content.
        """

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """Manifest of a finished output of the same inputs; None if there is work to do.

        ConfigError for an output of other inputs that may not be replaced, and for files that are
        not an output.
        """

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Finish the output that `already_built` returned, and delete leftovers.

        manifest: the one that `already_built` returned. Returns the manifest of the output.
        """

    def begin(self, staging: Path) -> None:
        """Prepare for shards. Called once, before the first shard is written."""

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Make the signed output appear at its place, and remove the staging directory.

        May be called again after an interruption at any point. Returns the manifest of the output.
        """


class WholeOutput(BuildOutput, Protocol):
    """An output that a build of all sources makes, and the state that `packprep stats` shows."""

    def finished(self) -> Manifest | None:
        """Manifest of the output; None if it is absent or incomplete."""

    def holder(self) -> Holder | None:
        """Process that builds the output, or built it and died; None if unknown."""

    def shards(self, staging: Path) -> Files:
        """Folder in which a build writes its shards before they get their final names."""
