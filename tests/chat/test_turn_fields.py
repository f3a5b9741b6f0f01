import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep import build
from packprep.chat.conversations import Conversation, find_conversations
from packprep.chat.masks import encode_chats, render_chats
from packprep.chat.template import ChatTemplate, RenderError, load_chat_template
from packprep.chat.turns import TurnFinder
from packprep.loaders import PackedShards
from packprep.support.errors import ConfigError
from tests.helpers.corpus import build_options, save_tokenizer, tiny_tokenizer
from tests.helpers.errors import refused
from tests.helpers.files import config

from .test_masks import chats, loaded
from .test_template import CHATS, TOKENIZERS, templated, transformers_tokenizer
from .test_turns import CHATML, SPECIALS, chat

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


def rows_of_every_kind(count: int, *, calls_with_text: bool) -> list[list[dict[str, Any]]]:
    """Real chats, in which the assistant thinks, in a field or in the text, and calls tools."""
    rng = random.Random(5)
    words = [message["content"] for messages in chats(count) for message in messages]
    rows = []
    for messages in chats(count):
        row: list[dict[str, Any]] = []
        for message in messages:
            if message["role"] != "assistant":
                row.append(message)
                continue
            answer = dict(message)
            kind = rng.randrange(5)
            if kind == 1:
                answer["reasoning_content"] = rng.choice(words)
            elif kind == 2:
                answer["content"] = f"<think>\n{rng.choice(words)}\n</think>\n\n{answer['content']}"
            elif kind >= 3:
                arguments: dict[str, Any] = {"city": rng.choice(words), "days": 3}
                function = {"name": "weather", "arguments": arguments}
                called = {"type": "function", "id": "abcdefghi", "function": function}
                text = rng.choice(["", answer["content"]]) if calls_with_text else ""
                calling = {"role": "assistant", "content": text, "tool_calls": [called]}
                if kind == 4:
                    calling["reasoning_content"] = rng.choice(words)
                result = {"role": "tool", "content": "[1]", "tool_call_id": "abcdefghi"}
                row += [calling, result]
            row.append(answer)
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", templated())
def test_labels_of_chosen_fields_equal_those_of_a_twin_that_knows_the_format(name: str) -> None:
    tokenizer, exact, encoder = loaded(TOKENIZERS / name, "hf")
    template = load_chat_template(tokenizer)
    backend = transformers_tokenizer(name).backend_tokenizer
    rows = [
        *rows_of_every_kind(40, calls_with_text=name == "qwen3"),
        *(messages for messages in CHATS.values() if messages[-1]["role"] == "assistant"),
    ]
    table = pa.table({"messages": [json.dumps(row) for row in rows]})
    columns = find_conversations(["messages"])
    assert columns is not None
    trained = dict.fromkeys(CHOICES, 0)
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
        trained[fields] += int(tokens.trained.sum())
    assert trained["content",] > 0 < trained["tool_calls",]
    assert (trained["reasoning",] > 0) == (name == "qwen3")
    # ".\n" between an answer and a call is one token with characters of both.
    assert 0 <= sum(trained[field,] for field in ALL) - trained[ALL] <= len(rows) * 3


def spans(
    source: str, messages: Any, *fields: str, specials: Sequence[str] = SPECIALS
) -> list[str]:
    template = ChatTemplate(sources={"default": source}, variables={})
    rendered = TurnFinder(template, specials, "assistant", fields).render(Conversation(messages))
    return [rendered.text[first:last] for first, last in rendered.trained or []]


THINKING = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function.arguments | tojson }}</call>"
    "{% endfor %}",
)


def answer(content: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content, **fields}]


def test_an_empty_thought_is_reasoning_and_the_end_belongs_to_the_last_field() -> None:
    assert spans(THINKING, chat("hi", "hello"), "content") == ["hello<|im_end|>"]
    assert spans(THINKING, chat("hi", "hello"), "reasoning") == ["<think></think>"]
    silent = answer("", reasoning_content="hm", thinking="hm")
    assert spans(THINKING, silent, "reasoning") == ["<think>hm</think><|im_end|>"]
    assert spans(THINKING, silent, "content", "tool_calls") == []
    assert spans(CHATML, answer(""), "content") == ["<|im_end|>"]
    assert spans(CHATML, chat("hi", "hello"), "reasoning") == []


def test_an_empty_thought_that_is_written_otherwise_than_a_thought_is_refused() -> None:
    other = THINKING.replace(
        "<think>{{ m.reasoning_content }}</think>",
        "<think>{% if m.reasoning_content %}{{ m.reasoning_content }}{% else %} {% endif %}"
        "</think>",
    )
    assert spans(other, chat("hi", "hello"), *ALL) == ["<think> </think>hello<|im_end|>"]
    words = ("the reasoning of message 1 ends", "its content begins", "name both or neither")
    with refused(RenderError, *words):
        spans(other, chat("hi", "hello"), "content")


def test_calls_whose_texts_the_template_does_not_write_are_refused() -> None:
    numbers = [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    calling = answer("so", tool_calls=numbers)
    assert spans(THINKING, calling, "reasoning") == ["<think></think>"]
    with pytest.raises(RenderError, match="where the content of message 1 ends and its tool_calls"):
        spans(THINKING, calling, "content")
    assert spans(CHATML, calling, "content") == ["so<|im_end|>"], "which ignores calls"


def test_reasoning_in_the_text_is_reasoning_where_the_template_takes_it_for_one() -> None:
    inline = chat("hi", "<think>hm</think>hello", "so", "<think>ah</think>yes")
    assert spans(CHATML, inline, "reasoning") == []
    assert spans(CHATML, inline, "content") == [
        "<think>hm</think>hello<|im_end|>",
        "<think>ah</think>yes<|im_end|>",
    ]
    splits = (
        THINKING.replace(
            "{% for m in messages %}",
            "{% for m in messages %}{% set c = m.content.split('</think>') %}",
        )
        .replace("{{ m.content }}", "{{ c[-1] }}")
        .replace(
            "m.reasoning_content",
            "m.reasoning_content or c[0].split('<think>')[-1] if c[1:] or "
            "m.reasoning_content else ''",
        )
    )
    assert spans(splits, inline, "reasoning") == ["<think>hm</think>", "<think>ah</think>"]
    assert spans(splits, inline, "content") == ["hello<|im_end|>", "yes<|im_end|>"]
    spelled = chat("hi", "<think>hm</think>hello<|im_end|>")  # by itself
    assert spans(splits, spelled, "reasoning") == ["<think>hm</think>"]
    assert spans(splits, spelled, "content") == ["hello<|im_end|><|im_end|>"]


def test_channels_of_a_turn_are_split_at_its_special_tokens() -> None:
    specials = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}"
        "<|end|>{% else %}{% if m.reasoning_content %}<|start|>assistant<|channel|>think<|message|>"
        "{{ m.reasoning_content }}<|end|>{% endif %}{% if m.content %}<|start|>assistant<|channel|>"
        "final<|message|>{{ m.content }}<|end|>{% endif %}{% for c in m.tool_calls %}<|start|>"
        "assistant to={{ c.function.name }}<|message|>{{ c.function.arguments }}<|end|>{% endfor %}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    call = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    thinks = {"reasoning_content": "hm", "thinking": "hm"}

    def parts(messages: Any, *fields: str) -> list[str]:
        return spans(source, messages, *fields, specials=specials)

    assert parts(answer("yes"), "content") == ["<|channel|>final<|message|>yes<|end|>"]
    assert parts(answer("yes"), "reasoning") == []
    assert parts(answer("yes", **thinks), "content") == ["yes<|end|>"]
    calling = answer("", tool_calls=call, **thinks)
    assert parts(calling, "reasoning") == ["<|channel|>think<|message|>hm<|end|><|start|>assistant"]
    assert parts(calling, "tool_calls") == [" to=f<|message|>{}<|end|>"]


def test_generation_blocks_are_cut_down_to_fields() -> None:
    source = THINKING.replace("<think>", "{% generation %}<think>").replace(
        "</think>{% endif %}{{ m.content }}",
        "</think>{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}",
    )
    messages = answer("hello", reasoning_content="hm", thinking="hm")
    assert spans(source, messages, *ALL) == ["<think>hm</think>hello"]
    assert spans(source, messages, "content") == ["hello"]
    assert spans(source, messages, "reasoning") == ["<think>hm</think>"]


@pytest.mark.parametrize("fields", ["content", "reasoning,content,tool_calls"])
def test_a_build_trains_the_chosen_fields(tmp_path: Path, fields: str) -> None:
    side = {"bos_token": "<s>", "eos_token": "</s>"}
    side["chat_template"] = THINKING.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>")
    rows = [{"messages": answer("the cat", reasoning_content="a dog")}]
    options = build_options(tmp_path, {"in.jsonl": rows}, messages_column="messages")
    options["tokenizer"] = str(save_tokenizer(tmp_path / "chat", config=side))
    build(config(**options, train_fields=tuple(fields.split(","))))
    pack = PackedShards(tmp_path / "out")[0]
    assert pack.labels is not None
    kept = pack.labels[pack.labels != -100].tolist()
    trained = tiny_tokenizer().decode(kept, skip_special_tokens=False)
    assert trained == ("the cat</s>" if fields == "content" else "<think>a dog</think>the cat</s>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train_fields": "thoughts"}, "train_fields has 'thoughts', expected some of content, "),
        ({"train_fields": ""}, "train_fields is empty, expected some of content, reasoning, "),
        ({"train_fields": "content", "train_on": "last-turn"}, "is for train_on assistant, not"),
        ({"train_fields": "content", "messages_column": None}, "give --messages-column too"),
    ],
)
def test_wrong_fields_are_refused(options: dict[str, Any], words: str) -> None:
    paths = {"sources": "a", "output": "b", "tokenizer": "c", "messages_column": "m"}
    with refused(ConfigError, words):
        config(**paths | options)


def test_a_response_without_a_template_is_content(tmp_path: Path) -> None:
    options = build_options(tmp_path, {"in.jsonl": [{"prompt": "the", "response": "cat"}]})
    options |= {"prompt_column": "prompt", "response_column": "response"}
    with refused(ConfigError, "without a chat template a response is content"):
        build(config(**options, train_fields=("reasoning",)))
