"""Damage on purpose, and how it is read.

A target of `scripts/fuzz` is what reads some bytes, and what it must give: bytes are read right, or
refused with a sentence of packprep. Anything else that is raised is a finding, and so are a crash,
a hang and memory without bound, which only the process of the fuzzer can see.
"""

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import (
    STANDARD_COLUMNS,
    FormatError,
    canonical_json,
    check_files,
    digest_of,
    read_manifest,
)
from packprep.schemas.canonical import file_digest
from packprep.support.errors import PackprepError

from .kinds import write_arrow

# Values that break what expects a count, a name or a list.
_NAMES = "a é train validation manifest.json .. ../a /etc/passwd data-00000-of-00001.arrow"
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308),
    *("", "\0", "\u2028", "0" * 64, "x" * 300, *_NAMES.split()),
    *([], {}, [[]], [None], {"": 0}),
)


def read_everything(directory: Path) -> str:
    """Outcome, "read" or "refused", after all that the readers offer was asked of the directory."""
    outcome = "read"
    with _refusals() as refused:
        manifest = read_manifest(directory)
        for level in ("size", "sha256"):
            check_files(directory, manifest, level)
        names: list[str | None] = list(manifest.splits)
    if refused:
        outcome, names = "refused", [None, "train"]
    for split in names:
        for verify in (False, True):
            with _refusals() as refused:
                _read_packs(directory, split, verify)
            outcome = "refused" if refused else outcome
    return outcome


def _read_packs(directory: Path, split: str | None, verify: bool) -> None:
    try:
        shards = PackedShards(directory, split=split, verify=verify)
    except FormatError:
        raise
    # a split that is not there, or nothing to verify: the caller's mistake, not the file's
    except ValueError as error:
        if "split" not in str(error) and "no manifest" not in str(error):
            raise
        return
    for pack in shards:
        assert all(np.isfinite(values.astype(np.float64).sum()) for values in pack.columns.values())
        assert len(pack.position_ids) == len(pack.tokens)
        assert all(segment.tokens.sum() is not None for segment in pack.segments())
    for name in ("max_length", "fingerprint", "column_kinds", "column_dtypes", "segment_multiple"):
        getattr(shards, name)
    if len(shards) and shards.max_length <= 1 << 20:  # a batch has that many tokens
        loader = PackedLoader(shards, packs_per_batch=1, shuffle=True)
        assert all(len(batch.tokens) for batch, _ in zip(loader, range(3), strict=False))
    with _refusals():
        assert shards.report is not None


@contextlib.contextmanager
def _refusals() -> Iterator[list[str]]:
    """Catches the one error that readers may raise, and keeps its sentence."""
    refused: list[str] = []
    try:
        yield refused
    except FormatError as error:
        refused.append(str(error))
        assert "\n" not in str(error), str(error)


# Changes of bytes and values ----------------------------------------------------------------


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, removed, repeated or added, or the end cut off."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(content) + 1)
        size = draw.choice((1, 2, 4, 8, 64))
        match draw.randrange(9):
            case 0 | 1:
                content[at : at + size] = b""
            case 2 | 3:
                content[at:at] = content[at : at + size]
            case 4 | 5 if at < len(content):
                content[at] ^= 1 << draw.randrange(8)
            case 6:
                del content[at:]
            case _:
                content[at : at + size] = draw.randbytes(size)
    return bytes(content)


def change_json(data: bytes, draw: random.Random) -> bytes:
    """JSON with one value changed, removed or added; other bytes with a few of them changed."""
    try:
        value: Any = json.loads(data)
        for _ in range(draw.choice((1, 1, 2))):
            value = changed(value, draw)
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    except (ValueError, RecursionError):
        return change_bytes(data, draw)


def changed(value: Any, draw: random.Random) -> Any:
    """A copy with one place changed."""
    value = copy.deepcopy(value)
    place = {"": value}
    holder: Any = place
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.85:
        holder = holder[key]
        key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match draw.randrange(6):
        case 0 if holder is not place:
            del holder[key]
        case 1 if isinstance(holder, dict):
            name = draw.choice(("", "a", "path", "packs", "bytes", "sha256", f"{key}x"))
            holder[name] = draw.choice(_ODD)
        case 2 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case 3 if isinstance(holder[key], int):
            holder[key] += draw.choice((-1, 1, 1000))
        case _:
            holder[key] = draw.choice(_ODD)
    return place[""]


def write_signed(path: Path, value: Any) -> None:
    """Canonical, and a manifest with the digests that its values give: damage, not noise."""
    if path.name == "manifest.json" and isinstance(value, dict) and {"data", "run"} <= set(value):
        data = value["data"]
        if isinstance(data, dict) and isinstance(data.get("inputs"), dict):
            data["identity"] = digest_of(data["inputs"])
        value["sha256"] = digest_of({"data": data, "run": value["run"]})
    try:
        path.write_bytes(canonical_json(value))
    except ValueError:
        path.write_text(json.dumps(value))


def sign(directory: Path) -> None:
    """Sizes and digests of all files as they are now, into the manifest."""
    try:
        value = json.loads((directory / "manifest.json").read_bytes())
        for entry in [*value["data"]["files"], *value["run"]["files"]]:
            path = directory / entry["path"]
            if path.is_file():
                entry |= {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    except (ValueError, KeyError, TypeError, OSError):
        return
    write_signed(directory / "manifest.json", value)


_INT = pa.list_(pa.int32())
_TYPES: list[pa.DataType] = [
    *([_INT] * 6),
    *(pa.list_(each) for each in (pa.int64(), pa.float32(), pa.string(), _INT)),
    *(pa.large_list(pa.int32()), pa.int32(), pa.string(), pa.null(), pa.list_(pa.int32(), 2)),
]
_COLUMNS = [*[*STANDARD_COLUMNS][:7], "seq_lengths", "input_ids"]


def other_shard(data: bytes, draw: random.Random) -> bytes:
    """A sound Arrow stream of other columns, types, nulls and lengths, or a few bytes changed."""
    if draw.random() < 0.5:
        return change_bytes(data, draw)
    chosen = draw.sample(_COLUMNS, draw.randrange(len(_COLUMNS) + 1))
    chosen += draw.choices(_COLUMNS, k=draw.randrange(2))
    rows = range(draw.randrange(4))
    kinds = draw.choices(_TYPES, k=len(chosen))
    columns = [pa.array([_value(kind, draw) for _ in rows], kind) for kind in kinds]
    return write_arrow(pa.Table.from_arrays(columns, names=chosen))


def _value(kind: pa.DataType, draw: random.Random) -> Any:
    if draw.random() < 0.05 or pa.types.is_null(kind):
        return None
    if pa.types.is_nested(kind):
        element: pa.DataType = getattr(kind, "value_type", pa.null())
        size = getattr(kind, "list_size", draw.randrange(5))
        return [_value(element, draw) for _ in range(size)]
    if pa.types.is_string(kind):
        return draw.choice(("", "a"))
    return draw.choice((0, 0, 1, 2, 3, 4, 8, -1, -100, 2**24))


# Targets of scripts/fuzz --------------------------------------------------------------------

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
