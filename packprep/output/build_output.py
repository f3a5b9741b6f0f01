"""The interface of an output, as a build sees it; mypy holds every output to it.

`directory.LocalOutput` is absent or complete, `remote.StoreOutput` is in a store, where nothing is
renamed, and `execute.append.GrowingOutput` gets more documents.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from packprep.config.build_config import BuildConfig
from packprep.schemas import Manifest
from packprep.sources.source import Source
from packprep.support.file_lock import Holder
from packprep.support.progress import Progress


class BuildOutput(Protocol):
    """An output that a build makes.

    The build calls `held`, then `wanted`, then `already_built`; then `keep`, or `begin` and
    `publish`. Its name in sentences is str(output).
    """

    @property
    def path(self) -> Path:
        """Directory beside which the staging directory and the lock of the build are.

        It is on this machine and need not exist.
        """
        ...

    @property
    def replaces(self) -> bool:
        """True if a finished build replaces an old output at `path`."""
        ...

    @property
    def one_split_does(self) -> bool:
        """True if a split may be empty where another one has documents."""
        ...

    def held(self, staging: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        """Locks that a build holds beside the lock of `path`: none.

        shared: for a task, which does not even hold that.
        """
        ...

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """Those of the sources that are to be built.

        ConfigError for one that the output holds with other content.
        """
        ...

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """The manifest of a finished output of the same inputs; None if there is work to do.

        ConfigError for an output of other inputs that may not be replaced, and for anything that is
        no output.
        """
        ...

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Finish and tidy up the output that `already_built` has found.

        manifest: its manifest. Returns the manifest of the output.
        """
        ...

    def begin(self, staging: Path) -> None:
        """Make ready for shards. Called once, before the first is written."""
        ...

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Make what is signed in the staging directory appear; the staging directory then goes.

        May be called again after it was interrupted anywhere. Returns the manifest of the output.
        """
        ...


class WholeOutput(BuildOutput, Protocol):
    """An output that a build of all sources makes, with what `packprep status` asks of it."""

    def finished(self) -> Manifest | None:
        """The manifest of the output; None if it is not there or not complete."""
        ...

    def holder(self) -> Holder | None:
        """The process that builds the output, or that did and died; None if nothing is known."""
        ...
