"""Text of messages that a chat template leaves out of its rendering.

Many templates drop the reasoning of earlier turns, whether it has a field of its own or is the
beginning of `content`. The rows are then trained without it. Nothing is lost from the rendering, so
the ledger of tokens cannot show it; it is counted apart, in characters and tokens, under the key
of the message, whatever the key is.

White space does not count: templates strip it, and put their own between reasoning and answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation, Message
from packprep.chat.marks import (
    UNTOUCHED,
    MessageText,
    Unmarked,
    numbered,
    thought_keys,
    unmark,
    with_strings,
    with_texts,
)
from packprep.chat.special_tokens import Span
from packprep.engines.backends import Engine
from packprep.support.errors import InputError

# Fewer equal characters than this are chance, not a part of a text that the template has written.
_LEAST = 12
# What encloses a thought inside of a content: <think>, [/THINK], <|END_THINKING|>.
_SIGN = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")
_PLAIN = {"role", "content"}

TOOL_NAME = "tool_name"
"""Field of the name of a tool, which most templates write in its call alone."""

LEFT_OUT = pa.list_(
    pa.struct(
        [
            ("message", pa.int32()),
            ("field", pa.string()),
            ("text", pa.large_string()),
            ("in_turn", pa.bool_()),
        ]
    )
)


class LeftOut(NamedTuple):
    """Text of a message that the template does not write.

    field: content, reasoning, tool_calls, TOOL_NAME, or another key of the message. in_turn: True
    if it is of a turn, and the template writes it while no later message follows.
    """

    message: int
    field: str
    text: str
    in_turn: bool = False


class CountedText(NamedTuple):
    """Size of a text that was left out; tokens: of the text encoded alone."""

    row: int
    message: int
    field: str
    characters: int
    tokens: int
    in_turn: bool = False


def count_left_out(rendered: pa.Table, engine: Engine) -> list[CountedText]:
    """Sizes of the texts in the column `left_out` of type LEFT_OUT; rows without text have none."""
    rows, parts = [], []
    for row, kept in enumerate(rendered["text"].is_valid().to_pylist()):
        for part in (rendered["left_out"][row].as_py() or ()) if kept else ():
            rows.append(row)
            parts.append(LeftOut(**part))
    _, offsets = engine.encode(pa.array([part.text for part in parts], pa.large_string()))
    return [
        CountedText(row, part.message, part.field, len(part.text), tokens, part.in_turn)
        for row, part, tokens in zip(rows, parts, np.diff(offsets).tolist(), strict=True)
    ]


def unwritten_parts(
    texts: Sequence[MessageText], rendering: Unmarked, place: Callable[[str], int]
) -> list[str]:
    """The part of each text that the template leaves out.

    texts: of a conversation, each with its mark at `place(text)`. rendering: of that conversation.
    """
    pieces: dict[int, list[tuple[str, str]]] = {}  # text before and after each mark of a text
    for (start, _), (position, number), (stop, _) in _neighbours(rendering):
        beside = rendering.text[start:position], rendering.text[position:stop]
        pieces.setdefault(number, []).append(beside)
    parts, solid = [], _solid(rendering.text)
    for number, text in enumerate(texts):
        cut = place(text.text)
        gone = [
            _without_end(text.text[:cut], before) + _without_beginning(text.text[cut:], behind)
            for before, behind in pieces.get(number, ())
        ]
        left = min(gone, key=len) if gone else _behind_cut(text.text, solid)
        parts.append(left.strip())
    return parts


def not_contained(texts: Iterable[MessageText], rendering: str) -> list[str]:
    """The part of each text that a rendering without marks does not contain."""
    solid = _solid(rendering)
    return ["" if _is_in(solid, text.text) else _behind_cut(text.text, solid) for text in texts]


def without_written(
    conversation: Conversation,
    text: str,
    parts: Sequence[str],
    render: Callable[[Conversation], str],
) -> list[str]:
    """Parts of texts that are left out, without pieces that are written between other signs.

    parts: of each text of the conversation. text: its rendering. A template may write a thought
    inside of a content between signs of its own, in place of <think> and </think>. Marks at both
    ends of each piece between signs show which pieces it writes.
    """
    pieces: dict[int, list[Span]] = {}

    def marked(number: int, value: str) -> str:
        if not parts[number] or not _SIGN.search(value):
            return value
        first = 2 * sum(map(len, pieces.values()))
        spans = pieces[number] = _between_signs(value)
        bounds = [bound for span in spans for bound in span]
        cuts = zip([0, *bounds], [*bounds, len(value)], strict=True)
        return "".join(
            (numbered(first + cut - 1) if cut else "") + value[start:stop]
            for cut, (start, stop) in enumerate(cuts)
        )

    changed, texts = with_texts(conversation, marked)
    left = [*parts]
    if not pieces:
        return left
    try:
        rendering = unmark(render(changed))
    except InputError:
        return left
    if rendering.text != text:
        return left
    shown, solid, first = {number for _, number in rendering.marks}, _solid(text), 0
    for number, spans in pieces.items():
        value = texts[number].text
        gone = [
            not {first + 2 * piece, first + 2 * piece + 1} <= shown
            or not _is_in(solid, value[start:stop])
            for piece, (start, stop) in enumerate(spans)
        ]
        left[number] = min(left[number], _stretches(value, spans, gone), key=len)
        first += 2 * len(spans)
    return left


def unwritten_keys(
    conversation: Conversation, text: str, render: Callable[[Conversation], str], first: int = 0
) -> list[LeftOut]:
    """Texts under other keys of messages (names, and any key) that a template does not write.

    text: of the conversation, without marks. first: a number that no mark of it reaches. A
    template whose text differs with marks under a key compares what is there, so it uses it.
    """
    keys = {key: None for message in conversation.messages for key in _other_keys(message)}
    left = _unwritten([*keys], conversation, text, render, first)
    if left is not None:
        return left
    of_keys = (_unwritten([key], conversation, text, render, first) for key in keys)
    return sorted(part for parts in of_keys for part in parts or ())


def all_but_content(conversation: Conversation) -> list[LeftOut]:
    """Texts under all keys of messages but their content, where no other key is read."""
    _, texts = with_texts(conversation, lambda _, value: value)
    parts = [LeftOut(*text) for text in texts if text.field != "content" and text.text.strip()]
    return sorted([*parts, *unwritten_keys(conversation, "", lambda _: "")])


def without_repeated(parts: Sequence[LeftOut], texts: Sequence[MessageText]) -> list[LeftOut]:
    """Parts of other keys, without those that the texts of their own message contain.

    A message may have its content once more under another key.
    """
    solid: dict[int, str] = {}
    for number in {part.message for part in parts if len(part.text) >= _LEAST}:
        solid[number] = "\0".join(_solid(text.text) for text in texts if text.message == number)
    return [part for part in parts if not _is_in(solid.get(part.message, ""), part.text)]


def with_own_turns(
    conversation: Conversation,
    text: str,
    parts: Sequence[LeftOut],
    render: Callable[[Conversation], str],
) -> list[LeftOut]:
    """The same parts; `in_turn` is set where the rendering up to its turn has a part.

    text: of the conversation. parts: of content, reasoning and calls.
    """
    messages = conversation.messages
    turns = {part.message for part in parts if messages[part.message]["role"] in ASSISTANT_ROLES}
    solid: dict[int, str] = {}
    for number in sorted(turns - {*conversation.untrained, len(messages) - 1}):
        with suppress(InputError):
            until = render(replace(conversation, messages=messages[: number + 1]))
            solid[number] = "" if text.startswith(until) else _solid(until)
    return [
        part._replace(in_turn=part.message in solid and _is_in(solid[part.message], part.text))
        for part in parts
    ]


def _unwritten(
    keys: Collection[str],
    conversation: Conversation,
    text: str,
    render: Callable[[Conversation], str],
    first: int,
) -> list[LeftOut] | None:
    """Texts under these keys that are not written; None if marks there change the rendering."""
    texts: list[LeftOut] = []

    def marked(number: int, key: str, value: Any) -> Any:
        role = conversation.messages[number]["role"]
        field = TOOL_NAME if key == "name" and role in TOOL_ROLES else key

        def with_mark(string: str) -> str:
            if not string.strip():
                return string
            texts.append(LeftOut(number, field, string))
            return string + numbered(first + len(texts) - 1)

        return with_strings(value, with_mark)

    messages: list[Any] = []
    for number, message in enumerate(conversation.messages):
        others = [key for key in _other_keys(message) if key in keys]
        changed = {key: marked(number, key, message.get(key)) for key in others}
        messages.append({**message, **changed})
    if not texts:
        return []
    try:
        rendering = unmark(render(replace(conversation, messages=messages)))
    except InputError:
        return None
    if rendering.text != text:
        return None
    written = {number - first for _, number in rendering.marks}
    return [part for number, part in enumerate(texts) if number not in written]


def _other_keys(message: Message) -> list[str]:
    """Keys of a message that are none of `with_texts`, and may hold text."""
    if len(message) == len(_PLAIN) and message.keys() == _PLAIN:
        return []
    known = {"content", "tool_calls", *UNTOUCHED, *thought_keys(message)}
    return [key for key in message if key not in known]


def _neighbours(rendering: Unmarked) -> Iterator[tuple[tuple[int, int], ...]]:
    """Each mark, between the one before it and the one after it."""
    marks = [*rendering.marks, (len(rendering.text), -1)]
    return zip(marks, marks[1:], marks[2:], strict=False)


def _without_end(text: str, written: str) -> str:
    """The text without what `written` ends with: an end of it, or a beginning and an end."""
    solid = _solid(written)
    for form in _forms(text):
        if solid.endswith(_solid(form)):
            return ""
    wanted = _solid(text)
    ending = _longest(len(wanted), lambda size: solid.endswith(wanted[len(wanted) - size :]))
    rest, solid = wanted[: len(wanted) - ending], solid[: len(solid) - ending]
    beginning = 0
    if len(rest) >= _LEAST:
        place = solid.find(rest[:_LEAST])
        if place >= 0 and rest.startswith(solid[place:]):
            beginning = len(solid) - place
    return _between(text, beginning, len(rest))


def _without_beginning(text: str, written: str) -> str:
    return _without_end(text[::-1], written[::-1])[::-1]


def _behind_cut(text: str, solid: str) -> str:
    """The text after the longest beginning that is written; all of it where none is.

    solid: a rendering, without white space.
    """
    wanted = _solid(text)
    size = _longest(len(wanted), lambda size: wanted[:size] in solid)
    return _between(text, size if _LEAST <= size < len(wanted) else 0, len(wanted))


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest size for which `holds`, which also holds for all smaller ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _is_in(solid: str, text: str) -> bool:
    """True if a rendering, given without white space, has a text."""
    return any(_solid(form) in solid for form in _forms(text))


def _between_signs(text: str) -> list[Span]:
    """Spans of the text between signs, without white space at their ends; no blank ones."""
    bounds = [0, *(bound for match in _SIGN.finditer(text) for bound in match.span()), len(text)]
    spans = []
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        piece = text[start:stop]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return spans


def _stretches(text: str, spans: Sequence[Span], gone: Sequence[bool]) -> str:
    """The pieces of a text that are gone, with the signs around them."""
    begins = [0, *(stop for _, stop in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    runs = [[*run] for is_gone, run in groupby(range(len(spans)), gone.__getitem__) if is_gone]
    return "".join(text[begins[run[0]] : ends[run[-1] + 1]].strip() for run in runs)


def _forms(text: str) -> tuple[str, str]:
    """The text, and how a template writes it inside of JSON."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1]


def _solid(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())


def _between(text: str, first: int, last: int) -> str:
    """The text from its character `first` to before `last`, counted without white space."""
    if first == last:
        return ""
    places = [match.start() for match in islice(re.finditer(r"\S", text), first, last)]
    return text[places[0] : places[-1] + 1]
