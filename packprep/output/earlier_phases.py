"""Phases of an output that a new build keeps: --from-phase makes only the later ones again.

The plans of the earlier phases are made again, which takes seconds, and give the account. Their
shards are linked, with the digests that the manifest has. The same options must plan the same
packs: a shard with other counts is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.config.spellings import RENAMED
from packprep.output.build_facts import difference
from packprep.output.shard_folder import link_file
from packprep.output.shard_writer import ShardFile, receipt_like
from packprep.schemas.canonical import digest_of
from packprep.schemas.manifest import FileEntry, read_manifest
from packprep.support.errors import ConfigError
from packprep.tokens.checked_output import CheckedOutput


@dataclass(frozen=True)
class EarlierPhases:
    """The phases that stay: the first `count` of the output `source`."""

    source: CheckedOutput
    count: int

    def shards(self, split: str) -> Iterator[FileEntry]:
        """Shards of these phases in one split, in order."""
        for entry in self.source.manifest.shards(split):
            if entry.phase is not None and entry.phase < self.count:
                yield entry

    def link(
        self, old: Iterator[FileEntry], name: str, folder: Path, split: str, counts: Sequence[int]
    ) -> ShardFile:
        """Link the next shard of `shards` to a working name.

        counts: its packs, segments and tokens in the new plan; ConfigError if the old shard has
        others.
        """
        packs, segments, tokens = counts
        entry = next(old, None)
        if entry is None or (entry.packs, entry.tokens) != (packs, tokens):
            found = (
                "no further shard"
                if entry is None
                else f"{entry.packs:,} packs of {entry.tokens:,} tokens in {entry.path}"
            )
            raise ConfigError(
                f"{self.source} has {found}, and this build plans {packs:,} packs of {tokens:,} "
                "tokens there: another version made it; build all phases again, without "
                "--from-phase"
            )
        source, target = self.source.file(entry), folder / name
        folder.mkdir(exist_ok=True)
        target.unlink(missing_ok=True)
        link_file(source, target)
        shard = receipt_like(entry, name, split, entry.bytes, entry.sha256)
        return replace(shard, segments=segments)


def earlier_phases(config: BuildConfig, inputs: Mapping[str, Any]) -> EarlierPhases | None:
    """The phases that a build keeps of the output it replaces; None if it makes all of them.

    inputs: those of the build. ConfigError if the earlier phases would not be the same.
    """
    if config.from_phase is None:
        return None
    path, count = Path(config.output), config.from_phase - 1
    manifest = read_manifest(path)
    if manifest.identity == digest_of(dict(inputs)):
        return None
    if len(manifest.phases) < count:
        raise ConfigError(
            f"{path} has {len(manifest.phases)} phases, and --from-phase {count + 1} keeps "
            f"{count}; build all phases again, without --from-phase"
        )
    was, now = manifest.data["inputs"], inputs
    asked = manifest.data["phases"]
    for number in range(count):
        phase = now["phases"][number]
        if "tokens" not in phase:
            raise ConfigError(
                f"phase {number + 1} has a share of the largest total, which later phases change; "
                f"give its number of tokens, {asked[number]['tokens']:,} in {path}"
            )
        old = {**was["phases"][number], "tokens": asked[number]["tokens"]}
        old.pop("share", None)
        changed = [
            f"{RENAMED.get(key, key)} was {old.get(key)!r}, now {phase.get(key)!r}"
            for key in sorted({*old, *phase})
            if old.get(key) != phase.get(key)
        ]
        if changed:
            raise ConfigError(
                f"phase {number + 1} of {path} has other settings ({'; '.join(changed)}); repeat "
                "its settings, or give a smaller --from-phase"
            )
    if changed_rest := difference({"inputs": _rest(was)}, {"inputs": _rest(now)}):
        raise ConfigError(
            f"{path} was built with other settings ({changed_rest}), so no phase would stay the "
            "same; repeat them, or build all phases again, without --from-phase"
        )
    return EarlierPhases(CheckedOutput(path, manifest), count)


def _rest(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that all phases share. max_length is the longest, and max_tokens is in the phases."""
    options = {
        key: value
        for key, value in inputs["options"].items()
        if key not in ("max_length", "max_tokens", "on_error")
    }
    return {key: value for key, value in inputs.items() if key != "phases"} | {"options": options}
