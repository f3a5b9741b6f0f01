"""A recording of what a command does to the files under one directory; calls.c makes it.

It is a list of steps on numbered nodes. A node is a file or a directory, whatever names it
has; node 0 is the directory itself. The steps in order turn `before` into `after`.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from ctypes import CDLL, c_char_p
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = 0
Tree = dict[str, bytes | None]  # by path: content of a file; None for a directory

_HEAD = struct.Struct("<cQqII")
_LOCK = 8  # bytes that the log begins with


@dataclass
class Node:
    """A file (content) or a directory (entries: node by name)."""

    content: bytearray = field(default_factory=bytearray)
    entries: dict[str, int] | None = None

    def copy(self) -> "Node":
        entries = None if self.entries is None else dict(self.entries)
        return Node(bytearray(self.content), entries)


class Entry(NamedTuple):
    """A name in a directory, and the nodes that it stands for before and after a step."""

    directory: int
    name: str
    old: int | None
    new: int | None


class Naming(NamedTuple):
    """A step that changes names, all of them or none: create, link, rename, unlink, mkdir."""

    entries: tuple[Entry, ...]

    @property
    def replaces(self) -> int | None:
        """The file that is renamed over another one."""
        if len(self.entries) == 2 and self.entries[0].new is None:
            return self.entries[1].new if self.entries[1].old is not None else None
        return None


class Write(NamedTuple):
    node: int
    offset: int
    data: bytes


class Cut(NamedTuple):
    """A file gets this size."""

    node: int
    size: int


class Sync(NamedTuple):
    """fsync of a file or a directory."""

    node: int
    path: str


Step = Naming | Write | Cut | Sync


@dataclass(frozen=True)
class Recording:
    """Steps of a command. nodes: as they were before it, and new ones as they began."""

    nodes: dict[int, Node]
    steps: tuple[Step, ...]
    before: Tree
    after: Tree

    def without_syncs(self, pattern: str) -> "Recording":
        """The recording of a command that does not sync files and directories of a pattern."""
        kept = (s for s in self.steps if not (isinstance(s, Sync) and fnmatch(s.path, pattern)))
        return replace(self, steps=tuple(kept))


class Recorder:
    """Arms the recorder in a forked process and in those that it starts."""

    def __init__(self, log: Path, under: Path) -> None:
        self.log, self.under = log, under
        log.write_bytes(bytes(_LOCK))
        self._nodes, self._numbers = _nodes_on_disk(under)

    def arm(self) -> None:
        os.environ |= {"RECORD_LOG": str(self.log), "RECORD_UNDER": str(self.under)}
        CDLL(None).record_arm(c_char_p(os.fsencode(self.log)), c_char_p(os.fsencode(self.under)))

    def recording(self) -> Recording:
        """The steps so far. AssertionError if they do not explain what is on the disk."""
        started = {number: node.copy() for number, node in self._nodes.items()}
        replay = _Replay(self.under, started, self._numbers)
        for record in _records(self.log):
            replay.take(*record)
        for number, node in replay.created.items():
            self._nodes[number] = node
        after = tree(replay.nodes)
        assert after == read_tree(self.under), "the recorder has missed a call"
        return Recording(self._nodes, tuple(replay.steps), tree(self._nodes), after)


def tree(nodes: dict[int, Node], number: int = ROOT, path: str = "") -> Tree:
    """Files and directories below a node."""
    found: Tree = {}
    for name, child in sorted((nodes[number].entries or {}).items()):
        node, below = nodes[child], f"{path}{name}"
        if node.entries is not None:
            found[below] = None
            found |= tree(nodes, child, below + "/")
        else:
            found[below] = bytes(node.content)
    return found


def read_tree(directory: Path) -> Tree:
    """Files and directories that are on the disk."""
    return tree(_nodes_on_disk(directory)[0])


def write_tree(files: Tree, directory: Path) -> None:
    """Make a directory have these files and no others."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        if content is None:
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(content)


def _nodes_on_disk(directory: Path) -> tuple[dict[int, Node], dict[int, int]]:
    """Nodes of a directory, and their numbers by inode."""
    nodes, numbers = {ROOT: Node(entries={})}, {directory.stat().st_ino: ROOT}

    def add(folder: Path, parent: int) -> None:
        for item in sorted(os.scandir(folder), key=lambda item: item.name):
            number = numbers.setdefault(item.inode(), len(numbers))
            entries = nodes[parent].entries
            assert entries is not None
            entries[item.name] = number
            if number in nodes:
                continue
            if item.is_dir(follow_symlinks=False):
                nodes[number] = Node(entries={})
                add(Path(item.path), number)
            else:
                nodes[number] = Node(bytearray(Path(item.path).read_bytes()))

    add(directory, ROOT)
    return nodes, numbers


def _records(log: Path) -> Iterator[tuple[str, int, int, bytes, bytes]]:
    content = log.read_bytes()
    place = _LOCK
    while place < len(content):
        kind, inode, number, *lengths = _HEAD.unpack_from(content, place)
        start = place + _HEAD.size
        middle, end = start + lengths[0], start + sum(lengths)
        yield kind.decode(), inode, number, content[start:middle], content[middle:end]
        place = end


class _Replay:
    """The tree while a recording is replayed."""

    def __init__(self, under: Path, nodes: dict[int, Node], numbers: dict[int, int]) -> None:
        self._under, self._numbers = under, dict(numbers)
        self.nodes = nodes
        self.created: dict[int, Node] = {}
        self.steps: list[Step] = []

    def take(self, kind: str, inode: int, number: int, one: bytes, two: bytes) -> None:
        if kind == "O":
            self._open(one, inode, number)
        elif kind == "w":
            self._do(Write(self._numbers[inode], number, one))
        elif kind == "t":
            self._cut(self._numbers[inode], number)
        elif kind == "s" and one:
            self._do(Sync(self._at(one), self._relative(one)))
        elif kind == "s":
            self._do(Sync(self._numbers[inode], self._name_of(self._numbers[inode])))
        elif kind == "m":
            self._name(one, self._new(Node(entries={})))
        elif kind == "l":
            self._name(two, self._at(one))
        elif kind in "ud":
            self._name(one, None)
        elif kind == "r":
            self._rename(one, two, bool(number))
        else:
            raise AssertionError(f"{one.decode()} is written through shared memory")

    def _open(self, path: bytes, inode: int, flags: int) -> None:
        known = self._known(*self._entry(path))
        if known is None:
            known = self._new(Node())
            self._name(path, known)
        self._numbers[inode] = known
        if flags & os.O_TRUNC:
            self._cut(known, 0)

    def _known(self, directory: int, name: str) -> int | None:
        return (self.nodes[directory].entries or {}).get(name)

    def _cut(self, number: int, size: int) -> None:
        if len(self.nodes[number].content) != size:
            self._do(Cut(number, size))

    def _rename(self, one: bytes, two: bytes, exchange: bool) -> None:
        old, new = self._entry(one), self._entry(two)
        moved, target = self._at(one), self._known(*new)
        left = Entry(*old, moved, target if exchange else None)
        self._do(Naming((left, Entry(*new, target, moved))))

    def _name(self, path: bytes, new: int | None) -> None:
        entry = self._entry(path)
        self._do(Naming((Entry(*entry, self._known(*entry), new),)))

    def _do(self, step: Step) -> None:
        self.steps.append(step)
        apply(self.nodes, step)

    def _new(self, node: Node) -> int:
        number = len(self.nodes)
        self.nodes[number] = node
        self.created[number] = node.copy()
        return number

    def _relative(self, path: bytes) -> str:
        return os.path.relpath(os.fsdecode(path), self._under)

    def _entry(self, path: bytes) -> tuple[int, str]:
        folder, name = os.path.split(self._relative(path))
        return self._walk(folder), name

    def _at(self, path: bytes) -> int:
        return self._walk(self._relative(path))

    def _walk(self, path: str) -> int:
        number = ROOT
        for name in path.split("/"):
            if name not in ("", "."):
                number = (self.nodes[number].entries or {})[name]
        return number

    def _name_of(self, number: int) -> str:
        """Path of a file, for people; "" if it has no name any more."""
        waiting = [(ROOT, "")]
        while waiting:
            folder, path = waiting.pop()
            for name, child in (self.nodes[folder].entries or {}).items():
                if child == number:
                    return path + name
                waiting.append((child, f"{path}{name}/"))
        return ""


def apply(nodes: dict[int, Node], step: Step) -> None:
    """Do a step."""
    if isinstance(step, Naming):
        for entry in step.entries:
            entries = nodes[entry.directory].entries
            assert entries is not None
            entries.pop(entry.name, None)
            if entry.new is not None:
                entries[entry.name] = entry.new
    elif isinstance(step, Write):
        put(nodes[step.node].content, step.offset, step.data)
    elif isinstance(step, Cut):
        resize(nodes[step.node].content, step.size)


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Write into a file; what lies between its end and `offset` becomes zeros."""
    resize(content, max(len(content), offset))
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut a file, or extend it with zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))
