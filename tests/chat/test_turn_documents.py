"""Documents of turns: their texts, what is trained in them, and which rows have them."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation, Message
from packprep.chat.template import ChatTemplate, RenderError, load_chat_template
from packprep.chat.turn_counts import TurnDocument
from packprep.chat.turn_documents import TurnSplitter
from packprep.chat.turns import Rendered, TurnFinder
from packprep.engines.tokenizer import load_tokenizer
from tests.helpers.errors import refused

from .test_template import CHATS, TOKENIZERS, TOOL, templated
from .test_turns import CHATML, FORGETS, SPECIALS, chat, finder

# As Kimi's template does it: the thoughts of all turns before the last answer are empty.
KIMI = (
    "{%- for m in messages -%}{%- if loop.first and m.role != 'system' -%}"
    "<|im_start|>system<|im_middle|>You are Kimi.<|im_end|>{%- endif -%}"
    "<|im_start|>{{ m.role }}<|im_middle|>{%- if m.role == 'assistant' -%}"
    "<think>{{ (m.reasoning_content or '') if loop.last else '' }}</think>{%- endif -%}"
    "{{ m.content }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant<|im_middle|>{%- endif -%}"
)
# As Llama 3's: it appends only, and knows reasoning as a part of content alone.
LLAMA = (
    "<s>{% for m in messages %}<|im_start|>{{ m.role }}<|im_middle|>\n\n{{ m.content | trim }}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_middle|>\n\n{% endif %}"
)
# It knows reasoning as a part of content, and writes that of the last turn between other signs.
SIGNS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- set c = m.content %}"
    "{%- if '</think>' in c %}"
    "{%- set r = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{%- set c = c.split('</think>')[-1].strip() %}"
    "{%- if loop.last %}{{- '[T]' + r + '[/T]' }}{%- endif %}{%- endif %}"
    "{{- c + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
COUNTS = ["documents", "split_rows", "same_text_rows", "without_turn", "at_text", "earlier"]
COUNTS += ["behind_rows", "behind_characters"]


def splitter(source: str, turns: Any = "each", **options: Any) -> TurnSplitter:
    return TurnSplitter(finder(source, **options), turns)


def documents(rendered: Rendered) -> list[tuple[int, str, list[str]]]:
    """Turn, text and trained texts of each document."""
    assert rendered.turns is not None
    first, found = 0, []
    size = len(rendered.text)
    whole = TurnDocument(message=-1, size=size, trained=None, specials=None)
    for document in rendered.turns["documents"] or [whole]:
        text = rendered.text[first : first + document["size"]]
        first += document["size"]
        bounds = document["trained"]
        if bounds is None:
            bounds = [place for span in rendered.trained or [] for place in span]
        spans = zip(bounds[::2], bounds[1::2], strict=True)
        found.append((document["message"], text, [text[start:stop] for start, stop in spans]))
    assert first in (0, len(rendered.text))
    return found


def counts(rendered: Rendered) -> dict[str, int]:
    """The counts that are not 0."""
    assert rendered.turns is not None
    named = dict(zip(COUNTS, rendered.turns["counts"], strict=True))
    return {name: count for name, count in named.items() if count}


def thinking(*thoughts: str) -> list[Message]:
    """A turn for each thought, which its answer has in both fields that templates read."""
    messages: list[Message] = []
    for number, thought in enumerate(thoughts):
        answer: Message = {"role": "assistant", "content": f"answer {number}"}
        if thought:
            answer |= {"reasoning_content": thought, "thinking": thought}
        messages += [{"role": "user", "content": f"question {number}"}, answer]
    return messages


def by_prefixes(
    template: ChatTemplate, conversation: Conversation, end: str
) -> list[tuple[int, str, list[str]]]:
    """Documents by definition. end: the token that ends a turn."""
    found = []
    for turn, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        until, before = (
            Conversation(conversation.messages[:stop], conversation.tools)
            for stop in (turn + 1, turn)
        )
        text = template.render(until)
        prompt = template.render(before, add_generation_prompt=True)
        start = len(prompt)
        if not text.startswith(prompt):  # Mistral's writes a system message before a question only
            sign = prompt[prompt.rindex("[") :]
            start = text.rindex(sign) + len(sign)
        found.append((turn, text, [text[start : text.rindex(end) + len(end)]]))
    return found


@pytest.mark.parametrize("name", templated())
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_labels_of_real_templates_are_those_of_the_definition(name: str, tools: Any) -> None:
    template = load_chat_template(load_tokenizer(TOKENIZERS / name))
    specials = [*SPECIALS, "<|eot_id|>", "[INST]", "[/INST]", "<|begin_of_text|>"]
    specials += ["<|start_header_id|>", "<|end_header_id|>"]
    each = TurnSplitter(TurnFinder(template, specials), "each")
    end = {"qwen3": "<|im_end|>", "llama3_2": "<|eot_id|>"}.get(name, "</s>")
    compared = 0
    for messages in (*CHATS.values(), thinking("one", "", "three"), thinking("", "")):
        conversation = template.with_call_arguments(Conversation(messages, tools))
        try:
            template.render(conversation)
            expected = by_prefixes(template, conversation, end)
        except (RenderError, ValueError):
            continue
        rendered = each.render(conversation)
        assert documents(rendered)[: len(expected)] == expected or not expected
        compared += bool(expected)
    assert compared > 3


@pytest.mark.parametrize(
    ("source", "thought"),
    [(FORGETS, "I look"), (SIGNS, "a"), (SIGNS, "2 divides it."), (SIGNS, "[see] <this> or that")],
)
def test_auto_sees_a_lost_thought_of_a_content(source: str, thought: str) -> None:
    """Also where it is written between other signs."""
    inline = f"<think>\n{thought}\n</think>\n\nhello"
    rendered = splitter(source, "auto").render(Conversation(chat("hi", inline, "bye", inline)))
    assert [turn for turn, _, _ in documents(rendered)] == [1, 3]
    assert rendered.left_out == []
    last = splitter(source, "auto").render(Conversation(chat("hi", "hello", "bye", inline)))
    assert [turn for turn, _, _ in documents(last)] == [-1]
    assert last.left_out == []
    empty = splitter(FORGETS, "auto").render(Conversation(thinking("", "")))
    assert counts(empty) == {"documents": 1, "same_text_rows": 1}


@pytest.mark.parametrize("calls", [False, True])
def test_auto_refuses_a_template_that_shows_no_model_what_it_trains(calls: bool) -> None:
    unstable = "<s>{{ messages | length }} messages</s>" + CHATML
    messages = chat("hi", "hello", "bye", "ciao")
    if calls:
        messages[1]["tool_calls"] = [{"function": {"name": "f", "arguments": {"x": "y"}}}]
    with refused(RenderError, "renders the messages before message 1 differently once it"):
        splitter(unstable, "auto").render(Conversation(messages))
    rendered = splitter(unstable).render(Conversation(messages))
    expected = [["hello<|im_end|>"], ["ciao<|im_end|>"]]
    assert [trained for _, _, trained in documents(rendered)] == expected
    assert counts(rendered) == {"documents": 2, "split_rows": 1, "at_text": 2}


@pytest.mark.parametrize("system", ["be kind", "be <s> kind"])  # by its form, and by itself
def test_auto_keeps_rows_whole_where_only_the_system_message_moves(system: str) -> None:
    mistral = (
        "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST]"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n"
        "{% endif %}{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
    )
    messages = chat("hi", "hello", "bye", "ciao")
    messages.insert(0, {"role": "system", "content": system})
    rendered = splitter(mistral, "auto").render(Conversation(messages))
    assert rendered.text == "[INST]hi[/INST]hello</s>[INST]bye[/INST]ciao</s>"
    assert counts(rendered) == {"documents": 1}
    assert [(part.message, part.text) for part in rendered.left_out] == [(0, system)]


@given(
    st.lists(st.sampled_from(["", "thinks", "inline", "calls"]), min_size=1, max_size=4),
    st.sampled_from([FORGETS, KIMI, LLAMA, CHATML, SIGNS]),
    st.booleans(),
    st.randoms(),
)
def test_auto_trains_every_text_that_one_of_both_can_train(
    turns: list[str], source: str, trailing: bool, rng: random.Random
) -> None:
    """A text of a turn that `each` trains is trained once by `auto`, whatever auto chose."""
    messages: list[Message] = []
    for number, kind in enumerate(turns):
        answer: Message = {"role": "assistant"}
        answer["content"] = f"answer {number} {rng.random()}"
        if kind == "thinks":
            thought = f"thought {number} {rng.random()}"
            answer |= {"reasoning_content": thought, "thinking": thought}
        if kind == "inline":
            answer["content"] = f"<think>thought {rng.random()}</think>{answer['content']}"
        if kind == "calls":
            answer["tool_calls"] = [{"function": {"name": f"f{number}", "arguments": {}}}]
        messages += [{"role": "user", "content": f"question {rng.random()}"}, answer]
    messages += [{"role": "user", "content": "and?"}] if trailing else []
    auto, each = (
        documents(splitter(source, mode).render(Conversation(messages)))
        for mode in ("auto", "each")
    )
    trained = "\n".join(text for _, _, texts in auto for text in texts)
    for message in messages[1::2]:
        answered = str(message["content"])
        thought, _, reply = answered.rpartition("</think>")
        thought = thought.removeprefix("<think>")
        for text in (answered, str(message.get("reasoning_content", "")), thought, reply):
            wanted = sum(text in part for _, _, texts in each for part in texts)
            assert not text or trained.count(text) == wanted
