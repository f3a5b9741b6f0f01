"""Labels of chosen fields, by the formats of public templates and by small ones."""

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from packprep.chat.conversations import find_conversations
from packprep.chat.masks import encode_chats, render_chats
from packprep.chat.template import RenderError, load_chat_template
from packprep.chat.turns import TurnFinder
from tests.helpers.errors import refused

from .test_masks import chats, loaded
from .test_template import CHATS, TOKENIZERS, templated, transformers_tokenizer
from .test_turns import CHATML, chat, chatml, find, trained

ALL = ("content", "reasoning", "tool_calls")
CHOICES = [part for size in (1, 2, 3) for part in itertools.combinations(ALL, size)]

# The turns of a rendering, and the fields inside each, for those who know the formats by heart.
TURNS = {
    "qwen3": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "llama3_2": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
    "mistral_nemo": r"(?:\[/INST\]|\[/TOOL_RESULTS\])(.*?</s>)",
}
FIELDS = {
    "qwen3": r"(?P<reasoning><think>\n.*?\n</think>\n\n)?(?P<content>.*?)"
    r"(?P<tool_calls>\n?<tool_call>\n.*</tool_call>)?(?P<end><\|im_end\|>)",
    "llama3_2": r'(?P<tool_calls>\{"name": .*\})?(?P<content>.*?)(?P<end><\|eot_id\|>)',
    "mistral_nemo": r"(?P<tool_calls>\[TOOL_CALLS\].*\])?(?P<content>.*?)(?P<end></s>)",
}


def by_hand(name: str, text: str, fields: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Character spans of the chosen fields, from a regular expression of each format."""
    for turn in re.finditer(TURNS[name], text, re.DOTALL):
        parts = re.fullmatch(FIELDS[name], turn[1], re.DOTALL)
        assert parts is not None, turn[1]
        last = "content"
        for field in ("reasoning", "content", "tool_calls"):
            if field in parts.groupdict() and parts[field]:
                last = field
                if field in fields:
                    yield turn.start(1) + parts.start(field), turn.start(1) + parts.end(field)
        if last in fields:
            yield turn.start(1) + parts.start("end"), turn.end(1)


def rows_of_every_kind(count: int, *, calls_with_text: bool) -> Iterator[list[dict[str, Any]]]:
    """Real chats, in which the assistant thinks, in a field or in the text, and calls tools."""
    rng = random.Random(5)
    words = [message["content"] for messages in chats(count) for message in messages]
    for messages in chats(count):
        row: list[dict[str, Any]] = []
        for message in messages:
            kind = rng.randrange(5) if message["role"] == "assistant" else 0
            changed, thought = dict(message), rng.choice(words)
            if kind == 1:
                changed["reasoning_content"] = thought
            elif kind == 2:
                changed["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
            elif kind >= 3:
                function = {"name": "weather", "arguments": {"city": rng.choice(words), "days": 3}}
                call = {"type": "function", "id": "abcdefghi", "function": function}
                text = rng.choice(["", message["content"]]) if calls_with_text else ""
                thinks = {"reasoning_content": thought} if kind == 4 else {}
                row.append({"role": "assistant", "content": text, "tool_calls": [call]} | thinks)
                row.append({"role": "tool", "content": "[1]", "tool_call_id": "abcdefghi"})
            row.append(changed)
        yield row


@pytest.mark.parametrize("name", templated())
def test_labels_of_chosen_fields_equal_those_of_a_twin_that_knows_the_format(name: str) -> None:
    tokenizer, exact, encoder = loaded(TOKENIZERS / name, "hf")
    template = load_chat_template(tokenizer)
    backend = transformers_tokenizer(name).backend_tokenizer
    rows = [
        *rows_of_every_kind(15, calls_with_text=name == "qwen3"),
        *(messages for messages in CHATS.values() if messages[-1]["role"] == "assistant"),
    ]
    table = pa.table({"messages": [json.dumps(row) for row in rows]})
    columns = find_conversations(["messages"])
    assert columns is not None
    counts = dict.fromkeys(CHOICES, 0)
    for fields in CHOICES:
        finder = TurnFinder(template, exact.specials, "assistant", fields)
        rendered = render_chats(table, columns, finder)
        assert rendered["problem"].null_count == len(rows), rendered["problem"]
        tokens = encode_chats(rendered, encoder, exact)
        for number, text in enumerate(rendered["text"].to_pylist()):
            first, last = tokens.offsets[number : number + 2]
            encoding = backend.encode(text, add_special_tokens=False)
            assert tokens.ids[first:last].tolist() == encoding.ids
            spans = [*by_hand(name, str(text), fields)]
            expected = [
                start < stop
                and any(start < end and begin < stop for begin, end in spans if begin < end)
                for start, stop in encoding.offsets
            ]
            assert tokens.trained[first:last].tolist() == expected, (fields, text)
        counts[fields] += int(tokens.trained.sum())
    assert counts["content",] > 0 < counts["tool_calls",]
    assert (counts["reasoning",] > 0) == (name == "qwen3")
    # ".\n" between an answer and a call is one token with characters of both.
    assert 0 <= sum(counts[field,] for field in ALL) - counts[ALL] <= len(rows) * 3


def answer(content: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content, **fields}]


THINKING = chatml(
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
)
OTHERWISE = THINKING.replace(
    "{{ m.reasoning_content }}",
    "{% if m.reasoning_content %}{{ m.reasoning_content }}{% else %} {% endif %}",
)
SPLITS = (
    THINKING.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% set c = m.content.split('</think>') %}",
    )
    .replace("{{ m.content }}", "{{ c[-1] }}")
    .replace(
        "m.reasoning_content",
        "m.reasoning_content or c[0].split('<think>')[-1] if c[1:] or m.reasoning_content else ''",
    )
)
BLOCKS = THINKING.replace("<think>", "{% generation %}<think>").replace(
    "</think>{% endif %}{{ m.content }}",
    "</think>{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}",
)
CHANNELS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|middle|>{{ m.content }}<|end|>"
    "{% else %}{% if m.reasoning_content %}<|start|>assistant<|stop|>think<|im_middle|>"
    "{{ m.reasoning_content }}<|end|>{% endif %}{% if m.content %}<|start|>assistant<|stop|>"
    "final<|im_middle|>{{ m.content }}<|end|>{% endif %}{% for c in m.tool_calls %}<|start|>"
    "assistant to={{ c.function.name }}<|im_middle|>{{ c.function.arguments }}<|end|>{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
THOUGHT = {"reasoning_content": "hm", "thinking": "hm"}
CALL = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
NUMBERS = answer(
    "so", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
)
HELLO = chat("hi", "hello")
INLINE = chat("hi", "<think>hm</think>hello", "so", "<think>ah</think>yes")
SPELLED = chat("hi", "<think>hm</think>hello<|im_end|>")  # a row by itself


@pytest.mark.parametrize(
    ("source", "messages", "fields", "expected"),
    [
        (THINKING, HELLO, ["content"], ["hello<|im_end|>"]),
        (THINKING, HELLO, ["reasoning"], ["<think></think>"]),
        (THINKING, answer("", **THOUGHT), ["reasoning"], ["<think>hm</think><|im_end|>"]),
        (THINKING, answer("", **THOUGHT), ["content", "tool_calls"], []),
        (THINKING, NUMBERS, ["reasoning"], ["<think></think>"]),
        (CHATML, NUMBERS, ["content"], ["so<|im_end|>"]),  # it ignores calls
        (CHATML, answer(""), ["content"], ["<|im_end|>"]),
        (CHATML, HELLO, ["reasoning"], []),
        (CHATML, INLINE, ["reasoning"], []),
        (
            CHATML,
            INLINE,
            ["content"],
            ["<think>hm</think>hello<|im_end|>", "<think>ah</think>yes<|im_end|>"],
        ),
        (SPLITS, INLINE, ["reasoning"], ["<think>hm</think>", "<think>ah</think>"]),
        (SPLITS, INLINE, ["content"], ["hello<|im_end|>", "yes<|im_end|>"]),
        (SPLITS, SPELLED, ["reasoning"], ["<think>hm</think>"]),
        (SPLITS, SPELLED, ["content"], ["hello<|im_end|><|im_end|>"]),
        (OTHERWISE, HELLO, ALL, ["<think> </think>hello<|im_end|>"]),
        (BLOCKS, answer("hello", **THOUGHT), ALL, ["<think>hm</think>hello"]),
        (BLOCKS, answer("hello", **THOUGHT), ["content"], ["hello"]),
        (BLOCKS, answer("hello", **THOUGHT), ["reasoning"], ["<think>hm</think>"]),
        (CHANNELS, answer("yes"), ["content"], ["<|stop|>final<|im_middle|>yes<|end|>"]),
        (CHANNELS, answer("yes"), ["reasoning"], []),
        (CHANNELS, answer("yes", **THOUGHT), ["content"], ["yes<|end|>"]),
        (
            CHANNELS,
            answer("", tool_calls=CALL, **THOUGHT),
            ["reasoning"],
            ["<|stop|>think<|im_middle|>hm<|end|><|start|>assistant"],
        ),
        (
            CHANNELS,
            answer("", tool_calls=CALL, **THOUGHT),
            ["tool_calls"],
            [" to=f<|im_middle|>{}<|end|>"],
        ),
    ],
)
def test_the_text_of_chosen_fields_is_trained(
    source: str, messages: Any, fields: Sequence[str], expected: list[str]
) -> None:
    assert trained(find(source, messages, fields=fields)) == expected


@pytest.mark.parametrize(
    ("source", "messages", "words"),
    [
        (OTHERWISE, HELLO, ["the reasoning of message 1 ends", "its content begins"]),
        (SPLITS, chat("hi", "so <think>hm</think>hello"), ["the reasoning of message 1 ends"]),
        (THINKING, NUMBERS, ["where the content of message 1 ends and its tool_calls"]),
    ],
)
def test_fields_whose_bound_cannot_be_found_are_refused(
    source: str, messages: Any, words: list[str]
) -> None:
    with refused(RenderError, *words, "name both or neither"):
        find(source, messages, fields=("content",))
