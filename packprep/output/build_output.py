"""The output of a build, wherever it is. `execute.append.GrowingOutput` gets more documents."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from packprep.config.recorded import as_typed
from packprep.config.stages import Command
from packprep.output.build_facts import BuildInputs, Change
from packprep.output.directory import target_at
from packprep.output.staging import BUILD, OUTPUT, SUFFIX
from packprep.output.target import Target
from packprep.schemas.canonical import digest_of, read_object
from packprep.schemas.manifest import Manifest
from packprep.sources.source import Source
from packprep.support.errors import ConfigError
from packprep.support.progress import Progress


def output_target(
    output: str | Path, work_dir: str | None = None, *, unproven_store: bool = False
) -> Target[Manifest]:
    """The place of an output. work_dir: see `StoreTarget`; None for the current directory."""
    if str(output).startswith("hf://"):
        raise ConfigError(
            f"{output} is on the hub, which cannot create a file only where there is none; build "
            "into a directory, then run packprep push DIR USER/NAME"
        )
    return target_at(OUTPUT, str(output), work_dir, unproven_store=unproven_store)


def target_of(output: str, command: Command) -> Target[Manifest]:
    """The place of a build's output."""
    return output_target(output, command.work_dir, unproven_store=command.unproven_store)


class BuildOutput:
    """An output that a build makes.

    The build calls `held`, then `left_out` and `wanted`, then `already_built`; then either `keep`
    or `publish`.

    given: names of the options that the user gave; the others have their default.
    one_split_does: True if a split may be empty when another one has documents.
    """

    one_split_does = False

    def __init__(self, target: Target[Manifest], given: Collection[str] = ()) -> None:
        self.target, self.given = target, given

    def __str__(self) -> str:
        return str(self.target)

    def held(self, staging: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        """See `Target.held`."""
        return self.target.held(staging, shared=shared)

    def left_out(self) -> Mapping[str, Collection[int]]:
        """Rows that the output lacks as `skip_rows` of its build asked, by name of the source."""
        return {}

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """Sources that are to be built.

        ConfigError for a source that the output has with other content.
        """
        return list(sources)

    def already_built(
        self, inputs: BuildInputs, overwrite: bool, progress: Progress
    ) -> Manifest | None:
        """Manifest of a finished output of the same inputs; None if there is work to do.

        ConfigError for an output of other inputs that may not be replaced, and for files that are
        not an output.
        """

        def check(manifest: Manifest, state: str, advice: str, kept: Collection[str] = ()) -> None:
            if changed := Change(manifest.data["inputs"], inputs).words(kept):
                raise ConfigError(f"{self} {state} ({changed}); choose another -o, {advice}")

        def check_begun(manifest: Manifest) -> None:
            advice = f"finish that build, or delete {self} and {self}{SUFFIX}"
            check(manifest, "is being published by a build with other settings", advice)

        manifest = self.target.existing(check_begun, progress)
        if manifest is None:
            return None
        if self.target.replaces:
            if overwrite and Change(manifest.data["inputs"], inputs).words():
                return None
            advice = "or --overwrite"
        elif overwrite:
            advice = (
                "and delete the old output when nobody reads it: an output in a store cannot be "
                "replaced at once, so readers would see a mix of old and new files"
            )
        else:
            advice = "or delete it first"
        kept = Change(manifest.data["inputs"], inputs).earlier_defaults(self.given)
        check(manifest, "was built with other settings", advice, kept)
        if kept:
            progress.say(f"{self} has {as_typed(kept)}, the default when it was built")
        return manifest

    def keep(self, staging: Path, manifest: Manifest, progress: Progress) -> Manifest:
        """Finish the output that `already_built` returned, and delete leftovers.

        manifest: the one that `already_built` returned. Returns the manifest of the output.
        """
        self.target.tidy()
        if digest_of(read_object(staging / BUILD).get("inputs")) == manifest.identity:
            shutil.rmtree(staging)
        progress.say(f"{self} is this build already: nothing to do")
        return manifest

    def publish(self, staging: Path, progress: Progress) -> Manifest:
        """See `Target.publish`."""
        return self.target.publish(staging, progress)


UNNAMED: Final = BuildOutput(output_target(""))
"""Output of a command that names none, which can only be previewed."""
