from packprep.chat.conversations import Conversation
from packprep.chat.marks import GENERATED, MARKS, Text, numbered, unmark, with_texts


def test_marks_are_removed_and_their_places_returned() -> None:
    unmarked = unmark(f"ab{numbered(12)}c{GENERATED}d{numbered(0)}{GENERATED}")
    assert unmarked.text == "abcd"
    assert unmarked.pieces == ["ab", "c", "d", "", ""]
    assert unmarked.marks == [(0, -1), (2, 12), (4, 0)]
    assert unmarked.generated == [(2, 3), (3, 4)]


def test_every_mark_is_one_that_text_may_not_have() -> None:
    assert all(MARKS.match(char) for char in numbered(1234567890) + GENERATED)


def test_texts_are_the_words_of_messages_and_one_thought_is_one_text() -> None:
    conversation = Conversation(
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, {"type": "image", "url": "u"}],
            },
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "thinking": "hm",
                "tool_calls": [
                    {
                        "id": "x",
                        "type": "function",
                        "function": {"name": "f", "arguments": {"a": "b", "n": 1}},
                    }
                ],
            },
        ]
    )
    changed, texts = with_texts(conversation, lambda number, text: f"{number}:{text}")
    assert [(text.message, text.text) for text in texts] == [
        (0, "look"),
        (0, "u"),
        (1, "hm"),
        (1, ""),
        (1, "f"),
        (1, "b"),
    ]
    assert changed.messages == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "0:look"}, {"type": "image", "url": "1:u"}],
        },
        {
            "role": "assistant",
            "content": "3:",
            "reasoning_content": "2:hm",
            "thinking": "2:hm",
            "tool_calls": [
                {
                    "id": "x",
                    "type": "function",
                    "function": {"name": "4:f", "arguments": {"a": "5:b", "n": 1}},
                }
            ],
        },
    ]


def test_texts_of_some_roles_only() -> None:
    conversation = Conversation(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    changed, texts = with_texts(
        conversation, lambda number, text: text * 2, frozenset({"assistant"})
    )
    assert [message["content"] for message in changed.messages] == ["a", "bb"]
    assert texts == [Text(1, "content", "b")]
