"""Rows to conversations of messages with role and content.

Chat datasets use many names for their columns:

    messages       [{"role": "user", "content": ...}, ...]
    conversations  ShareGPT: [{"from": "human", "value": ...}, ...]
    prompt         and response or completion: two texts, one turn each, or messages

A cell holds Arrow lists of structs, or the same as JSON text, of the whole cell, of a message or of
its tool calls. Arrow gives every struct all keys, so a null in a struct counts as a missing key.
Content that is a list of text parts is their text. A `tools` column and other keys of a message
reach the template unchanged. `chat_template_kwargs` of a row are variables of its template.
`train: false`, `loss: 0` and other SWITCHES in a message of the assistant take it out of what is
trained. A prompt is never trained, nor are answers in a prompt that is messages.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any

import pyarrow as pa

from ..support.errors import InputError, brief
from .types import (
    ASSISTANT_ROLES,
    ROLES,
    THOUGHT_KEYS,
    BadRowError,
    Conversation,
    Message,
    expect,
    json_kind,
    parsed_json,
)

AUTO = "auto"
Row = dict[str, Any]  # cells of a row by column
_KNOWN = (
    ("messages",),
    ("conversations",),
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("question", "answer"),
)
_ALPACA = ("input", "history")  # beside a prompt that is called instruction
_BAD = ("label", "kto_tag")
PICTURES = ("image", "images", "video", "videos", "audio", "audios")
"""Columns that are refused where a text says their place, and named elsewhere."""
BESIDE = ("system", "tools", "chat_template_kwargs", *_BAD, "loss_mask")
SWITCHES = ("loss", "loss_mask", "train", "trainable", "training", "weight")
"""Keys of a message that say whether it is trained."""
_SPANS = ("train_detail", "training_detail")
_PLAIN = {"role", "content"}
_SHAREGPT = dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant")
_SHAREGPT |= {"human": "user", "observation": "tool"}
# Texts that stand for a picture, a video or a sound: <image>, <|video_pad|>, <start_of_image>.
_PICTURE = re.compile(
    r"<\|?(?:start_of_)?(?:image|img|vision|video|audio)[^<>\s]{0,20}>|\[IMG\]", re.IGNORECASE
)


_NO_TOKENS = "images, sound and other parts have no tokens here"


def find_columns(asked: Sequence[str], names: Collection[str], where: str) -> tuple[str, ...]:
    """The columns of conversations: those asked for, or for `auto` the first that a source has.

    Raises InputError if it has none. names: of its columns. where: the source.
    """
    if tuple(asked) != (AUTO,):
        return tuple(asked)
    found = next((known for known in _KNOWN if {*known} <= {*names}), None)
    if found is None:
        pairs = ", ".join(" and ".join(known) for known in _KNOWN)
        raise InputError(
            f"{where} has no column of conversations: none of {pairs}; it has "
            f"{', '.join(names) or 'no columns'}; name them by --messages"
        )
    return found


def beside(names: Sequence[str]) -> tuple[str, ...]:
    """Columns that are read beside those of a conversation."""
    return (*BESIDE, *PICTURES, *(_ALPACA if names[0] == "instruction" else ()))


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Rows of a table with the columns of conversations, or of pieces.

    A picture is only True, and a cell that is not UTF-8 a BadRowError. Nulls in Arrow structs are
    missing keys.
    """
    cells = [_cells(table[name], name in PICTURES) for name in table.column_names]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*cells, strict=True))


def _cells(column: Any, is_picture: bool) -> Iterator[Any]:
    if column.type == pa.large_binary():  # JSON text
        return map(_json, column.to_pylist())
    if is_picture:
        lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        sizes = pa.compute.list_value_length(column) if lists else column.is_valid()
        return map(bool, sizes.to_pylist())
    return map(_value, column)


def _json(cell: bytes | None) -> Any:
    try:
        return None if cell is None else json.loads(cell.decode())
    except ValueError:
        return BadRowError("bad_utf8", "a column of bytes is read, and they are no JSON")


def _value(cell: Any) -> Any:
    try:
        return _without_nulls(cell.as_py())
    except UnicodeDecodeError:
        return BadRowError("bad_utf8", "its text is not UTF-8")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def conversation_of(row: Row, names: Sequence[str]) -> Conversation:
    """The conversation of a row. names: columns of its messages, or of prompt and response.

    Raises BadRowError for what is none, or would train something wrong.
    """
    for value in row.values():
        if isinstance(value, BadRowError):
            raise value
    prompt = 0
    if len(names) == 1:
        messages = _messages(_parsed(row, names[0]), names[0])
    else:
        messages = _asked(row, names[0])
        prompt = len(messages)
        response = _side(row[names[1]], names[1], "assistant")
        before = takewhile(lambda message: message["role"] not in ASSISTANT_ROLES, response)
        if messages[-1] in before:
            what = f"{names[1]!r} begins with the prompt, which would be there twice"
            raise BadRowError("not_messages", f"{what}; name {names[1]!r} without {names[0]!r}")
        messages += response
    if system := _system(row, messages[0]):
        messages.insert(0, system)
        prompt += prompt > 0
    _refuse(row, messages)
    tools = _parsed(row, "tools")
    if tools is not None:
        expect(list, tools, "bad_tools", "'tools'", "a list")
        tools = [parsed_json(tool, "a tool in 'tools'") for tool in tools] or None
    variables = _parsed(row, "chat_template_kwargs") or {}
    expect(dict, variables, "bad_variables", "'chat_template_kwargs'", "an object")
    trains = [_trains(message, number) for number, message in enumerate(messages)]
    untrained = tuple(
        number
        for number, message in enumerate(messages)
        if message["role"] in ASSISTANT_ROLES and (number < prompt or not trains[number])
    )
    answered = any(number < prompt for number in untrained)
    return Conversation(messages, tools, variables, untrained, prompt=prompt if answered else 0)


def _parsed(row: Row, name: str) -> Any:
    return parsed_json(row.get(name), repr(name))


def _asked(row: Row, name: str) -> list[Message]:
    """The messages of a prompt. An instruction may have an input and a history."""
    value = row[name]
    if name != "instruction":
        return _side(value, name, "user")
    messages = _history(_parsed(row, "history") or [])
    if text := _text(row, "input"):
        expect(str, value, "no_content", "'instruction'", "text, as it has an 'input'")
        value = f"{value}\n{text}"
    return messages + _side(value, name, "user")


def _side(value: Any, name: str, role: str) -> list[Message]:
    """Messages of a prompt or of a response: one text, or a list of messages."""
    if isinstance(value, list):
        return _messages(value, name)
    expect(str, value, "null" if value is None else "no_content", repr(name), "text")
    return [{"role": role, "content": value}]


def _history(turns: Any) -> list[Message]:
    """Earlier turns of a row with an instruction: [question, answer], which is not trained."""
    expected = "a list of [question, answer]"
    expect(list, turns, "not_messages", "'history'", expected)
    if any(not isinstance(turn, list) or [*map(type, turn)] != [str, str] for turn in turns):
        raise BadRowError("not_messages", f"'history' is {brief(turns)}, expected {expected}")
    both = zip(["user", "assistant"] * len(turns), chain(*turns), strict=True)
    return [{"role": role, "content": text} for role, text in both]


def _text(row: Row, name: str) -> str:
    """Text beside a conversation; nothing if it is blank."""
    value = row.get(name) or ""
    expect(str, value, "no_content", repr(name), "text")
    return value if value.strip() else ""


def _system(row: Row, first: Message) -> Message | None:
    """The message of the column `system`, unless the messages begin with the same text."""
    text = _text(row, "system")
    if not text or (first["role"] == "system" and first.get("content") == text):
        return None
    if first["role"] in ("system", "developer"):
        found = f"message 0 ({first['role']}) and the column 'system' have different texts"
        raise BadRowError("not_messages", f"{found}, expected one of them")
    return {"role": "system", "content": text}


def _refuse(row: Row, messages: Sequence[Message]) -> None:
    """Raise BadRowError for what would train something wrong."""
    for name in _BAD:
        if row.get(name) in (0, "0", "false", "False"):
            found = f"{name!r} is {brief(row[name])}, so the answer is a bad one"
            raise BadRowError("bad_train", f"{found}; keep only rows of good answers")
    if row.get("loss_mask"):
        found = "the row has 'loss_mask', and what it counts is not known"
        advice = 'write "train": false into messages that are not trained, and remove the column'
        raise BadRowError("bad_train", f"{found}; {advice}")
    picture = next((name for name in PICTURES if row.get(name)), None)
    for number, message in enumerate(messages):
        if picture and (place := _PICTURE.search(str(message.get("content", "")))):
            found = f"message {number} has {place[0]!r} for what {picture!r} holds"
            raise BadRowError("no_content", f"{found}: {_NO_TOKENS}")
        if keys := [key for key in _SPANS if message.get(key)]:
            found = f"message {number} has {keys[0]!r}: spans of characters are not read"
            raise BadRowError("bad_train", f"{found}; write pieces (--pieces), or remove the key")


def _trains(message: Message, number: int) -> bool:
    """Remove the message's own switches; False if one is off."""
    trains, role = True, message["role"]
    for key in [key for key in SWITCHES if key in message]:
        value = message.pop(key)
        found = f"message {number} ({role}) has {brief(value)} as {key}"
        if value not in (0, 1):
            raise BadRowError("bad_train", f"{found}, expected true or false, or 1 or 0")
        if value and role not in ASSISTANT_ROLES:
            raise BadRowError("bad_train", f"{found}, but only texts of the assistant are trained")
        trains = trains and bool(value)
    return trains


def _messages(value: Any, column: str) -> list[Message]:
    reason = "null" if value is None else "not_messages"
    expect(list, value, reason, repr(column), "a list of messages")
    if not value:
        raise BadRowError("no_messages", f"{column!r} is empty, expected at least one message")
    return [each if _is_plain(each) else _message(each, n) for n, each in enumerate(value)]


def _is_plain(value: Any) -> bool:
    """True for an object of a known role and text, as most messages are."""
    if not isinstance(value, dict) or value.keys() != _PLAIN:
        return False
    return {*map(type, value.values())} == {str} and value["role"] in ROLES


def _message(value: Any, number: int) -> Message:
    """A message with the keys that templates expect: no nulls, no names of ShareGPT."""
    place = f"message {number}"
    value = _object(value, place)
    expect(dict, value, "not_messages", place, "an object with role and content")
    message = {key: item for key, item in value.items() if item is not None}
    if "from" in message and "role" not in message:
        sender = message.pop("from")
        role = _SHAREGPT.get(sender, sender) if isinstance(sender, str) else sender
        message = {"role": role, **message}
        if "value" in message and "content" not in message:
            message["content"] = message.pop("value")
    if "role" not in message:
        has = ", ".join(map(repr, message)) or "nothing"
        raise BadRowError("no_role", f"{place} has no role; it has {has}")
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise BadRowError(
            "bad_role", f"{place} has the role {brief(role)}, expected one of {known}"
        )
    if "tool_calls" in message:
        where = f"'tool_calls' of {place}"
        calls = parsed_json(message["tool_calls"], where) or []
        expect(list, calls, "bad_tools", where, "a list")
        message["tool_calls"] = [parsed_json(call, where) for call in calls]
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined_parts(content, place)
    if content is None and not message.get("tool_calls"):
        call = "function_call" in message
        instead = ", and 'function_call' is not read: write 'tool_calls'" if call else ""
        raise BadRowError("no_content", f"{place} ({role}) has no content{instead}")
    if not isinstance(content, str | dict | None):
        found = f"{place} ({role}) has {json_kind(content)} as content"
        raise BadRowError("no_content", f"{found}, expected text")
    thought = next((message[key] for key in THOUGHT_KEYS if key in message), None)
    if thought is not None:  # one thought under several names: each template reads one of them
        message |= {"reasoning_content": thought, "thinking": message.get("thinking", thought)}
    return message


def _joined_parts(parts: list[Any], place: str) -> str:
    """Text of content that is a list of parts.

    A part is text, or an object whose `text` is text. Example:
    [{"type": "text", "text": "a"}, "b"] -> "ab"
    """
    texts = []
    for number, part in enumerate(parts):
        where = f"part {number} of {place}"
        part = _object(part, where)
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type") or "text" if isinstance(part, dict) else "text"
        if kind != "text" or not isinstance(text, str):
            found = f"of type {brief(kind)}" if kind != "text" else json_kind(text)
            raise BadRowError("no_content", f"{where} is {found}, expected text: {_NO_TOKENS}")
        texts.append(text)
    return "".join(texts)


def _object(value: Any, place: str) -> Any:
    """A message or a part: text that can only be meant as a JSON object is that object."""
    is_json = isinstance(value, str) and value.lstrip()[:1] == "{"
    return parsed_json(value, place) if is_json else value
