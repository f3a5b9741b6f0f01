"""The losses of segments while training: one file per rank, which only grows.

LOG/rank-00000.losses: the line `packprep losses 1`, the fingerprint of the packs (uint64), then a
record for each batch:

    bytes of the rest after the digest (uint32), crc32 of the rest (uint32)
    step (uint64), number of packs P (uint32)
    pack numbers, 0xFFFFFFFF for filler (uint32 [P]), segments of each (uint32 [P])
    losses of their segments (float16)

All little-endian: 2 bytes for a segment, 8 for a pack and 20 for a batch. A process that is killed
leaves a torn record at the end at most, which is left out. A record without packs says that another
process writes from there on; of steps that it trains again, its records count.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError

LOSSES = ".losses"
_MAGIC = b"packprep losses 1\n"
_HEADER = len(_MAGIC) + 8
_HEAD = np.dtype([("bytes", "<u4"), ("crc", "<u4")])
_BATCH = np.dtype([("step", "<u8"), ("packs", "<u4")])
_FILLER = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class LoggedLosses:
    """Losses of segments, [segments] each, in the order of their steps, ranks and packs.

    step: of training. pack: number in the split, over the packings of all epochs. segment: number
    in the pack. segments: number that the pack had. loss: float32.
    """

    step: NDArray[np.int64]
    pack: NDArray[np.int64]
    segment: NDArray[np.int64]
    segments: NDArray[np.int64]
    loss: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.step)

    def take(self, at: NDArray[Any]) -> "LoggedLosses":
        """Some of the segments."""
        return LoggedLosses(**{name: values[at] for name, values in vars(self).items()})


def header_of(fingerprint: int) -> bytes:
    """The beginning of a file. fingerprint: of the packs."""
    return _MAGIC + fingerprint.to_bytes(8, "little")


def record_of(
    step: int, packs: NDArray[Any], segments: NDArray[Any], losses: NDArray[Any]
) -> bytes:
    """The record of a batch.

    packs, segments: [packs], number of each pack, -1 for filler, and of its segments. losses: of
    all these segments.
    """
    rest = np.array([(step, len(packs))], _BATCH).tobytes()
    rest += packs.astype(np.uint32).tobytes() + segments.astype(np.uint32).tobytes()
    with np.errstate(over="ignore"):  # too large is inf
        rest += losses.astype("<f2").tobytes()
    return np.array([(len(rest), zlib.crc32(rest))], _HEAD).tobytes() + rest


def read_fingerprint(content: bytes, where: str) -> int | None:
    """The fingerprint that a file begins with; None if not even that was written.

    Raises FormatError if it is no log.
    """
    if not content[: len(_MAGIC)] == _MAGIC[: len(content)]:
        raise FormatError(
            f"{where} is not a log of losses; expected a file that LossLog has written"
        )
    return (
        int.from_bytes(content[len(_MAGIC) : _HEADER], "little")
        if len(content) >= _HEADER
        else None
    )


def sound_records(content: bytes, where: str) -> Iterator[tuple[int, int]]:
    """Begin and end of the rest of each record, without a torn one at the end.

    Raises FormatError for damage before the end.
    """
    at = _HEADER
    while at + _HEAD.itemsize <= len(content):
        size, digest = np.frombuffer(content, _HEAD, 1, at)[0].tolist()
        begin, end = at + _HEAD.itemsize, at + _HEAD.itemsize + size
        if end > len(content):
            return
        if zlib.crc32(content[begin:end]) != digest:
            if end == len(content):
                return
            raise FormatError(
                f"{where} is damaged at byte {at:,}; restore the file, or delete it to read those "
                "of the other ranks"
            )
        yield begin, end
        at = end


def read_losses(files: Sequence[Path]) -> LoggedLosses:
    """The losses in the files of all ranks. FormatError for damage."""
    parts: list[tuple[Any, ...]] = []
    for file in files:
        content, of_file = file.read_bytes(), list[tuple[Any, ...]]()
        read_fingerprint(content, str(file))
        continued = False
        for begin, end in sound_records(content, str(file)):
            step, count = np.frombuffer(content, _BATCH, 1, begin)[0].tolist()
            packs, segments = np.frombuffer(
                content, "<u4", 2 * count, begin + _BATCH.itemsize
            ).reshape(2, count)
            losses = np.frombuffer(content[begin + _BATCH.itemsize + 8 * count : end], "<f2")
            if len(losses) != segments.sum():
                raise FormatError(
                    f"{file} has {len(losses):,} losses of step {step:,}; expected "
                    f"{segments.sum():,}, those of its packs; restore the file"
                )
            if not count:
                continued = True
                continue
            if of_file and (continued or of_file[-1][0] > step):
                of_file = [part for part in of_file if part[0] < step]
            continued = False
            of_file.append((step, packs, segments, losses))
        parts += of_file
    parts.sort(key=lambda part: part[0])  # stable: by rank within a step
    steps, numbers, counts, rows = ([part[column] for part in parts] for column in range(4))
    of_pack = np.concatenate([np.empty(0, np.int64), *counts])
    ends = np.cumsum(of_pack)
    pack = np.repeat(np.concatenate([np.empty(0, np.int64), *numbers]), of_pack)
    every = LoggedLosses(
        step=np.repeat(np.array(steps, np.int64), np.array([*map(len, rows)], np.int64)),
        pack=pack,
        segment=np.arange(len(pack)) - np.repeat(ends - of_pack, of_pack),
        segments=np.repeat(of_pack, of_pack),
        loss=np.concatenate([np.empty(0, np.float32), *rows]).astype(np.float32),
    )
    return every.take(np.flatnonzero(pack != _FILLER))
