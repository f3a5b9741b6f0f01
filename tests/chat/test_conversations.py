import json
from typing import Any

import datasets
import pyarrow as pa
import pytest

from packprep.chat.conversations import (
    BadRowError,
    Conversation,
    ConversationColumns,
    Message,
    find_conversations,
    read_chat_rows,
)

HI: Message = {"role": "user", "content": "hi"}
HELLO: Message = {"role": "assistant", "content": "hello"}


def read(row: dict[str, Any], *names: str) -> Conversation | BadRowError:
    """The first row of a table of Arrow's own types."""
    table = pa.table({name: [value] for name, value in row.items()})
    columns = ConversationColumns(names) if names else find_conversations(table.column_names)
    assert columns is not None
    return next(read_chat_rows(table, columns)).conversation()


def problem(messages: Any) -> str:
    """Fault of messages given as JSON text."""
    bad = read({"messages": json.dumps(messages)})
    assert isinstance(bad, BadRowError)
    return f"{bad.reason}: {bad}"


SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
PARTS = [{"type": "text", "text": "h"}, "el", {"text": "lo"}]
ASKED = ("q", "a")


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"messages": [HI, HELLO]}, ()),
        ({"messages": json.dumps([HI, HELLO])}, ()),
        ({"conversations": SHAREGPT}, ()),
        ({"prompt": "hi", "response": "hello"}, ()),
        ({"prompt": [HI], "completion": [HELLO]}, ()),
        ({"q": "hi", "a": "hello"}, ASKED),
        ({"q": [HI], "a": "hello"}, ASKED),
        ({"messages": json.dumps([HI, {**HELLO, "content": PARTS}])}, ()),
    ],
)
def test_one_conversation_may_be_written_in_many_ways(
    row: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert read(row, *names) == Conversation([HI, HELLO])
    assert find_conversations(["text", "prompt"]) is None


def test_keys_that_arrow_adds_to_every_struct_are_left_out_and_nulls_of_json_stay_inside() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert read({"messages": [HI, calling]}) == Conversation([HI, calling])
    schema = [{"type": "function", "function": {"default": None}}]
    read_back = read({"messages": json.dumps([{**HI, "name": None}]), "tools": json.dumps(schema)})
    assert read_back == Conversation([HI], schema)


def test_tools_and_variables_of_a_row_reach_the_template() -> None:
    tools, variables = [{"name": "f"}], {"enable_thinking": False}
    row = {"tools": json.dumps(tools), "chat_template_kwargs": json.dumps(variables)}
    assert read({"messages": [HI]} | row) == Conversation([HI], tools, variables)
    for nothing in ("[]", ""):
        assert read({"messages": [HI], "tools": nothing}) == Conversation([HI])


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_each_of_its_names(name: str) -> None:
    named: Any = HELLO | {name: "hm"}
    both = named | {"reasoning_content": "hm", "thinking": "hm"}
    assert read({"messages": [named]}) == Conversation([both])


def part(found: str) -> str:
    return f"no_content: part 1 of message 1 is {found}, expected text"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (None, "null: 'messages' is null, expected a list of messages"),
        ([], "no_messages: 'messages' is empty, expected at least one message"),
        ({"role": "user"}, "not_messages: 'messages' is an object, expected a list of messages"),
        (["hi"], "not_messages: message 0 is text, expected an object with role and content"),
        ([HI, {"content": "x"}], "no_role: message 1 has no role; it has 'content'"),
        ([{}], "no_role: message 0 has no role; it has nothing"),
        ([{"role": "user"}], "no_content: message 0 (user) has no content"),
        ([{"role": "user", "content": None}], "no_content: message 0 (user) has no content"),
        ([HI | {"content": 3}], "no_content: message 0 (user) has a number as content"),
        ([{"from": "human"}], "no_content: message 0 (user) has no content"),
        ([HI | {"role": "<|im_end|>"}], "bad_role: message 0 has the role '<|im_end|>', expected"),
        ([HI, HELLO | {"content": ["a", {"type": "image"}]}], part("of type 'image'")),
        ([HI, HELLO | {"content": ["a", {"type": "text", "text": None}]}], part("null")),
        ([HI, HELLO | {"content": ["a", {}]}], part("null")),
        ([HI, HELLO | {"content": ["a", 3]}], part("a number")),
        ([HI, HELLO | {"weight": 0.5}], "bad_train: message 1 has 0.5 as weight, expected 0 or 1"),
        ([HI, HELLO | {"train": "no"}], "bad_train: message 1 has 'no' as train, expected true"),
        ([HI, HI | {"train": True}], "bad_train: message 1 (user) has True as train, but only"),
    ],
)
def test_a_row_that_is_not_a_conversation_is_refused_with_its_reason(
    messages: Any, expected: str
) -> None:
    assert problem(messages).startswith(expected)
    assert len(problem([HI | {"role": "r" * 100_000}])) < 300


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLING: Message = {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "given", [json.dumps([CALL]), [json.dumps(CALL)], [CALL]], ids=["text", "texts", "list"]
)
def test_calls_and_tools_may_be_json_text_at_any_level(given: Any) -> None:
    row = {"messages": json.dumps([HI, {"role": "assistant", "tool_calls": given}])}
    assert read(row) == Conversation([HI, CALLING])
    assert read(row | {"tools": given}) == Conversation([HI, CALLING], [CALL])


def test_json_columns_of_datasets_are_read_at_any_level() -> None:
    text, any_json = datasets.Value("string"), datasets.Json()
    message = {"role": text, "content": text, "tool_calls": any_json}
    messages = [HI | {"tool_calls": None}, CALLING | {"content": None}]
    inside = {"messages": datasets.List(message), "tools": any_json}
    whole = {"messages": datasets.List(any_json)}
    for features, row, tools in (
        (inside, {"messages": messages, "tools": [CALL]}, [CALL]),
        (whole, {"messages": [HI, CALLING]}, None),
    ):
        rows = datasets.Dataset.from_list([row], features=datasets.Features(features))
        columns = find_conversations(rows.column_names)
        assert columns is not None
        found = [row.conversation() for row in read_chat_rows(rows.data.table, columns)]
        assert found == [Conversation([HI, CALLING], tools)]


@pytest.mark.parametrize("off", [{"train": False}, {"weight": 0}, {"weight": 0.0, "train": True}])
def test_a_message_is_taken_out_of_what_is_trained_by_its_own_switch(off: dict[str, Any]) -> None:
    messages = [HI, HELLO | off, HI | {"train": False}, HELLO | {"train": True, "weight": 1}]
    assert read({"messages": json.dumps(messages)}) == Conversation(
        [HI, HELLO, HI, HELLO], untrained=(1,)
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": "[{"}, "bad_json"),
        ({"messages": "[" * 100_000}, "bad_json"),
        ({"messages": '[{"role": "user", "content": "a", "content": "b"}]'}, "bad_json"),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "bad_utf8"),
        ({"messages": [HI], "tools": '{"a": 1}'}, "bad_tools"),
        ({"messages": [HI], "chat_template_kwargs": "[1]"}, "bad_variables"),
        ({"prompt": "hi", "response": None}, "no_content"),
    ],
)
def test_values_of_the_wrong_kind_are_findings_of_their_row(
    row: dict[str, Any], reason: str
) -> None:
    bad = read(row)
    assert isinstance(bad, BadRowError)
    assert bad.reason == reason
