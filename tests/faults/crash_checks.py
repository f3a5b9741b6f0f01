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

from . import builds, harness
from .crash_states import CrashState, crash_states
from .recording import Recorder, Recording, Tree, write_tree

OUT = "out"  # the output of every command
STORE = "store"  # of tokens, where a command has one
_TRIES = 50  # states that are made for one that is new
_MANY = 100  # states of a command, of which a quarter are those of a second power cut
_CUT_TWICE = 5  # first power cuts of these


@dataclass(frozen=True)
class Command:
    """A command to record. before: commands that make what it starts from.

    grows_store: its output is a token store, which is whole entry by entry.
    """

    arguments: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    grows_store: bool = False


def commands(folder: Path, disk: Path) -> dict[str, Command]:
    """Commands that write disk/out from small sources in a folder."""
    out, store, made = ["-o", str(disk / OUT)], str(disk / STORE), dict[str, list[str]]()
    for kind in builds.KINDS:
        (folder / kind).mkdir(exist_ok=True)
        files, tokens, packs = builds.inputs(folder / kind, kind, few=True)
        made[kind] = ["build", *files, *tokens, *packs, *out]
    del made["tokenize, pack"]
    made["plan"] += ["--store", store]
    tokenize = ["tokenize", *files, *tokens, "-o"]
    other = ["build", files[0], *tokens, *out, "--max-length", "32"]
    return {
        "tokenize": Command([*tokenize, out[1]], grows_store=True),
        "pack": Command(["pack", store, *packs, *out, "-q"], [[*tokenize, store]]),
        **{f"build of {kind}": Command(build) for kind, build in made.items()},
        "build with a store": Command([*made["jsonl"], "--store", store]),
        "overwrite": Command([*made["jsonl"], "--overwrite"], [other]),
    }


@dataclass
class Recorded:
    """A command that was recorded, and what it must end with.

    old, new: its output before and after it; None if there was none. data: of the new one's
    manifest. beside: names of what lies on the disk when it is over.
    """

    name: str
    command: Command
    disk: Path
    log: Path
    recording: Recording
    old: Tree | None = field(init=False)
    new: Tree | None = field(init=False)
    data: object = field(init=False)
    beside: set[str] = field(init=False)

    def __post_init__(self) -> None:
        ends = self.recording.before, self.recording.after
        self.old, self.new = (self._part(each) for each in ends)
        self.data = builds.data(self.disk / OUT)
        self.beside = {name.split("/")[0] for name in self.recording.after}
        builds.read(self.disk / OUT)  # here too, so that forks have what it imports

    @classmethod
    def of(cls, name: str, command: Command, folder: Path, start: Tree | None = None) -> "Recorded":
        """Run and record a command. start: what is on the disk; default: what `before` makes."""
        disk, log = folder / "disk", folder / "log"
        write_tree(start or {}, disk)
        for arguments in command.before if start is None else ():
            ended = harness.forked([arguments], log)
            assert ended.code == 0, ended
        recorder = Recorder(folder / "recording", disk)
        ended = harness.forked([command.arguments], log, fault=recorder)
        assert ended.code == 0, ended
        return cls(name, command, disk, log, recorder.recording())

    def faults(self, state: CrashState, *, again: bool = True) -> list[str]:
        """Sentences on what is wrong in a state. again: run the command on it as well."""
        found = [f"{self.name}, {state}: {fault}" for fault in self._seen_in(state)]
        if again:
            write_tree(state.files, self.disk)
            ended = harness.in_fork(self._read_and_run, self.log)
            found += [f"{self.name}, {state}: {ended.err.strip()[-600:]}"] * (ended.code != 0)
        return found

    def _part(self, files: Tree) -> Tree | None:
        """The output in a tree; None if there is none."""
        if self.command.grows_store:
            return builds.finished_entries(files, OUT)
        below = (name for name in files if name.startswith(f"{OUT}/"))
        return {name: files[name] for name in below} if OUT in files else None

    def _seen_in(self, state: CrashState) -> list[str]:
        there = self._part(state.files)
        if there is None:
            return ["there is no output"] * (self.old is not None or state.over)
        if there == self.new:
            return []
        if there != self.old:
            whole = self.new or {}
            names = (n for n in sorted({*there, *whole}) if there.get(n, -1) != whole.get(n, -1))
            return [f"{', '.join([*names][:4])} differ from any whole output"]
        return ["the command was over, and the output is the old one"] * state.over

    def _read_and_run(self) -> int:
        """Read the output, run the command again, and read it again; 0 if nothing is wrong."""
        output, store = self.disk / OUT, self.disk / STORE
        if builds.is_store(output) if self.command.grows_store else output.exists():
            builds.read(output)
        if builds.is_store(store):
            builds.read(store)
        code = harness.command(self.command.arguments)
        assert code == 0, f"the same command ends with {code}"
        builds.read(output)
        assert builds.data(output) == self.data, "the same command makes another output"
        names = {path.name for path in self.disk.iterdir()}
        assert names == self.beside, f"{sorted(names ^ self.beside)} are left or gone"
        return 0


@dataclass
class Found:
    """Findings in states of a command."""

    name: str
    by_model: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    cut_twice: int = 0
    run_again: int = 0


def explore(name: str, folder: Path, seed: int, number: int, every: int) -> Found:
    """Check `number` distinct states of a command.

    A quarter of them, if there are many, are those of the command that was run again on a disk
    after a power cut, and cut again. every: in one of so many states, drawn at random, the command
    is run again; the output is compared in all of them.
    """
    folder.mkdir()
    found, seen, draw = Found(name), set[str](), Random(seed)
    command = commands(folder, folder / "disk")[name]
    recorded = Recorded.of(name, command, folder)
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
        second = Recorded.of(name, command, folder, start.files)
        before = found.by_model.total()
        states = distinct(second.recording, seed, again // _CUT_TWICE, seen)
        check(second, states, f"{start}, then ")
        found.cut_twice += found.by_model.total() - before
    rest = number - found.by_model.total()  # the second run of a short command has few states
    check(recorded, distinct(recorded.recording, seed + 2, rest, seen))
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
