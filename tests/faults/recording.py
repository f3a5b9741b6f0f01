"""A recording of what a command does to the files under one directory; calls.c makes it.

It is a list of steps on numbered nodes. A node is a file or a directory, whatever names it
has; node 0 is the directory itself. The steps in order turn `before` into `after`.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from ctypes import CDLL, c_char_p
from dataclasses import dataclass, field
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


Step = Naming | Write | Cut | Sync


@dataclass(frozen=True)
class Recording:
    """Steps of a command. nodes: as they were before it, and new ones as they began."""

    nodes: dict[int, Node]
    steps: tuple[Step, ...]
    after: Tree

    @property
    def before(self) -> Tree:
        return tree(self.nodes)


class Recorder:
    """Arms the recorder in a forked process and in those that it starts; replays its log."""

    def __init__(self, log: Path, under: Path) -> None:
        self._log, self._under = log, under
        log.write_bytes(bytes(_LOCK))
        self._begun, self._numbers = _nodes_on_disk(under)
        self._nodes = {number: node.copy() for number, node in self._begun.items()}
        self._steps: list[Step] = []

    def arm(self) -> None:
        os.environ |= {"RECORD_LOG": str(self._log), "RECORD_UNDER": str(self._under)}
        paths = (c_char_p(os.fsencode(path)) for path in (self._log, self._under))
        CDLL(None).record_arm(*paths)

    def recording(self) -> Recording:
        """What was done. AssertionError if it does not explain what is on the disk."""
        for record in _records(self._log):
            self._take(*record)
        after = tree(self._nodes)
        assert after == read_tree(self._under), "the recorder has missed a call"
        return Recording(self._begun, tuple(self._steps), after)

    def _take(self, kind: str, inode: int, number: int, one: bytes, two: bytes) -> None:
        if kind == "O":
            self._open(one, inode, number)
        elif kind == "w":
            self._do(Write(self._numbers[inode], number, one))
        elif kind == "t":
            self._cut(self._numbers[inode], number)
        elif kind == "s":
            self._do(Sync(self._at(one) if one else self._numbers[inode]))
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
        return (self._nodes[directory].entries or {}).get(name)

    def _cut(self, number: int, size: int) -> None:
        if len(self._nodes[number].content) != size:
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
        self._steps.append(step)
        apply(self._nodes, step)

    def _new(self, node: Node) -> int:
        number = len(self._nodes)
        self._nodes[number], self._begun[number] = node, node.copy()
        return number

    def _entry(self, path: bytes) -> tuple[int, str]:
        folder, name = os.path.split(path)
        return self._at(folder), os.fsdecode(name)

    def _at(self, path: bytes) -> int:
        number = ROOT
        for name in Path(os.path.relpath(os.fsdecode(path), self._under)).parts:
            number = (self._nodes[number].entries or {})[name]
        return number


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
