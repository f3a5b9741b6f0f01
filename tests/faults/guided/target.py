"""A target of the fuzzers: what reads some bytes, what it must give, and sound bytes to begin with.

The law of every target: bytes are read right, or refused with a sentence of packprep. Anything else
that is raised is a finding, and so are a crash, a hang and memory without bound, which only the
process of the fuzzer can see.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packprep.schemas import FormatError
from packprep.support.errors import PackprepError

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader of packprep.

    seeds: sound bytes, made in a folder of their own. check: reads bytes, with an empty folder for
    files, and raises a finding; True if they were read, False if they were refused. mutate: a
    change that leaves the bytes well-formed, beside those of the fuzzer. words: what the format is
    written with.
    """

    seeds: Callable[[Path], Sequence[bytes]]
    check: Callable[[bytes, Path], bool]
    mutate: Mutate | None = None
    words: Sequence[bytes] = ()


def try_target(target: Target, data: bytes, folder: Path) -> bool:
    """Check bytes; True if they were read. Raises a finding."""
    try:
        return target.check(data, folder)
    except (PackprepError, FormatError) as error:
        assert str(error), "a refusal says nothing"
        assert "\n" not in str(error), str(error)
        return False


def joined(*files: bytes) -> bytes:
    """Several files as one input: the size of each in four bytes, then all of them."""
    sizes = b"".join(len(file).to_bytes(4, "little") for file in files)
    return sizes + b"".join(files)


def parted(data: bytes, count: int) -> list[bytes]:
    """The files of `joined`; a size beyond the end gives a shorter file, the last one the rest."""
    at, files = 4 * count, []
    for number in range(count):
        size = int.from_bytes(data[4 * number : 4 * number + 4], "little")
        end = len(data) if number == count - 1 else min(at + size, len(data))
        files.append(data[at:end])
        at = max(at, end)
    return files


def change_part(count: int, mutate: Mutate) -> Mutate:
    """A change of one of the files of `joined`."""

    def mutated(data: bytes, draw: random.Random) -> bytes:
        files = parted(data, count)
        number = draw.randrange(count)
        files[number] = mutate(files[number], draw)
        return joined(*files)

    return mutated
