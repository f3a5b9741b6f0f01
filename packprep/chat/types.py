"""Values of the room: messages, conversations, and the documents that they become.

And values of JSON text in cells of a row, with words for what is wrong with them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from ..support.errors import InputError, brief

TrainOn = Literal["all", "assistant", "last-turn"]
Span = tuple[int, int]

# Roles that templates know. Any other is a mistake in the data, and could spell part of a special
# token.
ASSISTANT_ROLES = frozenset({"assistant", "tool_calls"})
TOOL_ROLES = frozenset({"tool", "ipython", "function", "tool_results"})
ROLES = ASSISTANT_ROLES | TOOL_ROLES | {"system", "developer", "user"}

THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Names of a thought: one text, of which each template reads another name."""


Message = dict[str, Any]
"""A message for a template: its role, content that is text or an object, and other keys, which
reach the template unchanged."""


@dataclass(frozen=True)
class Conversation:
    """One row for a template.

    messages: each with a `role`, and `content` if it has any; no value is None. untrained: numbers
    of the assistant's messages that are not trained: those of a prompt, and those that the row
    itself takes out. is_turn: only the last message is trained, see turns.py. prompt: number of the
    messages of a prompt that has answers; 0 for other rows.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    untrained: tuple[int, ...] = ()
    is_turn: bool = False
    prompt: int = 0

    def until(self, number: int) -> "Conversation":
        """The conversation of the messages before this one."""
        return replace(self, messages=self.messages[:number])


class BadRowError(InputError):
    """A row that makes no document. The caller adds the row's place. reason: to count it by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RenderError(BadRowError):
    """The template cannot render a conversation, or what is trained cannot be found in it."""

    def __init__(self, detail: str, reason: str = "template") -> None:
        super().__init__(reason, detail)


class MessageText(NamedTuple):
    """Text of a message, or the part of it that the template does not write.

    field: content, reasoning, tool_calls, tool_name, or another key of the message.
    """

    message: int
    field: str
    text: str


class Piece(NamedTuple):
    """Text, or token ids, that is encoded by itself: no token is of two pieces.

    text: "" for ids. ids: None for text. trained: rising spans of characters, or of ids; None where
    everything is trained. specials: spans of the special tokens that are parsed; None for all.
    """

    text: str
    ids: list[int] | None
    trained: list[Span] | None
    specials: list[Span] | None


_NUMBERS = pa.list_(pa.int32())
_PIECE = [("text", pa.large_string()), ("ids", _NUMBERS), ("trained", _NUMBERS)]
PIECES = pa.list_(pa.struct(_PIECE))
"""Pieces of a document. trained: bytes of the text, or ids, at which trained spans begin and end,
in turn; null where everything is trained. The field is missing where all rows are trained whole."""


@dataclass(frozen=True)
class Document:
    """A document of a row.

    part: number of the message whose turn it is, -1 for the whole row. left_out: text of messages
    that is not in the pieces. at_text: see `Turn`.
    """

    pieces: list[Piece]
    left_out: list[MessageText] = field(default_factory=list)
    at_text: bool = False
    part: int = -1

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(piece.text for piece in self.pieces)


_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "an object", type(None): "null"}
_KINDS |= {bool: "a boolean", int: "a number", float: "a number"}


def json_kind(value: Any) -> str:
    """Name of the kind of a parsed value, or of a value that JSON cannot hold."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def expect(kind: type, value: object, reason: str, place: str, expected: str) -> None:
    """Raise BadRowError unless the value is of this kind."""
    if not isinstance(value, kind):
        raise BadRowError(reason, f"{place} is {json_kind(value)}, expected {expected}")


def parsed_json(value: Any, where: str) -> Any:
    """The value of JSON text; any other value unchanged. where: in the row, for errors."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value, object_pairs_hook=_unique) if value.strip() else None
        if "\\u" in value:
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except UnicodeEncodeError:
        raise BadRowError("bad_utf8", f"{where} has a lone surrogate") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        what = "it is nested too deeply"
    except ValueError as error:  # a duplicate key, or a number of more than 4,300 digits
        what = str(error)
    raise BadRowError("bad_json", f"{where} is text but not JSON: {what}")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of JSON text. Raises ValueError for a duplicate key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {brief(duplicate)} twice")
    return value
