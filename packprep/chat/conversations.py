"""Rows to conversations of messages with role and content.

Chat datasets use many names for their columns:

    messages       [{"role": "user", "content": ...}, ...]                 options: messages_column
    conversations  ShareGPT: [{"from": "human", "value": ...}, ...]        options: messages_column
    prompt         and response or completion: two texts, one turn each
                   options: prompt_column, response_column

`find_conversations` picks one of these by the names of the columns. A cell holds
Arrow lists of structs, or the same as JSON text, of the whole cell, of a message or of its tool
calls (a `Json()` column of `datasets`). Arrow gives every struct all keys, so a null in a struct
counts as a missing key; JSON text has only the keys it names, and none of them twice. Content that
is a list of text parts is their text. A `tools` column (JSON schemas, or JSON text of them) and
other keys of a message (name, reasoning_content, ...) reach the template unchanged.
`chat_template_kwargs` of a row are variables of its template. `train: false`, `loss: 0` and other
SWITCHES in a message of the assistant take it out of what is trained. A prompt is never trained,
nor are answers in a prompt that is messages. What else a row has beside its conversation, and what
becomes of it, is in config/grammar/known_columns.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict, cast

import pyarrow as pa
import pyarrow.compute as pc

from packprep.config.grammar.known_columns import INSTRUCTION, PICTURES, SWITCHES, known
from packprep.support.errors import InputError, brief
from packprep.support.json_words import json_fault, json_kind
from packprep.support.problems import BadRow

# Roles that templates know. Any other is a mistake in the data, and could spell part of a special
# token.
ASSISTANT_ROLES = frozenset({"assistant", "tool_calls"})
TOOL_ROLES = frozenset({"tool", "ipython", "function", "tool_results"})
ROLES = ASSISTANT_ROLES | TOOL_ROLES | {"system", "developer", "user"}
_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "observation": "tool",
}
_KNOWN: tuple[tuple[str, ...], ...] = (
    ("messages",),
    ("conversations",),
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("question", "answer"),
)
TOOLS, VARIABLES = "tools", "chat_template_kwargs"  # other columns that a conversation uses
JSON_CELLS = pa.large_binary()
"""Type of a column of JSON rows: each value is JSON text."""

_PLAIN_KEYS = {"role", "content"}
ThoughtKey = Literal["reasoning_content", "thinking", "reasoning"]
THOUGHT_KEYS: Final[tuple[ThoughtKey, ...]] = ("reasoning_content", "thinking", "reasoning")
_EMPTY_CELLS = (None, "", b'""', b"[]", b"{}", b"null")
_READ = {*known(("conversations", "instruction"), "read"), INSTRUCTION, "label", "kto_tag"}
# Texts that stand for a picture, a video or a sound: <image>, <|video_pad|>, <start_of_image>.
_PICTURE = re.compile(
    r"<\|?(?:start_of_)?(?:image|img|vision|video|audio)[^<>\s]{0,20}>|\[IMG\]", re.IGNORECASE
)
_SWITCHED = frozenset(SWITCHES)
_SPANS = known(("messages",), "refused")


class Message(TypedDict):
    """A message for a template. It may have other keys, which reach the template unchanged.

    content: text, or an object. SWITCHES of a row are removed once they are read.
    """

    role: str
    content: NotRequired[str | dict[str, object]]
    reasoning_content: NotRequired[object]
    thinking: NotRequired[object]
    reasoning: NotRequired[object]
    tool_calls: NotRequired[list[object]]
    name: NotRequired[object]
    tool_call_id: NotRequired[object]
    train: NotRequired[object]


@dataclass(frozen=True)
class Conversation:
    """One row for a template.

    messages: each with a `role`, and `content` if it has any; no value is None.
    untrained: numbers of the assistant's messages that are not trained: those of a prompt, and
    those that the row itself takes out.
    prompt: number of the messages of a prompt that has answers; 0 for other rows.
    is_turn: only the last message is trained, see turn_documents.py.
    before: number of messages before those of its last column.
    columns: that have a value in the row, and are not read.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    untrained: tuple[int, ...] = ()
    is_turn: bool = False
    prompt: int = 0
    before: int = field(default=0, compare=False)
    columns: tuple[str, ...] = field(default=(), compare=False)


class BadRowError(InputError):
    """A row that is not a conversation. The caller adds the row's place."""

    def __init__(self, reason: BadRow, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class ConversationColumns:
    """Columns of a source that hold its conversations: of messages, or of prompt and response.

    beside: those of `known_columns` that rows may have, without tools and variables.
    """

    names: tuple[str, ...]
    tools: str | None = None
    variables: str | None = None
    beside: tuple[str, ...] = ()

    @property
    def is_instruction(self) -> bool:
        """True for a prompt that is called `instruction`, and its response."""
        return len(self.names) > 1 and self.names[0] == INSTRUCTION

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns to read."""
        named = (name for name in (self.tools, self.variables) if name is not None)
        return (*self.names, *named, *self.beside)


def find_conversations(columns: Sequence[str]) -> ConversationColumns | None:
    """Columns of a table that hold its conversations; None if it has none."""
    names = next((names for names in _KNOWN if set(names) <= set(columns)), None)
    tools, variables = (name if name in columns else None for name in (TOOLS, VARIABLES))
    return ConversationColumns(names, tools, variables) if names else None


class ChatRow(NamedTuple):
    """A row that is read when it is needed.

    cell: JSON text of its messages, if it has nothing else; conversation: reads it.
    """

    cell: bytes | None
    conversation: Callable[[], Conversation | BadRowError]


def read_chat_rows(table: pa.Table, columns: ConversationColumns) -> Iterator[ChatRow]:
    """The rows of a table, none of them read yet."""
    held = {name: table[name] for name in columns.wanted}
    for name in columns.beside:
        if held[name].null_count == len(table):
            del held[name]
    is_json = [column.type == JSON_CELLS for column in held.values()]
    cells = [
        cells_of(column) if name in _READ or name not in columns.beside else have_values(column)
        for name, column in held.items()
    ]
    for row in zip(*cells, strict=True):
        read = partial(_read, dict(zip(held, row, strict=True)), is_json, columns)
        yield ChatRow(row[0] if is_json == [True] else None, read)


def have_values(column: pa.ChunkedArray[Any]) -> list[bool]:
    """True for each row with a value that is not empty. Pictures are not copied for that."""
    kind: pa.DataType = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [(length or 0) > 0 for length in pc.list_value_length(column).to_pylist()]
    if kind == JSON_CELLS or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [value not in _EMPTY_CELLS for value in column.to_pylist()]
    return [bool(value) for value in column.is_valid().to_pylist()]


def _read(
    row: Mapping[str, Any], is_json: Sequence[bool], columns: ConversationColumns
) -> Conversation | BadRowError:
    values = {
        name: json.loads(value) if is_cell and isinstance(value, bytes) else value
        for (name, value), is_cell in zip(row.items(), is_json, strict=True)
    }
    try:
        return _conversation(values, columns)
    except BadRowError as error:
        return error


def cells_of(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Values of a column as Python objects; JSON text stays text, and cells of JSON rows bytes.

    Nulls inside Arrow structs are missing keys.
    """
    values: list[Any] = column.to_pylist()
    return (
        [_without_nulls(value) for value in values] if pa.types.is_nested(column.type) else values
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _conversation(row: Mapping[str, object], columns: ConversationColumns) -> Conversation:
    earlier, values = _beside_prompt(row, columns)
    prompt = 0
    if len(columns.names) > 1:
        messages, prompt = _pair(values, columns.names)
    else:
        name = columns.names[0]
        messages = _messages(parsed_json(row[name], repr(name)), name)
    system = _system(row, messages)
    before = len(system) + len(earlier) + prompt if len(columns.names) > 1 else 0
    messages = [*system, *earlier, *messages]
    _refuse(row, messages)
    tools = parsed_json(row[columns.tools], repr(columns.tools)) if columns.tools else None
    if tools is not None:
        _expect(list, tools, BadRow.BAD_TOOLS, repr(columns.tools), "a list")
    tools = [parsed_json(tool, f"a tool in {columns.tools!r}") for tool in tools or []]
    place = repr(columns.variables)
    variables = parsed_json(row[columns.variables], place) if columns.variables else None
    if variables is not None:
        _expect(dict, variables, BadRow.BAD_VARIABLES, place, "an object")
    off = {
        number
        for number, message in enumerate(messages)
        if not _SWITCHED.isdisjoint(message) and not _trains(message, number)
    }
    untrained = [
        number
        for number, message in enumerate(messages)
        if message["role"] in ASSISTANT_ROLES and (number < before or number in off)
    ]
    return Conversation(
        messages,
        tools or None,
        variables or {},
        tuple(untrained),
        prompt=before if any(number < before for number in untrained) else 0,
        before=before,
        columns=tuple(name for name in columns.beside if not _is_read(name, row, columns)),
    )


def _is_read(name: str, row: Mapping[str, object], columns: ConversationColumns) -> bool:
    """True for a column beside a conversation that is read, or has no value."""
    value = row.get(name)
    if name in ("label", "kto_tag"):
        return value in (None, "", [], {}, 1, "1", "true", "True")
    if name in ("input", "history"):
        return not value or columns.is_instruction
    return not value or name in _READ


def _beside_prompt(
    row: Mapping[str, object], columns: ConversationColumns
) -> tuple[list[Message], list[object]]:
    """Earlier turns, and the values of prompt and response, with `input` behind an instruction."""
    values = [row[name] for name in columns.names]
    if not columns.is_instruction:
        return [], values
    if text := _text(row, "input"):
        _expect(str, values[0], BadRow.NO_CONTENT, repr(INSTRUCTION), "text, as it has an 'input'")
        values[0] = f"{values[0]}\n{text}"
    turns = parsed_json(row.get("history"), "'history'") or []
    _expect(list, turns, BadRow.NOT_MESSAGES, "'history'", "a list of [question, answer]")
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        place = f"turn {number} of 'history'"
        _expect(list, turn, BadRow.NOT_MESSAGES, place, "[question, answer]")
        if len(turn) != 2 or not all(isinstance(text, str) for text in turn):
            raise BadRowError(BadRow.NOT_MESSAGES, f"{place} is not two texts")
        messages.append({"role": "user", "content": turn[0]})
        messages.append({"role": "assistant", "content": turn[1], "train": False})
    return messages, values


def _text(row: Mapping[str, object], name: str) -> str:
    """Text beside a conversation; nothing if it is blank."""
    if not (value := row.get(name)):
        return ""
    _expect(str, value, BadRow.NO_CONTENT, repr(name), "text")
    text = str(value)
    return text if text.strip() else ""


def _system(row: Mapping[str, object], messages: Sequence[Message]) -> list[Message]:
    """The message of the column `system`, unless the messages begin with the same text."""
    text = _text(row, "system")
    first = messages[0]
    if not text or (first["role"] == "system" and first.get("content") == text):
        return []
    if first["role"] in ("system", "developer"):
        raise BadRowError(
            BadRow.NOT_MESSAGES,
            f"message 0 ({first['role']}) and the column 'system' have different texts, expected "
            "one of them",
        )
    return [{"role": "system", "content": text}]


def _refuse(row: Mapping[str, object], messages: Sequence[Message]) -> None:
    """Raise BadRowError for what would train something wrong, see `known_columns`."""
    for name in ("label", "kto_tag"):
        if row.get(name) in (0, "0", "false", "False"):
            raise BadRowError(
                BadRow.BAD_TRAIN,
                f"{name!r} is {brief(row[name])}, so the answer is a bad one and would be trained "
                "as a good one; keep only rows of good answers",
            )
    if row.get("loss_mask"):
        raise BadRowError(
            BadRow.BAD_TRAIN,
            "the row has 'loss_mask', and what it counts is not known; write \"train\": false "
            "into messages that are not trained, and remove the column",
        )
    if picture := next((name for name in PICTURES if row.get(name)), None):
        for number, message in enumerate(messages):
            if place := _PICTURE.search(str(message.get("content", ""))):
                raise BadRowError(
                    BadRow.NO_CONTENT,
                    f"message {number} has {place[0]!r} for what {picture!r} holds: images, sound "
                    "and videos have no tokens here",
                )
    for number, message in enumerate(messages):
        if key := next((key for key in _SPANS if message.get(key)), None):
            raise BadRowError(
                BadRow.BAD_TRAIN,
                f"message {number} has {key!r}: spans of characters are not read; write pieces "
                "(--segments-column), or remove the key",
            )


def _trains(message: Message, number: int) -> bool:
    """Remove the message's own switches; False if one is off."""
    trains = True
    keys = cast("dict[str, object]", message)
    for key in SWITCHES:
        value = keys.pop(key, None)
        if value is None:
            continue
        if value not in (0, 1):
            expected = "0 or 1" if key in ("weight", "loss_mask") else "true or false"
            raise BadRowError(
                BadRow.BAD_TRAIN,
                f"message {number} has {brief(value)} as {key}, expected {expected}",
            )
        if value and message["role"] not in ASSISTANT_ROLES:
            raise BadRowError(
                BadRow.BAD_TRAIN,
                f"message {number} ({message['role']}) has {brief(value)} as {key}, but only "
                "messages of the assistant are trained",
            )
        trains = trains and bool(value)
    return trains


def _pair(values: Sequence[object], names: Sequence[str]) -> tuple[list[Message], int]:
    """One turn of each side, and the number of messages of the prompt.

    A prompt may also be messages, as may a response.
    """
    messages: list[Message] = []
    prompt = 0
    for name, role, value in zip(names, ("user", "assistant"), values, strict=True):
        prompt = len(messages)
        if isinstance(value, list):
            messages += _messages(value, name)
        elif isinstance(value, str):
            messages.append({"role": role, "content": value})
        else:
            _expect(str, value, BadRow.NO_CONTENT, repr(name), "text")
    return messages, prompt


def _expect(kind: type, value: object, reason: BadRow, place: str, expected: str) -> None:
    """Raise BadRowError unless the value is of this kind."""
    if not isinstance(value, kind):
        raise BadRowError(reason, f"{place} is {json_kind(value)}, expected {expected}")


def _messages(value: Any, column: str) -> list[Message]:
    reason = BadRow.NULL if value is None else BadRow.NOT_MESSAGES
    _expect(list, value, reason, repr(column), "a list of messages")
    if not value:
        raise BadRowError(BadRow.NO_MESSAGES, f"{column!r} is empty, expected at least one message")
    return [_message(message, number) for number, message in enumerate(value)]


def _message(value: Any, number: int) -> Message:
    """A message with the keys that templates expect.

    Nulls are left out and ShareGPT's names translated.
    """
    if (
        type(value) is dict
        and value.keys() == _PLAIN_KEYS
        and type(value["content"]) is str
        and type(value["role"]) is str
        and value["role"] in ROLES
    ):
        return cast("Message", value)
    value = parsed_json(value, f"message {number}") if _is_object_text(value) else value
    expected = "an object with role and content"
    _expect(dict, value, BadRow.NOT_MESSAGES, f"message {number}", expected)
    message = {key: item for key, item in value.items() if item is not None}
    if "from" in message and "role" not in message:
        sender = message.pop("from")
        role = _SHAREGPT_ROLES.get(sender, sender) if isinstance(sender, str) else sender
        message = {"role": role, **message}
        if "value" in message and "content" not in message:
            message["content"] = message.pop("value")
    if "role" not in message:
        raise BadRowError(
            BadRow.NO_ROLE,
            f"message {number} has no role; it has {', '.join(map(repr, message)) or 'nothing'}",
        )
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        raise BadRowError(
            BadRow.BAD_ROLE,
            f"message {number} has the role {brief(role)}, expected one of "
            f"{', '.join(sorted(ROLES))}",
        )
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], number)
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined_parts(content, number)
    if content is None and not message.get("tool_calls"):
        call = "function_call" in message
        instead = ", and 'function_call' is not read: write 'tool_calls'" if call else ""
        raise BadRowError(BadRow.NO_CONTENT, f"message {number} ({role}) has no content{instead}")
    if content is not None and not isinstance(content, (str, dict)):
        raise BadRowError(
            BadRow.NO_CONTENT,
            f"message {number} ({role}) has {json_kind(content)} as content, expected text",
        )
    reasoning = next((message[key] for key in THOUGHT_KEYS if key in message), None)
    if reasoning is not None:  # one thought under several names: each template reads one of them
        message |= {"reasoning_content": reasoning, "thinking": message.get("thinking", reasoning)}
    return cast("Message", message)


def without_keys(message: Message, keys: Collection[str]) -> Message:
    """The message without some of its keys; not its role."""
    rest = {key: item for key, item in message.items() if key not in keys}
    return cast("Message", rest)


def _tool_calls(value: Any, number: int) -> list[Any]:
    """The calls of a message: a list, or JSON text of it or of its items."""
    where = f"'tool_calls' of message {number}"
    calls = parsed_json(value, where)
    calls = [] if calls is None else calls
    _expect(list, calls, BadRow.BAD_TOOLS, where, "a list")
    return [parsed_json(call, where) for call in calls]


def _joined_parts(parts: list[Any], number: int) -> str:
    """Text of content that is a list of parts.

    A part is text, or an object whose `text` is text. Example:
    [{"type": "text", "text": "a"}, "b"] -> "ab"
    """
    texts = []
    for place, part in enumerate(parts):
        part = (
            parsed_json(part, f"part {place} of message {number}")
            if _is_object_text(part)
            else part
        )
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type") or "text" if isinstance(part, dict) else "text"
        if kind != "text" or not isinstance(text, str):
            found = f"of type {brief(kind)}" if kind != "text" else f"{json_kind(text)}"
            raise BadRowError(
                BadRow.NO_CONTENT,
                f"part {place} of message {number} is {found}, expected text: images, sound and "
                "other parts have no tokens here",
            )
        texts.append(text)
    return "".join(texts)


def _is_object_text(value: Any) -> bool:
    """True for text that can only be meant as a JSON object: a message is never plain text."""
    return isinstance(value, str) and value.lstrip()[:1] == "{"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of JSON text. Raises BadRowError for a duplicate key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise BadRowError(BadRow.BAD_JSON, f"an object has the key {brief(duplicate)} twice")
    return value


def parsed_json(value: Any, where: str) -> Any:
    """The value of JSON text; any other value unchanged.

    where: the place in the row, for errors.
    """
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value, object_pairs_hook=_unique) if value.strip() else None
        if "\\u" in value:
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except BadRowError as error:
        raise BadRowError(error.reason, f"{where}: {error}") from None
    except UnicodeEncodeError:
        raise BadRowError(BadRow.BAD_UTF8, f"{where} has a lone surrogate") from None
    except (ValueError, RecursionError) as error:
        raise BadRowError(
            BadRow.BAD_JSON, f"{where} is text but not JSON: {json_fault(error)}"
        ) from None
