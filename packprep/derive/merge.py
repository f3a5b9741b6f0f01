"""Merges finished outputs into one: `packprep merge`. Of one output, it makes another form of it.

Packs stay as they are, in the order of the outputs. Shards are kept or cut again, their columns
keep their names or get others, and an index stays one or becomes shards that hold their tokens.
Only document ids change, so that they are unique in the merged output.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from packprep.derive.forms import Materialize
from packprep.derive.parts import OutputPart, merged_inputs, read_parts
from packprep.derive.shards import ShardMaker, packs_of_shards, splits_of
from packprep.derive.signing import sign_merged, sign_one
from packprep.output.build_facts import build_facts
from packprep.output.directory import LocalTarget
from packprep.output.staging import OUTPUT, staged
from packprep.schemas.canonical import digest_of
from packprep.schemas.index_table import TOKENS
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.names import Names
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.tokens.reading import say_left_out


def merge(
    outputs: Sequence[Output],
    output: Path,
    *,
    shard_size: int | None = None,
    names: Names | None = None,
    materialize: Materialize | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the packs of all outputs, in this order, as one output.

    shard_size: bytes of a shard, about; None keeps the shards as they are cut. names: of the
    columns; None keeps them. materialize: "shards" writes the tokens of an index into its shards;
    None keeps an index. overwrite: replace an output, in one step; it may be the only one of
    `outputs`.

    Of one output with other names, or as shards, the result is the build of the same packs with
    these options. Nothing is done if `output` is the result already. Raises ConfigError if
    tokenizer, columns or max_length differ, if the packs cannot have the form, or if `output` is
    something else, and FormatError for damage.
    """
    progress = progress or Silent()
    target = LocalTarget(OUTPUT, output)
    with locked(output, f"{output} is being built"):
        if overwrite and (target.half_swapped or target.check()):
            target.tidy()
        result = _Result(outputs, output, shard_size, names, materialize, overwrite)
        if target.check():
            if (made := result.made_before()) is not None:
                progress.say(f"{output} has these packs already: nothing to do")
                return made
            _check_overwrite(outputs, output, overwrite)
        return result.make(progress)


def _check_overwrite(outputs: Sequence[Output], output: Path, overwrite: bool) -> None:
    if not overwrite:
        raise ConfigError(f"{output} exists already; choose another -o, or add --overwrite")
    if len(outputs) > 1 and any(_is_same(each, output) for each in outputs):
        # The same command again would add the other packs once more.
        raise ConfigError(f"{output} is one of the outputs to merge; choose another -o")


def _is_same(one: Output, output: Path) -> bool:
    return isinstance(one, Path) and one.exists() and one.samefile(output)


def merge_locked(outputs: Sequence[Output], output: Path, progress: Progress) -> Manifest:
    """Merge outputs; the caller holds the lock of `output`.

    `output` may be one of them; the merged output then replaces it in one step.
    """
    return _Result(outputs, output).make(progress)


class _Result:
    """The output that a merge makes. Raises ConfigError if the outputs do not fit."""

    def __init__(
        self,
        outputs: Sequence[Output],
        output: Path,
        shard_size: int | None = None,
        names: Names | None = None,
        materialize: Materialize | None = None,
        overwrite: bool | None = None,
    ) -> None:
        self.output, self.target = output, LocalTarget(OUTPUT, output)
        self.overwrite = overwrite
        self.shard_size = shard_size
        self.parts = read_parts(outputs, names, materialize)
        same_cuts = len(outputs) == 1 and shard_size is None
        self.is_one = same_cuts and (names is not None or materialize is not None)
        first = self.parts[0]
        if not self.is_one:
            _check_merged(self.parts)
        if shard_size is not None and first.made.is_index:
            raise ConfigError(
                f"{first.source} is an index, and only shards with tokens are cut again; add "
                "--materialize shards"
            )
        self.inputs = first.made.data["inputs"] if self.is_one else merged_inputs(self.parts)

    def made_before(self) -> Manifest | None:
        """The manifest of an output that is the result already; None for any other."""
        made = read_manifest(self.output)
        if made.identity != digest_of(self.inputs):
            return None
        packs = [entry.packs for split in splits_of(self.parts) for entry in made.shards(split)]
        return made if packs == packs_of_shards(self.parts, self.shard_size) else None

    def make(self, progress: Progress) -> Manifest:
        """Write and publish the output; the caller holds its lock."""
        for part in self.parts:
            say_left_out(part.source, progress)
        with staged(self.output) as staged_output:
            staging = staged_output.path
            facts = build_facts(self.inputs)
            replaces = self.target.replaces
            if not staged_output.claim(facts, progress, replaces=replaces, discard=self.overwrite):
                self._write(staging, progress)
            signed = self.target.publish(staging, progress)
        if self.parts[0].made.names != self.parts[0].manifest.names:
            progress.say(f"{self.output} has the names of {signed.names}{self._changed_columns()}")
        return signed

    def _write(self, staging: Path, progress: Progress) -> None:
        shutil.rmtree(staging / TOKENS, ignore_errors=True)  # half copied by a killed command
        total, done = sum(part.manifest.num_packs for part in self.parts), 0

        def written(packs: int) -> None:
            nonlocal done
            done += packs
            progress.advance("merge", done, total, "packs")

        shards = ShardMaker(staging, written).make(self.parts, self.shard_size)
        if self.is_one:
            sign_one(staging, self.parts[0], shards)
        else:
            sign_merged(staging, self.output, self.parts, self.inputs, shards)

    def _changed_columns(self) -> str:
        """Columns that other names add or leave out, as the end of a sentence."""
        part, changed = self.parts[0], ""
        before, after = (
            [column.name for column in manifest.columns] for manifest in (part.manifest, part.made)
        )
        if added := [name for name in after if name not in before]:
            changed += f"; added {', '.join(added)}"
        if left_out := [name for name in before if name not in after]:
            changed += f"; left out {', '.join(left_out)}, which only the names of hf need"
        return changed


def _check_merged(parts: Sequence[OutputPart]) -> None:
    for part in parts:
        if part.manifest.phases:
            raise ConfigError(
                f"{part.source} has phases, and the packs of a merge have no order of phases; "
                "build its sources together instead"
            )
