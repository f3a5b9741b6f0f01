"""Text of messages that a chat template leaves out of its rendering.

Many templates drop the reasoning of earlier turns, whether it has a field of its own or is the
beginning of `content`. The rows are then trained without it. Nothing is lost from the rendering, so
the ledger of tokens cannot show it; it is counted apart, under the key of the message. White space
does not count: templates strip it, and put their own between reasoning and answer.
"""

import json
import re
from collections.abc import Callable, Iterator

from .marks import MARKS, UNTOUCHED, thought_keys, with_texts
from .special_tokens import strings
from .types import TOOL_ROLES, Conversation, LeftOut

TOOL_NAME = "tool_name"
"""Field of the name of a tool, which most templates write in its call alone."""
_LEAST = 12  # fewer equal characters are chance, not a part that the template has written
# What encloses a thought inside of a content: <think>, [/THINK], <|END_THINKING|>.
_SIGN = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")


def left_out(
    conversation: Conversation, rendering: str, is_named: Callable[[str], bool]
) -> list[LeftOut]:
    """Parts of the texts of a conversation that its rendering does not have.

    Where texts and rendering have marks, a short text is not found in the text of another.
    is_named: False for a key that the template does not know, which is said elsewhere.
    """
    solid = _solid(rendering)
    _, texts = with_texts(conversation, lambda _, text: text)
    parts = [LeftOut(*text[:2], unwritten(text.text, solid)) for text in texts]
    for number, key, text in other_texts(conversation):
        if is_named(key):
            of_tool = key == "name" and conversation.messages[number]["role"] in TOOL_ROLES
            parts.append(LeftOut(number, TOOL_NAME if of_tool else key, unwritten(text, solid)))
    return sorted(part for part in parts if part.text)


def other_texts(conversation: Conversation) -> Iterator[tuple[int, str, str]]:
    """Message, key and text of what is under other keys than those of `with_texts`."""
    for number, message in enumerate(conversation.messages):
        if len(message) > 2:
            known = {"content", "tool_calls", *UNTOUCHED, *thought_keys(message)}
            for key, value in message.items():
                if key not in known:
                    yield from ((number, key, text) for text in strings(value))


def is_written(text: str, solid: str) -> bool:
    """True if a rendering has the text, or its form in JSON. solid: it without white space."""
    return any(_solid(each) in solid for each in (text, json.dumps(text, ensure_ascii=False)[1:-1]))


def unwritten(text: str, solid: str) -> str:
    """The part of a text that a rendering, given without white space, does not have.

    The pieces between signs such as <think> are looked for one by one, and the beginning of a piece
    that is cut.
    """
    if is_written(text, solid):
        return ""
    rest, gone = text, False
    for piece in _SIGN.split(text):
        written = piece.strip()
        if not is_written(piece, solid):
            gone, written = True, _written_beginning(written, solid)
        rest = rest.replace(written, "", 1)
    return MARKS.sub("", rest).strip() if gone else ""


def _written_beginning(piece: str, solid: str) -> str:
    low, high = 0, len(piece)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_written(piece[:middle], solid) else (low, middle - 1)
    return piece[:low] if low >= _LEAST else ""


def _solid(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())
