"""Commands that are recorded, and the checks of what a power cut leaves of them.

In each state the output is absent, or whole with the bytes of the old or of the new one; the same
command, run on that disk, ends with the bytes of an undisturbed run and leaves nothing beside its
output. Where there was an old output, or once the command was over, an output is never absent.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import datasets

from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import read_manifest
from packprep.schemas.storage.export_manifest import EXPORT, read_export
from packprep.tokens.store import STORED
from packprep.tokens.store_entries import entries_in

from . import harness
from .crash_states import CrashState, crash_states
from .recording import Recorder, Recording, Tree, write_tree

if TYPE_CHECKING:
    from .editions import Edition

OUT = "out"  # the output of every command
STORE = "store"  # of tokens, where a command has one
_TRIES = 50  # states that are made for one that is new
_MANY = 100  # states of a command, of which a quarter are those of a second power cut
_CUT_TWICE = 5  # first power cuts of these
_KINDS = ("turns", "pairs", "trees", "mix", "phases", "epochs")
_SIZES = {"unit_size": 20_000, "window": 40_000, "shard_size": 1_000_000}  # of few files


@dataclass(frozen=True)
class Command:
    """A command to record. before: commands that make what it starts from.

    grows_store: its output is a token store, which is whole entry by entry.
    """

    arguments: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    grows_store: bool = False


def commands(folder: Path, disk: Path) -> dict[str, Command]:
    """Commands that write an output or an export to disk/out, from small sources in a folder."""
    both = harness.few_files(harness.corpus(folder))
    both[both.index("--holdout") + 1] = "0.2"
    one, two = [*both[:2], *both[3:]], [both[0], *both[2:]]
    out, first, second = (["-o", str(disk / name)] for name in (OUT, "first", "second"))
    as_index = ["--materialize", "index"]
    index = [*both, *out, *as_index]
    stored = [*as_index, "--keep-tokens", str(disk / STORE)]
    from_index = ["merge", first[1], *out, "--materialize", "shards", "-q"]
    both_made = [[*one, *first], [*two, *second]]
    renamed = ["--names", "hf", "--overwrite", "-q"]

    sources, tokenizer = both[1:3], both[3:7]  # with the engine

    def tokenize(sources: Sequence[str], store: str) -> list[str]:
        return ["tokenize", *sources, "-o", str(disk / store), *tokenizer, "-q"]

    stores = [tokenize([source], STORE) for source in sources]
    pack = ["pack", str(disk / STORE), *out, "--max-length", "64", "--holdout", "0.2", "-q"]
    return {
        "tokenize": Command(tokenize(sources, OUT), grows_store=True),
        "tokenize more": Command(
            tokenize(sources, OUT), [tokenize(sources[:1], OUT)], grows_store=True
        ),
        "merge of stores": Command(
            ["merge", str(disk / "b"), str(disk / "a"), *out, "-q"],
            [tokenize(sources[:1], "a"), tokenize(sources[1:], "b")],
        ),
        "pack": Command(pack, stores[:1]),
        "pack two entries as an index": Command([*pack, *as_index], stores),
        "build": Command([*both, *out]),
        "overwrite": Command([*both, *out, "--overwrite"], [[*both, *out, "--max-length", "32"]]),
        "append": Command([*both, *out, "--append"], [[*one, *out]]),
        "merge": Command(["merge", first[1], second[1], *out, "-q"], both_made),
        "rename": Command(["merge", out[1], *out, *renamed], [[*one, *out]]),
        "export": Command(["export", first[1], "--to", "npy", *out, "-q"], [[*one, *first]]),
        "index": Command(index),
        "append to an index": Command([*index, "--append"], [[*one, *out, *as_index]]),
        "index of a store": Command([*both, *out, *stored]),
        "materialize": Command(from_index, [[*both, *first, *as_index]]),
        **{
            f"build of {kind}": Command([*harness.kind_of_build(folder, kind, **_SIZES), *out])
            for kind in _KINDS
        },
    }


@dataclass
class Recorded:
    """A command that was recorded, and what it must end with.

    old, new: its output before and after it; None if there was none. data: of the new one's
    manifest. beside: names of what lies on the disk when it is over.
    """

    name: str
    command: Command
    edition: "Edition"
    disk: Path
    log: Path
    recording: Recording
    old: Tree | None = field(init=False)
    new: Tree | None = field(init=False)
    data: object = field(init=False)
    beside: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.old, self.new = (
            self._part(each) for each in (self.recording.before, self.recording.after)
        )
        self.data = self.edition.data(self.disk / OUT)
        self.beside = {name.split("/")[0] for name in self.recording.after}
        self.edition.read(
            self.disk / OUT
        )  # here too, so that forks have what it imports and compiles

    @classmethod
    def of(
        cls,
        name: str,
        command: Command,
        edition: "Edition",
        folder: Path,
        start: Tree | None = None,
    ) -> "Recorded":
        """Run and record a command. start: what is on the disk; default: what `before` makes."""
        disk, log = folder / "disk", folder / "log"
        write_tree(start or {}, disk)
        for arguments in command.before if start is None else ():
            ended = harness.forked([arguments], log, main=edition.main)
            assert ended.code == 0, ended
        recorder = Recorder(folder / "recording", disk)
        ended = harness.forked([command.arguments], log, fault=recorder, main=edition.main)
        assert ended.code == 0, ended
        return cls(name, command, edition, disk, log, recorder.recording())

    def faults(self, state: CrashState, *, again: bool = True) -> list[str]:
        """Sentences on what is wrong in a state. again: run the command on it as well."""
        found = [f"{self.name}, {state}: {fault}" for fault in self._seen_in(state)]
        if again:
            write_tree(state.files, self.disk)
            ended = harness.in_fork(self._read_and_run, self.log)
            found += [f"{self.name}, {state}: {ended.err.strip()[-600:]}"] * (ended.code != 0)
        return found

    def _part(self, files: Tree) -> Tree | None:
        return self.edition.finished_entries(files) if self.command.grows_store else part(files)

    def _seen_in(self, state: CrashState) -> list[str]:
        there = self._part(state.files)
        if there is None:
            return ["there is no output"] * (self.old is not None or state.over)
        if there == self.new:
            return self._store_faults(state)
        if there != self.old:
            return [f"{_difference(there, self.old, self.new)} of the output"]
        return ["the command was over, and the output is the old one"] * state.over

    def _store_faults(self, state: CrashState) -> list[str]:
        """Token files of a store, which the output needs."""
        return [
            f"{name} is not what the output needs"
            for name, content in self.recording.after.items()
            if name.startswith(f"{STORE}/") and name.endswith(".arrow")
            if state.files.get(name) != content
        ]

    def _read_and_run(self) -> int:
        """Read the output, run the command again, and read it again; 0 if nothing is wrong."""
        output = self.disk / OUT
        if self.edition.is_store(output) if self.command.grows_store else output.exists():
            self.edition.read(output)
        code = harness.command(self.command.arguments, self.edition.main)
        assert code == 0, f"the same command ends with {code}"
        self.edition.read(output)
        assert self.edition.data(output) == self.data, "the same command makes another output"
        names = {path.name for path in self.disk.iterdir()}
        assert names == self.beside, f"{sorted(names ^ self.beside)} are left or gone"
        return 0


def read(output: Path) -> None:
    """Read an output, export or store with all that reads it. AssertionError for any damage."""
    if entries := entries_in(output):
        faults = [fault for each in entries if each.state == "whole" for fault in each.faults()]
        assert not faults, faults
        return
    verdict = verify(output)
    assert verdict.sound, f"verify: {[*map(str, verdict.findings)]}"
    if (output / EXPORT).exists():
        return
    manifest, rows = read_manifest(output), None
    if not manifest.is_index:
        rows = datasets.load_from_disk(str(output))
    for split in manifest.splits:
        lengths = []
        for epoch in range(manifest.epochs):
            shards = PackedShards(output, split=split, epoch=epoch)
            lengths += [len(shards[number].tokens) for number in range(len(shards))]
        assert sum(lengths) == manifest.splits[split].tokens
        if rows is not None:
            of_split = rows[split] if isinstance(rows, datasets.DatasetDict) else rows
            assert len(of_split) == len(lengths)


def part(files: Tree) -> Tree | None:
    """The output in a tree; None if there is none."""
    below = (name for name in files if name.startswith(f"{OUT}/"))
    return {name: files[name] for name in below} if OUT in files else None


def finished_entries(files: Tree) -> Tree | None:
    """The finished entries of a store in a tree; None if there is none."""
    whole = {name.rpartition("/")[0] for name in files if name.endswith(f"/{STORED}")}
    return {name: files[name] for name in files if name.rpartition("/")[0] in whole} or None


def _difference(there: Tree, *wholes: Tree | None) -> str:
    """Names whose content differs, from the whole output with the fewest of them."""
    differing = [
        sorted(name for name in {*there, *whole} if there.get(name, -1) != whole.get(name, -1))
        for whole in wholes
        if whole is not None
    ]
    return f"{', '.join(min(differing, key=len)[:4])} differ from any whole one"


def data(output: Path) -> object:
    """Facts that two whole outputs or exports with the same bytes share."""
    if (output / EXPORT).exists():
        export = read_export(output)
        return export and export.data
    if entries := entries_in(output):
        return [entry.as_dict() | {"last_used": None} for entry in entries]
    return read_manifest(output).data


@dataclass
class Found:
    """Findings in states of a command. forgotten: bad states by pattern, see `explore`."""

    name: str
    by_model: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    cut_twice: int = 0
    run_again: int = 0
    forgotten: dict[str, int] = field(default_factory=dict)


def explore(
    edition: "Edition",
    name: str,
    folder: Path,
    seed: int,
    number: int,
    every: int,
    forget: Sequence[str],
) -> Found:
    """Check `number` distinct states of a command.

    A quarter of them, if there are many, are those of the command that was run again on a disk
    after a power cut, and cut again. every: in one of so many states, drawn at random, the command
    is run again; the output is compared in all of them. forget: patterns of paths; as many states
    are made and read as if the command had not synced the files of one.
    """
    folder.mkdir()
    found, seen, draw = Found(name), set[str](), Random(seed)
    command = edition.commands(folder, folder / "disk")[name]
    recorded = Recorded.of(name, command, edition, folder)
    again = number // 4 if number >= _MANY else 0

    def check(each: Recorded, states: Iterator[CrashState], where: str = "") -> None:
        for state in states:
            run_again = draw.random() * every < 1
            found.by_model[state.model] += 1
            found.run_again += run_again
            found.faults += [where + fault for fault in each.faults(state, again=run_again)]

    check(recorded, distinct(recorded.recording, seed, number - again, seen))
    starts = distinct(recorded.recording, seed + 1, _CUT_TWICE, set())
    for start in [*starts] if again else []:
        second = Recorded.of(name, command, edition, folder, start.files)
        before = found.by_model.total()
        states = distinct(second.recording, seed, again // _CUT_TWICE, seen)
        check(second, states, f"{start}, then ")
        found.cut_twice += found.by_model.total() - before
    rest = number - found.by_model.total()  # the second run of a short command has few states
    check(recorded, distinct(recorded.recording, seed + 2, rest, seen))
    for pattern in forget:
        forgetful = recorded.recording.without_syncs(pattern)
        states = distinct(forgetful, seed, number, set())
        found.forgotten[pattern] = sum(bool(recorded.faults(s, again=False)) for s in states)
    return found


def distinct(recording: Recording, seed: int, number: int, seen: set[str]) -> Iterator[CrashState]:
    """So many states that are not in `seen`, to which their digests are added; fewer if rare."""
    made = 0
    for state in itertools.islice(crash_states(recording, seed), _TRIES * number):
        if made == number:
            return
        if state.digest not in seen:
            seen.add(state.digest)
            made += 1
            yield state
