"""Prompt and response joined as they are, for a tokenizer without a chat template.

The ids of a row are BOS, the prompt's, the response's, EOS; the response and the EOS are trained.
Both texts are encoded separately, so no token covers part of each: a model sees the prompt's ids
and has to continue with the response's. A tokenizer that puts a space before a text (SentencePiece)
puts none before a response that follows a prompt. Text that spells a special token stays text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.chat.conversations import Conversation
from packprep.chat.left_out import all_but_content
from packprep.chat.masks import ChatTokens
from packprep.chat.special_tokens import Span, Specials
from packprep.chat.template import RenderError
from packprep.chat.turns import Rendered
from packprep.engines.backends import Engine, Ids, Offsets, reference_tokenizer


class PlainFinder:
    """Joins prompt and response; takes the place of a `TurnFinder`.

    specials: every special token of the tokenizer.
    """

    def __init__(self, specials: Iterable[str]) -> None:
        self._tokens = Specials(specials, None)

    def render(self, conversation: Conversation) -> Rendered:
        """The two texts as one, with the response trained.

        Raises RenderError where a row is not exactly two texts.
        """
        texts = [message.get("content") for message in conversation.messages]
        extras = conversation.tools or conversation.variables or conversation.untrained
        if extras or [message["role"] for message in conversation.messages] != [
            "user",
            "assistant",
        ]:
            texts = []
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise RenderError(
                "without a chat template a row must be two texts, prompt and response; give a "
                "template with --chat-template"
            )
        prompt, response = map(str, texts)
        text = prompt + response
        specials: list[Span] | None = [] if self._tokens.spans(text) else None
        return Rendered(text, [(len(prompt), len(text))], specials, all_but_content(conversation))

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """All of the keys: texts alone are read. A thought has one of its names."""
        return {*keys} - ({"thinking", "reasoning"} if "reasoning_content" in keys else set())


@dataclass(frozen=True)
class Prompted:
    """Prompts and responses of rows, as tokens.

    tokens: of the rows.
    pieces, ids, offsets: input and output of the engine, for comparing it with the reference;
    prompts and responses in turn, empty where the reference encoded the row.
    """

    tokens: ChatTokens
    pieces: pa.LargeStringArray
    ids: Ids
    offsets: Offsets


def encode_prompted(rendered: pa.Table, engine: Engine, tokenizer_json: bytes) -> Prompted:
    """Ids and mask of rows that `PlainFinder` rendered; a row without text has no tokens.

    engine: parses special tokens. The reference tokenizer encodes the rows that spell one (see
    `specials`), and all rows where the tokenizer puts a space before a text.
    """
    initial, following = _tokenizers(tokenizer_json)
    texts = [text or "" for text in rendered["text"].to_pylist()]
    starts = [spans[0] if spans else 0 for spans in rendered["trained"].to_pylist()]
    pieces = [
        piece
        for text, start in zip(texts, starts, strict=True)
        for piece in (text[:start], text[start:])
    ]
    by_reference = np.full(len(texts), initial is not following)
    by_reference |= rendered["specials"].is_valid().to_numpy()
    by_engine = pa.array(
        ["" if by_reference[number // 2] else piece for number, piece in enumerate(pieces)],
        pa.large_string(),
    )
    engine_ids, engine_offsets = ids, offsets = engine.encode(by_engine)
    if by_reference.any():
        lists = np.split(ids, offsets[1:-1])
        for row in np.flatnonzero(by_reference).tolist():
            prompt, response = pieces[2 * row : 2 * row + 2]
            lists[2 * row] = _ids(initial, prompt)
            lists[2 * row + 1] = _ids(following if prompt else initial, response)
        ids = np.concatenate(lists)
        offsets = np.append(0, np.cumsum([len(part) for part in lists]))
    trained = np.repeat(np.tile([False, True], len(texts)), np.diff(offsets))
    return Prompted(ChatTokens(ids, offsets[::2], trained), by_engine, engine_ids, engine_offsets)


def _ids(tokenizer: Any, text: str) -> Ids:
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


@lru_cache(maxsize=4)
def _tokenizers(tokenizer_json: bytes) -> tuple[Any, Any]:
    """The reference tokenizer for text that begins a document, and for text that follows.

    Both are the same object where they do not differ. Neither parses special tokens.
    """
    parsed = json.loads(tokenizer_json)
    changed = parsed | {
        key: _without_space(parsed.get(key)) for key in ("normalizer", "pre_tokenizer")
    }
    loaded = [
        reference_tokenizer(json.dumps(settings).encode(), parse_special_tokens=False)
        for settings in ([parsed] if changed == parsed else [parsed, changed])
    ]
    return loaded[0], loaded[-1]


def _without_space(part: dict[str, object] | None) -> dict[str, object] | None:
    """A normalizer or pre-tokenizer that puts no space before a text.

    None for one that only puts the space.
    """
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Sequence":
        key = "normalizers" if "normalizers" in part else "pretokenizers"
        inner: Any = part[key]
        return part | {key: [kept for each in inner if (kept := _without_space(each)) is not None]}
    if part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never":
        others = {name: value for name, value in part.items() if name != "add_prefix_space"}
        return others | {"prepend_scheme": "never"}
    if part["type"] == "ByteLevel" and part.get("add_prefix_space"):
        return part | {"add_prefix_space": False}
    return part
