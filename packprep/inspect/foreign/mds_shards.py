"""Packs in MDS shards of MosaicML streaming: index.json, and samples with tokens and cu_seqlens."""

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.foreign.result import ForeignResult
from packprep.schemas.canonical import parse_json
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.errors import FormatError
from packprep.schemas.files import inside
from packprep.schemas.findings import Finding

_INDEX = "index.json"
_LARGEST = 2**31


def is_mds(folder: Path) -> bool:
    """True for a folder whose index.json lists MDS shards, or cannot be read."""
    return (folder / _INDEX).is_file() and any(folder.glob("*.mds"))


def check_mds(folder: Path, name: str, result: ForeignResult) -> None:
    """Check the index and every sample of its shards. name: of the folder, for messages."""
    prefix = "" if name == "." else f"{name}/"
    result.count_file(folder / _INDEX)
    try:
        shards = parse_json((folder / _INDEX).read_bytes())["shards"]
        facts = [
            (
                str(shard["raw_data"]["basename"]),
                int(shard["raw_data"]["bytes"]),
                int(shard["samples"]),
                dict(zip(shard["column_names"], shard["column_encodings"], strict=True)),
            )
            for shard in shards
        ]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        what = f"it is not an index of MDS shards: {error!r}"
        result.findings.add(Finding(kind="index", file=prefix + _INDEX, what=what))
        return
    for basename, size, samples, columns in facts:
        try:
            path = inside(folder, basename, prefix + _INDEX)
        except FormatError as error:
            result.findings.add(Finding(kind="index", file=prefix + _INDEX, what=str(error)))
            continue
        _check_shard(path, prefix + basename, size, samples, columns, result)


def _check_shard(
    path: Path, name: str, size: int, samples: int, columns: dict[str, str], result: ForeignResult
) -> None:
    def report(what: str, **place: int) -> None:
        result.findings.add(Finding(kind="shard", file=name, what=what, **place))

    if not path.is_file():
        report("it is missing; index.json lists it")
        return
    result.count_file(path)
    content = path.read_bytes()
    if len(content) != size:
        report(f"it has {len(content)} bytes; index.json says {size}")
        return
    try:
        (count,) = struct.unpack_from("<I", content)
        offsets = struct.unpack_from(f"<{count + 1}I", content, 4)
    except struct.error:
        report("it is too short for the offsets of its samples")
        return
    if count != samples:
        report(f"it has {count} samples; index.json says {samples}")
    if list(offsets) != sorted(offsets) or offsets[-1] != size:
        report(f"offsets of samples fall, or do not end at {size}")
        return
    for number, (first, last) in enumerate(pairwise(offsets)):
        try:
            sample = _arrays(content[first:last], columns)
            problem = _problem(sample, result)
        except (struct.error, ValueError, IndexError, TypeError) as error:
            problem = f"it is no sample of {', '.join(columns)}: {error}"
        if problem:
            report(problem, pack=number)


def _arrays(sample: bytes, columns: dict[str, str]) -> dict[str, NDArray[Any]]:
    """The arrays of a sample. ValueError if sizes or shapes contradict its bytes."""
    sizes = struct.unpack_from(f"<{len(columns)}I", sample)
    at, arrays = 4 * len(columns), {}
    if at + sum(sizes) != len(sample):
        raise ValueError(f"it has {len(sample)} bytes; its columns need {at + sum(sizes)}")
    for (name, encoding), size in zip(columns.items(), sizes, strict=True):
        kind, _, dtype = encoding.partition(":")
        if kind != "ndarray" or not dtype or ":" in dtype:
            raise ValueError(f"{name} has the encoding {encoding}; expected ndarray with a type")
        width = 1 << (sample[at] & 3)
        if sample[at] >> 2 != 1:
            raise ValueError(f"{name} has {sample[at] >> 2} axes; expected 1")
        length = int.from_bytes(sample[at + 1 : at + 1 + width], "little")
        values = np.frombuffer(sample[at + 1 + width : at + size], dtype)
        if len(values) != length:
            raise ValueError(f"{name} has {len(values)} values; its shape says {length}")
        arrays[name], at = values, at + size
    return arrays


def _problem(sample: dict[str, NDArray[Any]], result: ForeignResult) -> str:
    """The first fault of a pack, or ""; a sound pack is counted."""
    if missing := {"tokens", "cu_seqlens"} - sample.keys():
        return f"it has no {', '.join(sorted(missing))}"
    tokens, ends = sample["tokens"].astype(np.int64), sample["cu_seqlens"].astype(np.int64)
    limit = result.vocab_size or _LARGEST
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != len(tokens) or (np.diff(ends) < 1).any():
        return f"cu_seqlens do not rise from 0 to its {len(tokens)} tokens"
    if (wrong := tokens[(tokens < 0) | (tokens >= limit)]).size:
        return f"it has the id {wrong[0]}; expected 0 to {limit - 1}"
    if (labels := sample.get("labels")) is not None:
        if len(labels) != len(tokens):
            return f"it has {len(labels)} labels; expected {len(tokens)}"
        if ((labels < 0) & (labels != NO_LOSS) | (labels >= limit)).any():
            return f"it has a label that is neither {NO_LOSS} nor 0 to {limit - 1}"
    result.packs += 1
    result.segments += len(ends) - 1
    result.tokens += len(tokens)
    return ""
