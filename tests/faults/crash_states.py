"""States of the disk that a kill or a power cut may leave behind a recorded command.

A kill loses nothing that was written; a power cut loses what was not synced, and what is left need
not be a prefix of what was done. Which parts may be there without which others is the file system's
"persistence properties", as T. S. Pillai et al. call them in "All File Systems Are Not Created
Equal: On the Complexity of Crafting Crash-Consistent Applications" (ALICE, OSDI 2014,
https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai). A model may allow
states that no disk ever shows, and must not miss one.

Common to all models, and all that POSIX promises: fsync of a file keeps its bytes and its size,
fsync of a directory keeps the names in it, and a step that changes names (a rename, even an
exchange, a link, an unlink, a mkdir) is there whole or not at all. Bytes are written in blocks of
4 kB, in any order where a model does not say otherwise.

killed     SIGKILL: all that was done is there, with any file system.
journal    Names change in the order of the calls, as with ext4 and XFS. Bytes come late: blocks
           that did not reach the disk hold zeros or what was on it before, a file may have its
           size without them, and a rename brings nothing. What ext4's data=ordered and its
           auto_da_alloc promise beyond that leaves fewer states, all of them among these.
unordered  Names change in any order, also across directories, but for the changes of one name, as
           the study saw of btrfs; bytes as with a journal. What holds here rests on no order at
           all, only on syncs.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .recording import Cut, Naming, Node, Recording, Sync, Tree, Write, apply, put, tree

BLOCK = 4096
MODELS = ("killed", "journal", "unordered")


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
        """Digest of names and contents, hex."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            size = -1 if content is None else len(content)
            digest.update(f"{name}\0{size}\0".encode() + (content or b""))
        return digest.hexdigest()

    @property
    def over(self) -> bool:
        return self.steps == self.of

    def __str__(self) -> str:
        return f"{self.model}, step {self.steps} of {self.of}"


def crash_states(recording: Recording, seed: int) -> Iterator[CrashState]:
    """Endless states, the same for the same seed; one may come up again. None without steps.

    Models take turns. A sixth of the cuts comes when the command was over, a third of the others in
    its last steps, and the rest at any step.
    """
    draw = random.Random(seed)
    total = len(recording.steps)
    blocks = _blocks(recording)
    while total:
        for model in MODELS:
            late = draw.random() < 1 / 3
            done = draw.randint(total - total // 8, total) if late else draw.randint(1, total)
            done = total if draw.random() < 1 / 6 else done
            files = _Cut(recording, done, model, draw, blocks).files()
            yield CrashState(files, model, done, total)


def _blocks(recording: Recording) -> list[bytes]:
    """Blocks that a disk may hold from before."""
    contents = [bytes(node.content) for node in recording.nodes.values()]
    contents += [step.data for step in recording.steps if isinstance(step, Write)]
    return [
        content[at : at + BLOCK] for content in contents for at in range(0, len(content), BLOCK)
    ]


class _Cut:
    """One kill or power cut, after so many steps."""

    def __init__(
        self,
        recording: Recording,
        done: int,
        model: str,
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
        if self._model == "killed":
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
        """Numbers of the steps on names and sizes that reached the disk.

        Changes of one name, or of one file's size, keep their order.
        """
        keys, safe = dict[int, set[object]](), set[int]()
        for number, step in enumerate(self._steps):
            if isinstance(step, Naming):
                keys[number] = {(entry.directory, entry.name) for entry in step.entries}
                nodes = [entry.directory for entry in step.entries]
            elif isinstance(step, Cut):
                keys[number], nodes = {step.node}, [step.node]
            else:
                continue
            if any(self._synced.get(node, -1) > number for node in nodes):
                safe.add(number)
        how = self._draw.choice(("none", "all", "some", "some"))
        if self._model == "journal":
            least = max(safe, default=-1)
            more = [number for number in keys if number > least]
            count = {"none": 0, "all": len(more)}.get(how, self._draw.randint(0, len(more)))
            return {number for number in keys if number <= least} | {*more[:count]}
        needed = set[object]()
        for number in reversed(keys):
            if number in safe or keys[number] & needed:
                safe.add(number)
                needed |= keys[number]
        chance = {"none": 0.0, "all": 1.0}.get(how, self._draw.choice((0.2, 0.5, 0.8, 0.95)))
        kept, lost = set[int](), set[object]()
        for number in keys:
            if number in safe or (self._draw.random() < chance and not keys[number] & lost):
                kept.add(number)
            else:
                lost |= keys[number]
        return kept

    def _write(self, nodes: dict[int, Node], kept: set[int]) -> None:
        """Give each file the bytes that reached the disk."""
        pending: dict[int, list[Write]] = defaultdict(list)
        lost: set[int] = set()  # files whose later writes follow a cut that is lost
        mood = self._draw.choice(("gone", "zeros", "there", "mixed", "mixed"))
        for number, step in enumerate(self._steps):
            if not isinstance(step, Write | Cut) or step.node in lost:
                continue
            if number < self._synced.get(step.node, -1):
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
        ends = [0, *(offset + len(data) for offset, data in pieces)]
        size = 0 if mood == "gone" else max(ends)
        if mood in ("short", "torn"):
            size = self._draw.choice(ends)
        chance = {"there": 1.0, "short": 1.0, "torn": 0.5}.get(mood, 0.0)
        reached: dict[int, bool] = {}  # by number of a block
        for offset, data in pieces:
            grows = offset + len(data) > start
            there = reached.setdefault(offset // BLOCK, self._draw.random() < chance)
            if grows and offset + len(data) > size:
                continue
            if there:
                put(content, offset, data)
            elif grows:
                put(content, offset, self._never_written(offset, len(data)))

    def _never_written(self, offset: int, size: int) -> bytes:
        """Bytes that a block reads as if it did not reach the disk."""
        if offset % BLOCK == 0 and self._blocks and self._draw.random() < 0.5:
            return self._draw.choice(self._blocks)[:size].ljust(size, b"\0")
        return bytes(size)


def _pieces(write: Write) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that lie in one block each."""
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, write.data[start - write.offset : stop - write.offset]
        start = stop
