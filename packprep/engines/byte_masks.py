"""Loss masks from the bytes of tokens, for tokenizers whose tokens are the bytes of the text.

The tokens of a byte-level BPE, one after the other, are the text: the sizes of tokens say which
bytes each covers. No text is encoded a second time, which it is elsewhere (see `masks`).
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.engines.backends import Ids, Offsets


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of each token, int32 [ids]. normalizes: text is changed unless it is in NFC."""

    sizes: NDArray[np.int32]
    normalizes: bool

    def mask(
        self,
        ids: Ids,
        offsets: Offsets,
        texts: pa.Array[Any],
        trained: pa.ChunkedArray[Any],
    ) -> NDArray[np.bool_] | None:
        """Mask of the tokens that have a byte of a trained span, [tokens].

        texts: without nulls. trained: see `render_chats`; a row without a list is not trained.
        Returns None if tokens are not the bytes of a text.
        """
        ends = np.cumsum(self.sizes[ids], dtype=np.int64)
        firsts = np.append(0, ends)[offsets]  # bytes of all rows before each row
        if (
            np.diff(firsts) != pc.binary_length(cast("pa.LargeStringArray", texts)).to_numpy()
        ).any():
            return None
        lists: Any = trained.combine_chunks()
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        places = lists.flatten().to_numpy().astype(np.int64)
        stops = np.cumsum(counts)
        for row in np.flatnonzero(
            ~pc.string_is_ascii(cast("pa.LargeStringArray", texts)).to_numpy(zero_copy_only=False)
        ):
            text = texts[int(row)].as_py() or ""
            if self.normalizes and not unicodedata.is_normalized("NFC", text):
                return None
            for place in range(stops[row] - counts[row], stops[row]):
                places[place] = len(text[: places[place]].encode())
        places += np.repeat(firsts[:-1], counts)
        begins, stops = places[::2], places[1::2]
        # Tokens from the first that ends after a beginning to the last that begins before the end.
        bounds = np.empty(len(places), np.int64)
        bounds[::2] = np.searchsorted(ends, begins, "right")
        bounds[1::2] = np.searchsorted(ends[:-1], stops, "left") + (stops > 0)
        # A token may belong to two spans: no bound is before an earlier one.
        bounds = np.concatenate([[0], np.maximum.accumulate(bounds), [len(ids)]])
        flags = np.arange(len(bounds) - 1) % 2 == 1
        mask: NDArray[np.bool_] = np.repeat(flags, np.diff(bounds))
        return mask


def token_bytes(tokenizer_json: bytes) -> TokenBytes | None:
    """Bytes of the tokens of a byte-level BPE that takes every text as it is; None for others."""
    parsed = json.loads(tokenizer_json)
    model, normalizer = parsed["model"], parsed.get("normalizer")
    splitter = parsed.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [splitter])
    added = parsed.get("added_tokens", [])
    if (
        model.get("type") != "BPE"
        or model.get("dropout")
        or normalizer not in (None, {"type": "NFC"})
        or [step for step in steps if step.get("type") not in ("ByteLevel", "Split", "Digits")]
        or [step for step in steps if step.get("behavior") == "Removed"]
        or [step for step in steps if step.get("add_prefix_space")]
        or not [step for step in steps if step.get("type") == "ByteLevel"]
        or [token for token in added if token.get("lstrip") or token.get("rstrip")]
    ):
        return None
    sizes = {id_: len(token) for token, id_ in model["vocab"].items()}
    sizes |= {token["id"]: len(token["content"].encode()) for token in added}
    table = np.zeros(max(sizes, default=0) + 1, np.int32)
    table[[*sizes]] = [*sizes.values()]
    return TokenBytes(table, normalizer is not None)
