"""A build that still runs, read beside it: its finished shards, in the order of the output.

A build works in OUT.incomplete. `layout.json` there describes the packs, and receipts say which
shards are complete; all of them are written whole or not at all. Names of shards and windows have
numbers, so the next shard of the output is known before the build is done. At the end
OUT.incomplete becomes OUT by a rename; files that are mapped stay readable.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..canonical import digest_of, parse_json
from ..errors import FormatError
from ..files import MANIFEST
from ..manifest import FORMAT_VERSION, FileEntry, Manifest, read_manifest

SUFFIX = ".incomplete"
BUILD = "build.json"
LAYOUT = "layout.json"
Mapping = Callable[[], pa.NativeFile]
"""Returns a mapped file at its start."""

_POLL = 0.2  # seconds
# A build touches its lock every ten seconds.
_STALE = 60.0
_PATIENCE = 60.0  # seconds without a living build


def shard_at(split: str, window: int, number: int) -> str:
    """Name of a shard until the output is signed off."""
    return f"{split}-{window:05d}-{number:05d}.arrow"


def window_at(split: str, window: int) -> str:
    """Name of the receipt of a window."""
    return f"{split}-{window:05d}.json"


class RunningBuild:
    """Shards of one split of a running build, each returned once.

    output: the directory that the build will make. manifest: of what is known, without any shard.

    Waits for the first window, or for the end of the build; `manifest` is None if it has ended.
    FormatError if it has failed or is not running.
    """

    def __init__(self, output: Path) -> None:
        self.output, self.staging = output, output.with_name(output.name + SUFFIX)
        self._place = (0, 0)  # window and number of the next shard
        self._digests: list[str] = []  # of the shards before it
        self._lived = time.monotonic()
        self.manifest: Manifest | None = None
        while not self._ended(None):
            build, layout = _read(self.staging / BUILD), _read(self.staging / LAYOUT)
            if build and layout:
                self.manifest = _provisional(build["inputs"], layout)
                return
            self.wait()

    def shards(self, split: str) -> list[tuple[Mapping, FileEntry]]:
        """The next shards of a split that are complete. They stay mapped under any name."""
        new: list[tuple[Mapping, FileEntry]] = []
        while True:
            window, number = self._place
            name = shard_at(split, window, number)
            if receipt := self._receipt(f"{name}.json"):
                try:
                    file = pa.memory_map(str(self.staging / "shards" / name))
                except OSError:  # it has its final name already
                    return new
                keys = ("bytes", "sha256", "packs", "tokens", "split")
                entry = FileEntry(path=name, **{key: receipt[key] for key in keys})
                new.append((partial(_from_start, file), entry))
                self._digests.append(entry.sha256)
                self._place = (window, number + 1)
                continue
            done = self._receipt(window_at(split, window))
            if not done or number < len(done["shards"]):
                return new
            self._place = (window + 1, 0)

    def finished(self, split: str) -> tuple[Manifest, tuple[FileEntry, ...]] | None:
        """Once the build has ended, its manifest, and the shards of the split behind those known.

        FormatError if the output does not begin with those.
        """
        assert self.manifest is not None
        if not self._ended(self.manifest.identity):
            return None
        manifest, known = read_manifest(self.output), len(self._digests)
        entries = manifest.shards(split)
        if [entry.sha256 for entry in entries[:known]] != self._digests:
            raise FormatError(
                f"{self.output} begins with other shards than those that were followed; open it "
                "again"
            )
        return manifest, entries[known:]

    def wait(self) -> None:
        """Sleep a little. FormatError if the build failed, was replaced, or is not running."""
        build = _read(self.staging / BUILD)
        if "failed" in build:
            raise FormatError(
                f"the build of {self.output} failed: {build['failed']}; build it again, then "
                "resume from the loader's state"
            )
        followed = self.manifest.identity if self.manifest is not None and build else None
        if followed is not None and digest_of(build["inputs"]) != followed:
            raise FormatError(
                f"{self.staging} is now a build with other settings or sources than the one that "
                "was followed; open the shards again"
            )
        locks = [self.output.with_name(self.output.name + ".lock")]
        locks += self.staging.glob("claims/*.lock")  # of the tasks of an array
        if any(time.time() - _touched(lock) < _STALE for lock in locks):
            self._lived = time.monotonic()
        elif time.monotonic() - self._lived > _PATIENCE:
            raise FormatError(
                f"{self.output} is not finished, and no build of it is running; repeat the command "
                "of the build to resume it, then resume from the loader's state"
            )
        time.sleep(_POLL)

    def _ended(self, identity: str | None) -> bool:
        """True if the output exists and nothing replaces it; identity: of its inputs, if known."""
        if not (self.output / MANIFEST).exists() or (self.staging / BUILD).exists():
            return False
        if identity not in (None, read_manifest(self.output).identity):
            raise FormatError(
                f"{self.output} is another output than the build that was followed; open it again"
            )
        return True

    def _receipt(self, name: str) -> dict[str, Any]:
        return _read(self.staging / "receipts" / name)


def _from_start(file: pa.NativeFile) -> pa.NativeFile:
    file.seek(0)
    return file


def _provisional(inputs: dict[str, Any], layout: dict[str, Any]) -> Manifest:
    """Manifest of an output whose shards are not known yet."""
    data = {
        "format_version": FORMAT_VERSION,
        "inputs": inputs,
        "identity": digest_of(inputs),
        "splits": {split: {"packs": 0, "segments": 0, "tokens": 0} for split in layout["splits"]},
        "files": [],
    }
    return Manifest(data=layout | data, run={}, sha256="")


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; {} if it is missing, or deleted meanwhile."""
    try:
        loaded = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
