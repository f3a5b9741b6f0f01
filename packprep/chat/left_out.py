"""Text of messages that a chat template leaves out of its rendering.

Many templates drop the reasoning of earlier turns, whether it has a field of its own or is the
beginning of `content`. The rows are then trained without it. Nothing is lost from the rendering, so
the ledger of tokens cannot show it; it is counted apart, under the key of the message. White space
does not count: templates strip it, and put their own between reasoning and answer.
"""

import json
import re
from collections.abc import Iterator

from .marks import GENERATED, MARKS, NUMBERED, UNTOUCHED, thought_keys, with_strings, with_texts
from .types import TOOL_ROLES, Conversation, MessageText

_LEAST = 12  # fewer equal characters are chance, not a part that the template has written
# What encloses a thought inside of a content: <think>, [/THINK], <|END_THINKING|>.
_SIGN = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")


def left_out(conversation: Conversation, rendering: str) -> list[MessageText]:
    """Parts of the texts of a conversation that its rendering does not have.

    Where both have marks, a short text is not found in the text of another.
    """
    whole = solid(rendering.replace(GENERATED, ""))
    _, texts = with_texts(conversation, lambda _, text: text)
    parts = [each._replace(text=unwritten(each.text, _around(each.text, whole))) for each in texts]
    return sorted(part for part in [*parts, *_under_other_keys(conversation, whole)] if part.text)


def _under_other_keys(conversation: Conversation, whole: str) -> Iterator[MessageText]:
    """Texts under other keys of messages than those of `with_texts`."""
    for number, message in enumerate(conversation.messages):
        for key in {*message} - {"content", "tool_calls", *UNTOUCHED, *thought_keys(message)}:
            # Most templates write the name of a tool in its call alone.
            of_tool = key == "name" and message["role"] in TOOL_ROLES
            texts: list[str] = []
            with_strings(message.get(key), texts.append)
            for text in texts:
                field = "tool_name" if of_tool else key
                yield MessageText(number, field, unwritten(text, whole))


def _around(text: str, whole: str) -> str:
    """The part of a rendering between the marks beside that of a text; all of it without one."""
    match = NUMBERED.search(text)
    before, mark, behind = whole.partition(match[0]) if match else ("", "", "")
    if not mark:
        return whole
    return NUMBERED.split(before)[-1] + mark + NUMBERED.split(behind, maxsplit=1)[0]


def is_written(text: str, whole: str) -> bool:
    """True if a rendering has the text, or its form in JSON. whole: it without white space."""
    return any(solid(each) in whole for each in (text, json.dumps(text, ensure_ascii=False)[1:-1]))


def unwritten(text: str, whole: str) -> str:
    """The part of a text that a rendering, given without white space, does not have.

    The pieces between signs such as <think> are looked for one by one, and the beginning of a piece
    that is cut.
    """
    if is_written(text, whole):
        return ""
    rest, gone = text, False
    for piece in pieces_of(text):
        written = piece.strip()
        if not is_written(piece, whole):
            gone, written = True, _written_beginning(written, whole)
        rest = rest.replace(written, "", 1)
    return MARKS.sub("", rest).strip() if gone else ""


def pieces_of(text: str) -> list[str]:
    """The text between signs such as <think>."""
    return [piece for part in _SIGN.split(text) for piece in NUMBERED.split(part)]


def _written_beginning(piece: str, whole: str) -> str:
    low, high = 0, len(piece)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_written(piece[:middle], whole) else (low, middle - 1)
    return piece[:low] if low >= _LEAST else ""


def solid(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())
