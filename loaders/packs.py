"""Packs of an output of packprep: one file to copy into a trainer, with numpy and pyarrow alone.

    packs = Packs("out")
    for place, pack in rank_packs(packs, seed=0, epoch=0, rank=rank, world_size=world_size):
        pack["tokens"], pack["position_ids"]    # int64 [T]; positions begin at 0 in each segment
        pack["cu_seqlens"]                      # int32 [S + 1]: 0, then the end of each segment

A pack has every column of the output. Without a column "labels", they are the tokens, with -100
where a segment begins. `place` counts the packs of all ranks: save it, and pass it to resume after
this pack, at any world size. All ranks have equally many packs; what is less than one for each is
left out. The order is that of packprep's PackedLoader at equal seed, epoch, rank and world size.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

WINDOW = 4  # shards whose packs are mixed


class Packs:
    """The packs of a split in stored order: `packs[i]` is a dict of arrays.

    split: its name; required if the output has several. views: ids and positions are views of the
    mapped file, of its types, and not int64.
    """

    def __init__(self, path: str | Path, split: str | None = None, *, views: bool = False) -> None:
        data = json.loads(Path(path, "manifest.json").read_bytes())["data"]
        if data["format_version"] != 3 or data["plan"] is not None:
            raise ValueError(f"{path} is a plan, or not of format 3; read it with PackedLoader")
        splits = [split] if split else [*data["splits"]]
        if len(splits) > 1 or splits[0] not in data["splits"]:
            raise ValueError(f"{path} has the splits {', '.join(data['splits'])}; pass one of them")
        shards = [file for file in data["files"] if file.get("split") == splits[0]]
        self.files = [Path(path, shard["path"]) for shard in shards]
        for file, shard in zip(self.files, shards, strict=True):
            if (size := file.stat().st_size) != shard["bytes"]:
                raise ValueError(f"{file} has {size} bytes; the manifest says {shard['bytes']}")
        self.firsts = [*accumulate((int(shard["packs"]) for shard in shards), initial=0)]
        self.columns, self.views = data["columns"], views
        self.opened = dict[int, tuple[list[int], list[Any]]]()

    def __len__(self) -> int:
        return self.firsts[-1]

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} of {len(self)}")
        shard = bisect_right(self.firsts, number) - 1
        firsts, batches = self.opened.get(shard) or self._open(shard)
        batch = bisect_right(firsts, number) - 1
        row, pack = number - firsts[batch], {}
        for name, (offsets, values) in batches[batch].items():
            pack[name] = values[offsets[row] : offsets[row + 1]]
        if "seq_lengths" in pack:  # of --columns hf
            pack["cu_seqlens"] = np.append(0, pack.pop("seq_lengths").cumsum()).astype(np.int32)
        if "position_ids" not in pack:
            ends = pack["cu_seqlens"].astype(np.int64)
            pack["position_ids"] = np.arange(ends[-1]) - ends[:-1].repeat(np.diff(ends))
        for name in () if self.views else ("tokens", "position_ids", "labels"):
            if name in pack:
                pack[name] = pack[name].astype(np.int64)
        return pack

    def _open(self, shard: int) -> tuple[list[int], list[Any]]:
        """Map a shard: the first pack of each record batch, and its columns."""
        with pa.memory_map(str(self.files[shard])) as file:
            batches = [*pa.ipc.open_stream(file.read_buffer())]
        firsts = [*accumulate(map(len, batches), initial=self.firsts[shard])]
        views = [{c["makes"] or c["name"]: view(b, c) for c in self.columns} for b in batches]
        return self.opened.setdefault(shard, (firsts, views))


def view(batch: Any, column: dict[str, Any]) -> tuple[Any, Any]:
    """Offsets and values of a list column, in the memory of the file."""
    buffers, dtype = batch.column(column["name"]).buffers(), np.dtype(column["dtype"])
    return np.frombuffer(buffers[1], np.int32), np.frombuffer(buffers[3], dtype)


def rank_packs(
    packs: Packs, *, seed: int, epoch: int, rank: int, world_size: int, place: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Packs of a rank in the order of an epoch, each with the place after it."""
    first = 0  # place of the first pack of a window
    for numbers in windows(packs, seed, epoch):
        while place + rank < first + len(numbers):
            if place + world_size > len(packs):
                return
            number = numbers[place + rank - first]
            place += world_size
            yield place, packs[number]
        first += len(numbers)


def windows(packs: Packs, seed: int, epoch: int) -> Iterator[list[int]]:
    """Numbers of all packs: those of WINDOW shards mixed, then those of the next."""
    key = hashed(hashed(np.array([seed % 2**64], np.uint64)) + np.uint64(epoch))
    shards = shuffled(np.arange(len(packs.files)), key + np.uint64(1))
    for at in range(0, len(shards), WINDOW):
        each = [np.arange(*packs.firsts[shard : shard + 2]) for shard in shards[at : at + WINDOW]]
        yield shuffled(np.concatenate(each), key + np.uint64(2)).tolist()


def shuffled(values: Any, key: Any) -> Any:
    """Sort values by a keyed hash: an order that no version of a library changes."""
    hashes = hashed(values.astype(np.uint64) + hashed(key))
    return values[np.argsort(hashes, kind="stable")]


def hashed(x: Any) -> Any:
    """Return the splitmix64 of each number."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
