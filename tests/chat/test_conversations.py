import json
from typing import Any

import datasets
import pyarrow as pa
import pytest

from packprep.chat.conversations import (
    BadRowError,
    Conversation,
    find_conversations,
    read_conversations,
)
from packprep.support.errors import InputError

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}


def read(row: dict[str, Any], **named: str) -> Conversation | BadRowError:
    """The first row of a table of Arrow's own types."""
    table = pa.table({name: [value] for name, value in row.items()})
    columns = find_conversations(table.column_names, **named)
    assert columns is not None
    return next(read_conversations(table, columns))


def problem(messages: Any) -> str:
    """Fault of messages given as JSON text."""
    bad = read({"messages": json.dumps(messages)})
    assert isinstance(bad, BadRowError)
    return f"{bad.reason}: {bad}"


@pytest.mark.parametrize(
    ("columns", "names", "said"),
    [
        (["id", "messages"], ("messages",), "conversations are read from 'messages'"),
        (
            ["conversations", "tools"],
            ("conversations",),
            "conversations are read from 'conversations' and tools from 'tools'",
        ),
        (
            ["prompt", "response"],
            ("prompt", "response"),
            "conversations are read from 'prompt' and 'response'",
        ),
        (
            ["prompt", "completion"],
            ("prompt", "completion"),
            "conversations are read from 'prompt' and 'completion'",
        ),
    ],
)
def test_columns_are_found_by_name_and_named_in_a_note(
    columns: list[str], names: tuple[str, ...], said: str
) -> None:
    found = find_conversations(columns)
    assert found is not None
    assert (found.names, found.note) == (names, said)


def test_a_table_of_text_has_no_conversations() -> None:
    assert find_conversations(["text", "prompt"]) is None


def test_a_named_column_wins_over_a_known_one_and_must_exist() -> None:
    found = find_conversations(["messages", "chat"], messages_column="chat")
    assert found is not None
    assert found.names == ("chat",)
    with pytest.raises(InputError, match="no column 'talk'; there are messages, chat"):
        find_conversations(["messages", "chat"], messages_column="talk")


def test_messages_are_read_from_structs_and_from_json_text() -> None:
    expected = Conversation([HI, HELLO])
    assert read({"messages": [HI, HELLO]}) == expected
    assert read({"messages": json.dumps([HI, HELLO])}) == expected


def test_sharegpt_names_are_translated() -> None:
    rows = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello"},
    ]
    assert read({"conversations": rows}) == Conversation(
        [{"role": "system", "content": "s"}, HI, HELLO]
    )


def test_a_prompt_and_a_response_are_one_turn_each_or_messages() -> None:
    assert read({"prompt": "hi", "response": "hello"}) == Conversation([HI, HELLO])
    assert read({"prompt": [HI], "completion": [HELLO]}) == Conversation([HI, HELLO])
    assert read({"q": "hi", "a": "hello"}, prompt_column="q", response_column="a") == Conversation(
        [HI, HELLO]
    )


def test_keys_that_arrow_adds_to_every_struct_are_left_out_and_nulls_of_json_stay_inside() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert read({"messages": [HI, calling]}) == Conversation([HI, calling])
    schema = [{"type": "function", "function": {"default": None}}]
    read_back = read({"messages": json.dumps([{**HI, "name": None}]), "tools": json.dumps(schema)})
    assert read_back == Conversation([HI], schema)


def test_tools_and_variables_of_a_row_reach_the_template() -> None:
    row = {
        "messages": [HI],
        "tools": '[{"name": "f"}]',
        "chat_template_kwargs": '{"enable_thinking": false}',
    }
    assert read(row) == Conversation([HI], [{"name": "f"}], {"enable_thinking": False})
    assert read({"messages": [HI], "tools": "[]"}) == Conversation([HI])
    assert read({"messages": [HI], "tools": ""}) == Conversation([HI])


def test_reasoning_is_found_under_each_of_its_names() -> None:
    for name in ("reasoning_content", "thinking", "reasoning"):
        conversation = read({"messages": [{**HELLO, name: "hm"}]})
        assert isinstance(conversation, Conversation)
        message = conversation.messages[0]
        assert (message["reasoning_content"], message["thinking"]) == ("hm", "hm")


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
        (
            [{"role": "user", "content": 3}],
            "no_content: message 0 (user) has a number as content, expected text",
        ),
        ([{"from": "human"}], "no_content: message 0 (user) has no content"),
    ],
)
def test_a_row_that_is_not_a_conversation_is_refused_with_its_reason(
    messages: Any, expected: str
) -> None:
    assert problem(messages) == expected


def test_content_that_is_a_list_of_text_parts_is_their_text() -> None:
    parts = [{"type": "text", "text": "h"}, "el", {"text": "lo"}]
    assert read({"messages": json.dumps([HI, {**HELLO, "content": parts}])}) == Conversation(
        [HI, HELLO]
    )


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"type": "image", "url": "x"}, "of type 'image'"),
        ({"type": "text", "text": None}, "null"),
        ({}, "null"),
        (3, "a number"),
    ],
)
def test_a_part_that_is_not_text_is_named_with_its_message(part: Any, found: str) -> None:
    assert problem([HI, {**HELLO, "content": ["a", part]}]) == (
        f"no_content: part 1 of message 1 is {found}, expected text: images, sound and other parts "
        "have no tokens here"
    )


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "given", [json.dumps([CALL]), [json.dumps(CALL)], [CALL]], ids=["text", "texts", "list"]
)
def test_calls_and_tools_may_be_json_text_at_any_level(given: Any) -> None:
    row = {"messages": json.dumps([HI, {"role": "assistant", "tool_calls": given}])}
    assert read(row) == Conversation([HI, CALLING])
    assert read(row | {"tools": given}) == Conversation([HI, CALLING], [CALL])


def test_json_columns_of_datasets_are_read_at_any_level() -> None:
    features = datasets.Features(
        {
            "messages": datasets.List(
                {
                    "role": datasets.Value("string"),
                    "content": datasets.Value("string"),
                    "tool_calls": datasets.Json(),
                }
            ),
            "tools": datasets.Json(),
        }
    )
    messages = [HI | {"tool_calls": None}, CALLING | {"content": None}]
    rows = datasets.Dataset.from_list([{"messages": messages, "tools": [CALL]}], features=features)
    columns = find_conversations(rows.column_names)
    assert columns is not None
    table = rows.data.table
    assert [*read_conversations(table, columns)] == [Conversation([HI, CALLING], [CALL])]
    whole = datasets.Dataset.from_list(
        [{"messages": [HI, CALLING]}],
        features=datasets.Features({"messages": datasets.List(datasets.Json())}),
    )
    columns = find_conversations(["messages"])
    assert columns is not None
    assert [*read_conversations(whole.data.table, columns)] == [Conversation([HI, CALLING])]


def test_a_key_that_a_message_has_twice_is_refused() -> None:
    twice = '[{"role": "user", "content": "a", "content": "b"}]'
    bad = read({"messages": twice})
    assert isinstance(bad, BadRowError)
    assert f"{bad.reason}: {bad}" == "bad_json: 'messages': an object has the key 'content' twice"


@pytest.mark.parametrize("off", [{"train": False}, {"weight": 0}, {"weight": 0.0, "train": True}])
def test_a_message_is_taken_out_of_what_is_trained_by_its_own_switch(off: dict[str, Any]) -> None:
    messages = [HI, HELLO | off, HI | {"train": False}, HELLO | {"train": True, "weight": 1}]
    assert read({"messages": json.dumps(messages)}) == Conversation(
        [HI, HELLO, HI, HELLO], untrained=(1,)
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (HELLO | {"weight": 0.5}, "message 1 has 0.5 as weight, expected 0 or 1"),
        (HELLO | {"train": "no"}, "message 1 has 'no' as train, expected true or false"),
        (
            HI | {"train": True},
            "message 1 (user) has True as train, but only messages of the assistant are trained",
        ),
    ],
)
def test_a_switch_that_says_neither_on_nor_off_is_refused(
    message: dict[str, Any], expected: str
) -> None:
    assert problem([HI, message]) == f"bad_train: {expected}"


def test_an_unknown_role_is_refused_and_the_known_ones_are_listed() -> None:
    assert problem([{"role": "<|im_end|>", "content": "x"}]).startswith(
        "bad_role: message 0 has the role '<|im_end|>', expected one of assistant, developer, "
    )


def test_text_that_is_not_json_and_tools_that_are_not_a_list_are_refused() -> None:
    for row, reason in (
        ({"messages": "[{"}, "bad_json"),
        ({"messages": [HI], "tools": '{"a": 1}'}, "bad_tools"),
        ({"messages": [HI], "chat_template_kwargs": "[1]"}, "bad_variables"),
        ({"prompt": "hi", "response": None}, "no_content"),
    ):
        bad = read(row)
        assert isinstance(bad, BadRowError)
        assert bad.reason == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[" * 100_000, "bad_json"), ('[{"role": "user", "content": "\\ud800"}]', "bad_utf8")],
)
def test_json_text_that_is_too_deep_or_no_text_is_a_finding_of_its_row(
    text: str, reason: str
) -> None:
    bad = read({"messages": text})
    assert isinstance(bad, BadRowError)
    assert bad.reason == reason


def test_a_role_of_any_length_is_quoted_in_one_line() -> None:
    assert len(problem([{"role": "r" * 100_000, "content": "a"}])) < 300
