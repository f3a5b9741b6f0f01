"""Shards whose tokens are numbered: a pack is known by any of them, whatever reads it."""

from pathlib import Path

import numpy as np

from packprep.loaders import PackedShards

from .tiny_shards import PLAIN, Row, write_output


def numbered_shards(path: Path, packs: int, shards: int = 3, max_length: int = 8) -> PackedShards:
    """Packs of 8 tokens or fewer in documents of 3, 2 and up to 3 tokens; ids are 1, 2, 3, ..."""
    rows: list[Row] = []
    token = 1
    for pack in range(packs):
        lengths = [3, 2, 1 + pack % 3]
        count = sum(lengths)
        starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
        rows.append(
            {
                "tokens": [*range(token, token + count)],
                "position_ids": (np.arange(count) - starts).tolist(),
                "cu_seqlens": np.cumsum([0, *lengths]).tolist(),
                "document_ids": [3 * pack, 3 * pack + 1, 3 * pack + 2],
                "document_starts": [0, 0, 0],
            }
        )
        token += count
    each = -(-packs // shards)
    parts = [rows[first : first + each] for first in range(0, packs, each)]
    splits = {"train": parts}
    write_output(
        path, splits, PLAIN, vocab_size=token, max_length=max_length, source_documents=3 * packs
    )
    return PackedShards(path)
