"""An output directory, which is absent or complete.

A build works in OUT.incomplete beside it; one rename turns that into OUT.
"""

import shutil
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.output.build_facts import difference
from packprep.output.build_output import WholeOutput
from packprep.output.staging import BUILD, PARTS, staging_path
from packprep.schemas.canonical import digest_of
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.schemas.storage.places import Directory, Files
from packprep.schemas.storage.stores import is_url
from packprep.schemas.storage.writing import sync_directory
from packprep.sources.source import Source
from packprep.support.errors import ConfigError
from packprep.support.file_lock import Holder, holder
from packprep.support.linux import exchange
from packprep.support.progress import Progress


class LocalOutput:
    """An output in a directory; see `BuildOutput`. path: that directory."""

    one_split_does = False

    def __init__(self, config: BuildConfig) -> None:
        self.path = Path(config.output)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def replaces(self) -> bool:
        return (self.path / MANIFEST).exists()

    @contextmanager
    def held(self, staging: Path, *, shared: bool = False) -> Iterator[None]:
        """See `BuildOutput.held`: needs no other lock."""
        yield

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """See `BuildOutput.wanted`: all of them."""
        return list(sources)

    def check(self) -> bool:
        """True if the directory has an output; ConfigError if it has other files, or is a link."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is not a directory; choose another -o")
        if not self.path.exists() or not any(self.path.iterdir()):
            return False
        if not (self.path / MANIFEST).exists():
            raise ConfigError(f"{self} exists and is not an output of packprep; choose another -o")
        return True

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """See `BuildOutput.already_built`."""
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
        """See `BuildOutput.keep`: deletes the output that this one replaced."""
        finish_swap(self.path)
        progress.say(f"{self} is this build already: nothing to do")
        return manifest

    def begin(self, staging: Path) -> None:
        """See `BuildOutput.begin`: nothing to prepare."""

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.publish`."""
        publish(staging, self.path)
        return manifest

    def finished(self) -> Manifest | None:
        return read_manifest(self.path) if (self.path / MANIFEST).exists() else None

    def holder(self) -> Holder | None:
        return holder(self.path)

    def shards(self, staging: Path) -> Files:
        return Directory(staging / "shards")


def whole_output(config: BuildConfig) -> WholeOutput:
    """Output of a build of all sources; for any build use `execute.append.open_output`."""
    if not is_url(config.output):
        return LocalOutput(config)
    from packprep.output.remote import StoreOutput

    return StoreOutput(config)


def publish(staging: Path, output: Path) -> None:
    """Delete everything that is not part of the output, then make it appear by one rename.

    Until then an old output stays in its place. May be called again after an interruption at any
    point.
    """
    listed = {staging / entry.path for entry in read_manifest(staging).all_files}
    for name in PARTS:
        if (path := staging / name).is_dir():
            _clear(path, listed)
        else:
            path.unlink(missing_ok=True)
    for folder in {staging, *(above for path in listed for above in path.parents)}:
        if folder.is_relative_to(staging):
            sync_directory(folder)
    replaced = replaced_path(output)
    if output.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    if output.exists() and exchange(staging, output):
        staging.rename(replaced)  # so that nobody resumes it as a build
    else:
        if output.exists():
            output.rename(replaced)
        staging.rename(output)
    sync_directory(output.parent)
    remove_replaced(output)


def _clear(directory: Path, listed: Set[Path]) -> None:
    """Delete a directory, but not the files that are part of the output, such as its tokens."""
    if any(path.is_relative_to(directory) for path in listed):
        for path in [*directory.rglob("*")]:
            if path.is_file() and path not in listed:
                path.unlink()
    else:
        shutil.rmtree(directory)


def half_swapped(output: Path) -> bool:
    """True if `publish` was killed between its renames, so that neither output has its name."""
    return _is_finished(staging_path(output)) and (
        not output.exists() and replaced_path(output).exists()
    )


def finish_swap(output: Path) -> None:
    """Finish a `publish` that was killed, and delete what it has left."""
    staging = staging_path(output)
    if half_swapped(output):
        publish(staging, output)
    elif _is_finished(staging):
        set_aside(staging, output)  # the replaced output
    remove_replaced(output)


def set_aside(directory: Path, output: Path) -> None:
    """Rename a directory as a replaced output, so that a half-deleted one is never used."""
    remove_replaced(output)
    directory.rename(replaced_path(output))
    sync_directory(output.parent)


def _is_finished(staging: Path) -> bool:
    return (staging / MANIFEST).exists() and not (staging / BUILD).exists()


def remove_replaced(output: Path) -> None:
    """Delete an old output that a new one has replaced."""
    shutil.rmtree(replaced_path(output), ignore_errors=True)


def replaced_path(output: Path) -> Path:
    """Path of a replaced output until it is deleted."""
    return output.with_name(output.name + ".replaced")
