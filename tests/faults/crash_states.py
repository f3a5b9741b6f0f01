"""States of the disk that a kill or a power cut may leave behind a recorded command.

A kill loses nothing that was written; a power cut loses what was not synced, and what is left need
not be a prefix of what was done. Which parts may be there without which others is the file system's
"persistence properties", as T. S. Pillai et al. call them in "All File Systems Are Not Created
Equal: On the Complexity of Crafting Crash-Consistent Applications" (ALICE, OSDI 2014,
https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai). `MODELS` follow
its rules and, for ext4, the kernel's Documentation/admin-guide/ext4.rst. Where these leave room, a
model allows the state: it may allow some that no disk ever shows, and must not miss one.

Common to all models, and all that POSIX promises: fsync of a file keeps its bytes and its size,
fsync of a directory keeps the names in it, and a step that changes names (a rename, even an
exchange, a link, an unlink, a mkdir) is there whole or not at all. Bytes are written in blocks of
4 kB, in any order where a model does not say otherwise.

killed      SIGKILL: all that was done is there, with any file system.
ordered     ext4, data=ordered: names change in the order of the calls, by a journal. The size of a
            file grows only over bytes that are there ("append -> append"), but names may be there
            before these bytes, because blocks are allocated late. A rename over an existing file
            brings the bytes of the new one (`auto_da_alloc`).
writeback   ext4, data=writeback: as ordered, but the size does not wait for the bytes. Blocks may
            hold zeros or what was on the disk before, and a rename brings nothing.
xfs         XFS: names in order, late allocation, no rule for renames. Blocks that did not reach
            the disk read as zeros, never as something else.
unordered   Names change in any order, also across directories, but for the changes of one name, as
            the study saw of btrfs; bytes as with writeback. What holds here rests on no order at
            all, only on syncs.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .recording import Cut, Naming, Node, Recording, Sync, Tree, Write, apply, put, tree

BLOCK = 4096


@dataclass(frozen=True)
class Model:
    """The rules of a file system.

    loses: what was not synced may be lost. ordered_names: names change in the order of the calls.
    size_after_data: a file never has a size whose bytes are missing. rename_flushes: a rename over
    a file brings the new one's bytes. stale: blocks may hold what was on the disk before, not only
    zeros.
    """

    loses: bool = True
    ordered_names: bool = True
    size_after_data: bool = False
    rename_flushes: bool = False
    stale: bool = False


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "killed": Model(loses=False),
        "ordered": Model(size_after_data=True, rename_flushes=True),
        "writeback": Model(stale=True),
        "xfs": Model(),
        "unordered": Model(ordered_names=False, stale=True),
    }
)


@dataclass(frozen=True)
class CrashState:
    """Contents of the disk after a kill or a power cut.

    steps: steps that the command had done; of: how many it does. A command that had done all of
    them was over.
    """

    files: Tree
    model: str
    steps: int
    of: int

    @property
    def digest(self) -> str:
        return tree_digest(self.files)

    @property
    def over(self) -> bool:
        return self.steps == self.of

    def __str__(self) -> str:
        return f"{self.model}, step {self.steps} of {self.of}"


def tree_digest(files: Tree) -> str:
    """Digest of names and contents, hex."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        size = -1 if content is None else len(content)
        digest.update(f"{name}\0{size}\0".encode() + (content or b""))
    return digest.hexdigest()


def crash_states(recording: Recording, seed: int) -> Iterator[CrashState]:
    """Endless states, the same for the same seed; one may come up again. None without steps.

    Models take turns. A sixth of the cuts comes when the command was over, a third of the others in
    its last steps, and the rest at any step.
    """
    draw = random.Random(seed)
    total = len(recording.steps)
    blocks = _blocks(recording)
    while total:
        for name, model in MODELS.items():
            late = draw.random() < 1 / 3
            done = draw.randint(total - total // 8, total) if late else draw.randint(1, total)
            done = total if draw.random() < 1 / 6 else done
            files = _Cut(recording, done, model, draw, blocks).files()
            yield CrashState(files, name, done, total)


def _blocks(recording: Recording) -> list[bytes]:
    """Blocks that a disk may hold from before."""
    contents = [bytes(node.content) for node in recording.nodes.values()]
    contents += [step.data for step in recording.steps if isinstance(step, Write)]
    return [
        content[at : at + BLOCK] for content in contents for at in range(0, len(content), BLOCK)
    ]


class _Cut:
    """One power cut, after so many steps."""

    def __init__(
        self,
        recording: Recording,
        done: int,
        model: Model,
        draw: random.Random,
        blocks: Sequence[bytes],
    ) -> None:
        self._recording, self._steps = recording, recording.steps[:done]
        self._model, self._draw, self._blocks = model, draw, blocks
        self._synced: dict[int, int] = {}  # number of a node's last sync
        for number, step in enumerate(self._steps):
            if isinstance(step, Sync):
                self._synced[step.node] = number

    def files(self) -> Tree:
        nodes = {number: node.copy() for number, node in self._recording.nodes.items()}
        if not self._model.loses:
            for step in self._steps:
                apply(nodes, step)
            return tree(nodes)
        kept = self._kept()
        for number, step in enumerate(self._steps):
            if isinstance(step, Naming) and number in kept:
                apply(nodes, step)
        self._write(nodes, kept)
        return tree(nodes)

    def _kept(self) -> set[int]:
        """Numbers of the steps on names and sizes that reached the disk."""
        steps = [
            number for number, step in enumerate(self._steps) if isinstance(step, Naming | Cut)
        ]
        safe = {number for number in steps if self._is_synced(number)}
        how = self._draw.choice(("none", "all", "some", "some"))
        if self._model.ordered_names:
            least = max(safe, default=-1)
            more = [number for number in steps if number > least]
            count = {"none": 0, "all": len(more)}.get(how, self._draw.randint(0, len(more)))
            return {number for number in steps if number <= least} | set(more[:count])
        chance = {"none": 0.0, "all": 1.0}.get(how, self._draw.choice((0.2, 0.5, 0.8, 0.95)))
        kept = {number for number in steps if number in safe or self._draw.random() < chance}
        return self._with_earlier(steps, kept, safe)

    def _with_earlier(self, steps: Sequence[int], kept: set[int], safe: set[int]) -> set[int]:
        """Drop steps whose name changed before in a step that is lost; add what synced ones need.

        Changes of one name, or of one file's size, keep their order.
        """
        before: dict[object, list[int]] = defaultdict(list)
        needs: dict[int, set[int]] = {}
        for number in steps:
            step = self._steps[number]
            keys: list[object] = (
                [(entry.directory, entry.name) for entry in step.entries]
                if isinstance(step, Naming)
                else [step.node]
            )
            needs[number] = {earlier for key in keys for earlier in before[key][-1:]}
            for key in keys:
                before[key].append(number)
        for number in reversed(steps):
            if number in safe:
                safe |= needs[number]
        kept = kept | safe
        for number in steps:
            if number in kept and not needs[number] <= kept:
                kept.discard(number)
        return kept

    def _is_synced(self, number: int) -> bool:
        """True if a sync after a step has brought it to the disk."""
        step = self._steps[number]
        if isinstance(step, Naming):
            return any(self._synced.get(entry.directory, -1) > number for entry in step.entries)
        return isinstance(step, Cut) and self._synced.get(step.node, -1) > number

    def _write(self, nodes: dict[int, Node], kept: set[int]) -> None:
        """Give each file the bytes that reached the disk."""
        flushed: dict[int, int] = {}  # by file: a step before which all its bytes are there
        pending: dict[int, list[Write]] = defaultdict(list)
        lost: set[int] = set()  # files whose later writes follow a cut that is lost
        for number, step in enumerate(self._steps):
            if isinstance(step, Naming) and number in kept and step.replaces is not None:
                flushed |= {step.replaces: number} if self._model.rename_flushes else {}
        mood = self._draw.choice(("gone", "zeros", "there", "mixed", "mixed"))
        for number, step in enumerate(self._steps):
            if not isinstance(step, Write | Cut) or step.node in lost:
                continue
            last = max(self._synced.get(step.node, -1), flushed.get(step.node, -1))
            if number < last:
                apply(nodes, step)
            elif isinstance(step, Write):
                pending[step.node].append(step)
            elif number in kept:
                self._tear(nodes[step.node].content, pending.pop(step.node, []), mood)
                apply(nodes, step)
            else:
                lost.add(step.node)
        for node, writes in pending.items():
            self._tear(nodes[node].content, writes, mood)

    def _tear(self, content: bytearray, writes: Sequence[Write], mood: str) -> None:
        """Write some blocks of what was not synced.

        mood: of the bytes, "gone", "there", or only their size ("zeros"); "short", the first of
        them; "torn", some blocks of these.
        """
        if mood == "mixed":
            mood = self._draw.choice(("gone", "zeros", "there", "short", "torn"))
        pieces = [piece for write in writes for piece in _pieces(write)]
        start = len(content)
        ends = [end for offset, data in pieces if (end := offset + len(data)) > start]
        size = max(ends, default=0)
        if ends and (mood in ("short", "torn") or self._model.size_after_data):
            size = {"gone": 0, "there": size}.get(mood, self._draw.choice((0, *ends)))
        chance = {"there": 1.0, "short": 1.0, "torn": 0.5}.get(mood, 0.0)
        reached: dict[int, bool] = {}  # by number of a block
        for offset, data in pieces:
            grows = offset + len(data) > start
            there = reached.setdefault(offset // BLOCK, self._draw.random() < chance)
            if grows and (mood == "gone" or offset + len(data) > size):
                continue
            if there or (grows and self._model.size_after_data):
                put(content, offset, data)
            elif grows:
                put(content, offset, self._never_written(offset, len(data)))

    def _never_written(self, offset: int, size: int) -> bytes:
        """Bytes that a block reads as if it did not reach the disk."""
        if self._model.stale and offset % BLOCK == 0 and self._blocks and self._draw.random() < 0.5:
            return self._draw.choice(self._blocks)[:size].ljust(size, b"\0")
        return bytes(size)


def _pieces(write: Write) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that lie in one block each."""
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, write.data[start - write.offset : stop - write.offset]
        start = stop
