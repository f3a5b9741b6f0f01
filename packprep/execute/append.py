"""Source files that an output does not hold yet, added by --append.

They become windows of their own behind those that are there.

They are built as an output of their own in OUT.appended, by any executor and resumed like any
build, and put together with OUT as `packprep merge OUT OUT.appended` would, in OUT.incomplete,
which then takes the place of OUT: readers find the old dataset or the new one. What was built
before is neither read again nor written again, its shards are linked.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.execute.array_tasks import at_work
from packprep.execute.merge import generations, merge_obstacle, put_together
from packprep.output.build_facts import difference
from packprep.output.build_output import BuildOutput
from packprep.output.directory import (
    LocalOutput,
    publish,
    remove_replaced,
    replaced_path,
    whole_output,
)
from packprep.output.sign_off import SETTINGS
from packprep.output.staging import BUILD, Staging, appended_path, staging_path
from packprep.schemas.canonical import digest_of
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.schemas.storage.stores import is_url
from packprep.sources.source import STDIN, Source
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress

_NAMED = 3  # files in a sentence


def open_output(config: BuildConfig) -> BuildOutput:
    """The output of a build. Raises ConfigError where there cannot be one."""
    if not config.output:
        raise ConfigError("no output is given; add -o with the directory to write")
    if config.append and not is_url(config.output) and _is_there(Path(config.output)):
        return GrowingOutput(config)
    place = whole_output(config)
    if isinstance(place, LocalOutput):
        place.check()
    return place


def _is_there(output: Path) -> bool:
    """True if there is an output to append to.

    A killed swap may have left it one rename short of its place.
    """
    return (output / MANIFEST).exists() or _half_swapped(output)


def _half_swapped(output: Path) -> bool:
    staging = staging_path(output)
    whole = (staging / MANIFEST).exists() and not (staging / BUILD).exists()
    return whole and not output.exists() and replaced_path(output).exists()


class GrowingOutput:
    """An output that is there and gets more; see `output.LocalOutput`.

    path: where what is new is built.
    """

    one_split_does = True  # a few new documents may all be of one; the other has documents already

    def __init__(self, config: BuildConfig) -> None:
        self.old = Path(config.output)
        self.path = appended_path(self.old)
        self._restart = config.restart

    def __str__(self) -> str:
        return str(self.old)

    @property
    def replaces(self) -> bool:
        return (self.path / MANIFEST).exists()

    @property
    def manifest(self) -> Manifest:
        """Of what is there."""
        return read_manifest(self.old)

    @contextmanager
    def held(self, staging: Path, *, shared: bool = False) -> Iterator[None]:
        """See `BuildOutput.held`: hold the lock of the old output.

        Files that an earlier append left beside it are removed first.
        """
        if shared:
            yield
            return
        with locked(self.old, f"{self} is being built"):
            if by := ", ".join(at_work(self.old).values()):
                raise ConfigError(
                    f"{self} is being built by tasks of an array ({by}); wait until they are done"
                )
            self._tidy()
            yield

    def _tidy(self) -> None:
        staging = staging_path(self.old)
        if _half_swapped(self.old):
            publish(staging, self.old)
        elif (staging / MANIFEST).exists() and not (staging / BUILD).exists():
            shutil.rmtree(staging)  # the output before, which a killed swap has left
        remove_replaced(self.old)
        remove_replaced(self.path)
        self._check_unfinished(Staging(staging))
        merged = {generation["identity"] for generation in generations(self.manifest)}
        if self.replaces and read_manifest(self.path).identity in merged:
            self._remove()

    def _check_unfinished(self, staging: Staging) -> None:
        """A build of the whole output that was stopped must not be lost for an append."""
        if not (staging.path / BUILD).exists() or not staging.committed():
            return
        if "generations" in json.loads((staging.path / BUILD).read_bytes()).get("inputs", ()):
            return
        if not self._restart:
            raise ConfigError(
                f"{staging.path} is left from another build of {self} that did not finish; finish "
                "that first, "
                "or give --restart to drop it"
            )
        shutil.rmtree(staging.path)

    def _remove(self) -> None:
        """Renamed first: half of it must never look like something that is to be merged."""
        self.path.rename(replaced_path(self.path))
        remove_replaced(self.path)

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """See `BuildOutput.wanted`: sources that the output does not hold."""
        manifest = self.manifest
        inputs = manifest.data["inputs"]
        if "mix" in inputs or "repeated" in manifest.data:
            raise ConfigError(
                f"{self} is a mix, whose shares are drawn from all of its sources together; "
                "build the mix again with --overwrite"
            )
        held = [_key(source) for source in inputs["sources"]]
        known = [source for source in sources if _key(source.as_dict()) in held]
        new = [source for source in sources if _key(source.as_dict()) not in held]
        names = dict(zip(map(_place, manifest.run["source_paths"]), inputs["sources"], strict=True))
        for source in new:
            there = names.get(_place(source.name))
            if there is not None and there["sha256"] != source.sha256 and source.name != STDIN:
                raise ConfigError(
                    f"{source.name} is in {self} already, with other content (sha256 "
                    f"{there['sha256'][:8]} there, "
                    f"{source.sha256[:8]} here); put its new rows into a file of another name, or "
                    "build all of it "
                    "again with --overwrite"
                )
        if known:
            progress.say(f"{_listed(known)} in {self} already")
        if new:
            progress.say(f"{_listed(new)} appended to {self}")
        return new

    def already_built(
        self, inputs: dict[str, Any], config: BuildConfig, progress: Progress
    ) -> Manifest | None:
        """The manifest of an output that lacks nothing, or of a part not yet joined with it.

        ConfigError where settings differ from those of the output, or of an append that did not
        finish.
        """
        old = self.manifest
        if changed := _other_settings(old.data["inputs"], inputs):
            kept = self.old / SETTINGS
            where = f" (-c {kept} has them)" if kept.exists() else ""
            raise ConfigError(
                f"{self} was built with other settings ({changed}); give the same ones{where}, or "
                "choose another -o"
            )
        if not inputs["sources"]:
            return old
        if not self.replaces:
            return None
        found = read_manifest(self.path)
        if found.identity == digest_of(inputs):
            return found
        if config.restart:
            self._remove()
            return None
        changed = difference({"inputs": found.data["inputs"]}, {"inputs": inputs})
        raise ConfigError(
            f"{self.path} is from an append that did not finish, with other settings ({changed}); "
            "give the same ones to go on, or --restart to start over"
        )

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Put what is already built together with the output, where it is not a part of that."""
        if self.replaces:
            return self._put_together(progress)
        progress.say(f"nothing to append: {self} stays as it is")
        return manifest

    def begin(self, staging: Path) -> None:
        """See `BuildOutput.begin`: nothing."""

    def publish(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """See `BuildOutput.publish`: what is signed becomes a part of the output."""
        publish(staging, self.path)
        return self._put_together(progress)

    def _put_together(self, progress: Progress) -> Manifest:
        if changed := merge_obstacle(self.manifest, read_manifest(self.path)):
            self._remove()
            raise ConfigError(
                f"the new files make an output that does not fit {self}: it differs in {changed}; "
                "give columns the "
                "same types (--carry NAME:TYPE), or choose another -o"
            )
        manifest = put_together([self.old, self.path], self.old, progress=progress)
        self._remove()
        return manifest


def _place(name: str) -> Path:
    return Path(name).absolute()


def _key(source: Mapping[str, Any]) -> tuple[str, str, str]:
    """Key that two sources share if they are the same documents."""
    return source["sha256"], source["kind"], json.dumps(source.get("reading", {}), sort_keys=True)


def _other_settings(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Differences between the options and tokenizers of two builds, in words.

    Of builds put together those options are known that all of them share.
    """
    options = here["options"]
    if "generations" in there:
        options = {key: value for key, value in options.items() if key in there["options"]}
    ours, theirs = (
        {"inputs": {**inputs, "sources": []}} for inputs in (there, {**here, "options": options})
    )
    ours["inputs"].pop("generations", None)
    return difference(ours, theirs)


def _listed(sources: Sequence[Source]) -> str:
    """Subject and verb, such as "2 files (a.jsonl, b.jsonl) are", at most some of them named."""
    names = [source.name for source in sources[:_NAMED]]
    if len(sources) > _NAMED:
        names.append(f"and {len(sources) - _NAMED:,} more")
    files = "1 file" if len(sources) == 1 else f"{len(sources):,} files"
    return f"{files} ({', '.join(names)}) {'is' if len(sources) == 1 else 'are'}"
