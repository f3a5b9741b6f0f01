"""Receipts of windows: JSON with a digest of itself, written after the shards."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..plan.account import Sums
from ..schemas.canonical import parse_signed, signed_json
from ..schemas.files import file_digest, write_file
from ..support.records import from_json


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """A shard as it was written. batches: place in the file, first pack of each record batch."""

    name: str
    split: str
    bytes: int
    sha256: str
    packs: int
    segments: int
    tokens: int
    batches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class WindowFile:
    """Receipt of a window.

    made_from: digest of all that decides its bytes. sums: account by number of source, -1 is of no
    source. figures: its row in report.json. sizes: packs by their number of segments.
    """

    made_from: str
    window: int
    split: str
    shards: tuple[ShardFile, ...]
    sums: Mapping[int, Mapping[str, Any]]
    figures: Mapping[str, Any]
    sizes: Mapping[int, int]

    @property
    def account(self) -> dict[int, Sums]:
        """The sums."""
        return {number: Sums.from_json(sums) for number, sums in self.sums.items()}


def write_receipt(path: Path, receipt: WindowFile) -> None:
    """Write a receipt whole or not at all."""
    value = json.loads(json.dumps(asdict(receipt)))
    write_file(path, signed_json(value))


def read_window(path: Path, shards: Path, made_from: str) -> WindowFile | None:
    """A receipt whose shards are all there and intact, made from this; else None.

    shards: their folder.
    """
    try:
        receipt = from_json(WindowFile, parse_signed(path.read_bytes(), str(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if receipt.made_from != made_from:
        return None
    for shard in receipt.shards:
        file = shards / shard.name
        if not file.exists() or file.stat().st_size != shard.bytes:
            return None
        if file_digest(file) != shard.sha256:
            return None
    return receipt
