"""Outputs that grow: --append adds the source files that an output does not have yet.

The new files become windows of their own after the existing ones. They are built as an output of
their own in OUT.appended, by any executor, and resumed like any build. Then OUT and OUT.appended
are merged in OUT.incomplete, as `packprep merge OUT OUT.appended` would, and the result replaces
OUT: readers find the old dataset or the new one. The old shards are compared with their digests and
linked; they are not written again.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packprep.config.stages import Command, Running
from packprep.derive.merge import merge_locked
from packprep.derive.parts import generations, merge_obstacle
from packprep.output.build_facts import BuildInputs, Change
from packprep.output.build_output import UNNAMED, BuildOutput, target_of
from packprep.output.directory import LocalTarget
from packprep.output.sign_off import SETTINGS
from packprep.output.staging import (
    BUILD,
    OUTPUT,
    Staging,
    appended_path,
    at_work,
    staging_path,
)
from packprep.schemas.columns import token_type
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.sources.skip_rows import check_left_out, left_out_of
from packprep.sources.source import Source, documents_key, split_new
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress
from packprep.tokens.store_place import check_store_place

_NAMED = 3  # files that a sentence names


def open_output(running: Running, command: Command, given: Collection[str]) -> BuildOutput:
    """Output of a build; ConfigError if there cannot be one. given: see `BuildOutput`."""
    if not running.output:
        if command.append:
            raise ConfigError("--append needs the output that grows; name it with -o")
        check_store_place(running.keep_tokens, None)
        return UNNAMED
    target = target_of(running.output, command)
    check_store_place(running.keep_tokens, target.path)
    if isinstance(target, LocalTarget):
        if command.append and (target.replaces or target.half_swapped):
            return GrowingOutput(target)
        target.check()
    return BuildOutput(target, given)


class GrowingOutput(BuildOutput):
    """An existing output to which documents are added; see `BuildOutput`.

    target: that of the output in which the new part is built.
    """

    one_split_does = True  # all new documents may fall into one split; the old output has both

    def __init__(self, old: LocalTarget[Manifest]) -> None:
        self._old, self.old = old, old.path
        self._new = LocalTarget(OUTPUT, appended_path(old.path))
        super().__init__(self._new)

    def __str__(self) -> str:
        return str(self.old)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the existing output."""
        return read_manifest(self.old)

    @contextmanager
    def held(self, staging: Path, *, shared: bool = False) -> Iterator[None]:
        """See `BuildOutput.held`: holds the lock of the old output.

        Files that an earlier append left beside it are deleted first.
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
        self._old.tidy()
        self._new.remove_replaced()
        self._check_unfinished(Staging(staging))
        merged = {generation["identity"] for generation in generations(self.manifest)}
        if self._new.replaces and read_manifest(self._new.path).identity in merged:
            self._remove()

    def _check_unfinished(self, staging: Staging) -> None:
        """Refuse to delete an unfinished build of the whole output for the sake of an append."""
        if not (staging.path / BUILD).exists() or not staging.committed():
            return
        if "generations" in json.loads((staging.path / BUILD).read_bytes()).get("inputs", ()):
            if not self._new.replaces:  # the part that was to be merged is gone
                shutil.rmtree(staging.path)
            return
        raise ConfigError(
            f"{staging.path} is left from an unfinished build of all of {self}; finish that build "
            f"first, or delete {staging.path}"
        )

    def _remove(self) -> None:
        """Delete the new part. It is renamed first, so that a half-deleted one is never merged."""
        self._new.set_aside(self._new.path)
        self._new.remove_replaced()

    def left_out(self) -> Mapping[str, Collection[int]]:
        """See `BuildOutput.left_out`."""
        return dict(left_out_of(self.manifest))

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """See `BuildOutput.wanted`: sources that the output does not have."""
        manifest = self.manifest
        inputs = manifest.data["inputs"]
        if "mix" in inputs or "repeated" in manifest.data:
            raise ConfigError(
                f"{self} is a mix: its shares are drawn from all of its sources together, so it "
                "cannot grow; build it again with --overwrite"
            )
        named = zip(inputs["sources"], manifest.run["source_paths"], strict=True)
        built = [facts | {"name": name} for facts, name in named]
        known, new = split_new(sources, built, self, "build all of it again with --overwrite")
        rows = {documents_key(facts): facts.get("skip_rows", ()) for facts in built}
        for source in known:
            check_left_out(source.name, source.skip_rows, rows[documents_key(source.as_dict())])
        if known:
            progress.say(f"{_listed(known)} in {self} already")
        if new:
            progress.say(f"{_listed(new)} appended to {self}")
        return new

    def already_built(
        self, inputs: BuildInputs, overwrite: bool, progress: Progress
    ) -> Manifest | None:
        """Manifest of an output that has all sources, or of a built part that is not merged yet.

        ConfigError if settings differ from those of the output, or of an unfinished append.
        """
        old = self.manifest
        change = Change(_comparable(old, inputs), {**inputs, "sources": []})
        if changed := change.words():
            settings = self.old / SETTINGS
            hint = f" (-c {settings} has them)" if settings.exists() else ""
            raise ConfigError(
                f"{self} has other settings ({changed}); {change.advice}{hint}, or choose another "
                "-o"
            )
        if not inputs["sources"]:
            return old
        if not self._new.replaces:
            return None
        part = read_manifest(self._new.path)
        change = Change(part.data["inputs"], inputs)
        if not (changed := change.words()):
            return part
        raise ConfigError(
            f"{self._new.path} is an unfinished append with other settings ({changed}); "
            f"{change.advice} to resume it, or delete {self._new.path} to start over"
        )

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Merge the new part if it is built and not merged yet."""
        if self._new.replaces:
            return self._merge(progress)
        progress.say(f"nothing to append: {self} stays as it is")
        return manifest

    def publish(self, staging: Path, progress: Progress) -> Manifest:
        """See `BuildOutput.publish`: merges the signed part with the output."""
        super().publish(staging, progress)
        return self._merge(progress)

    def _merge(self, progress: Progress) -> Manifest:
        if changed := merge_obstacle(self.manifest, read_manifest(self._new.path)):
            self._remove()
            raise ConfigError(
                f"the new files do not fit {self}: they differ in {changed}; give columns the same "
                "types (--carry NAME:TYPE), or choose another -o"
            )
        manifest = merge_locked([self.old, self._new.path], self.old, progress)
        self._remove()
        return manifest


def _comparable(old: Manifest, new: BuildInputs) -> BuildInputs:
    """The inputs of an output without sources.

    A merged output knows only the options that all of its builds share; those that it does not know
    are as in the new inputs. Its columns say the type of its tokens.
    """
    before: BuildInputs = old.data["inputs"]
    inputs: BuildInputs = {**before, "sources": []}
    known = {"token_type": token_type(old.columns)} | inputs["options"]
    is_merged = inputs.pop("generations", None)
    return {**inputs, "options": new["options"] | known if is_merged else known}


def _listed(sources: Sequence[Source]) -> str:
    """Subject and verb of a sentence, such as "2 files (a.jsonl, b.jsonl) are"."""
    names = [source.name for source in sources[:_NAMED]]
    if len(sources) > _NAMED:
        names.append(f"and {len(sources) - _NAMED:,} more")
    files = "1 file" if len(sources) == 1 else f"{len(sources):,} files"
    return f"{files} ({', '.join(names)}) {'is' if len(sources) == 1 else 'are'}"
