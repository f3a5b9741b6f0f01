import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation
from packprep.chat.left_out import LeftOut
from packprep.chat.template import ChatTemplate
from packprep.chat.turns import TurnFinder

from .test_template import template
from .test_turns import CHATML, SPECIALS, chat

THOUGHT = "first I look at the question"
# What Qwen3's template does with reasoning: only the turns behind the last question keep it.
FORGETS = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{%- set content = m.content %}{%- set thought = m.reasoning_content or '' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{%- set content = content.split('</think>')[-1].lstrip() %}{%- endif %}"
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def left_out(folder: Path, source: str, messages: Any, train_on: Any = "assistant") -> Any:
    finder = TurnFinder(template(folder, source), SPECIALS, train_on)
    return finder.render(Conversation(messages)).left_out


@pytest.mark.parametrize("train_on", ["assistant", "last-turn", "all"])
def test_reasoning_that_a_template_forgets_is_named_with_its_message(
    tmp_path: Path, train_on: str
) -> None:
    messages = chat("hi", "hello", "bye", "ciao")
    for message in messages[1::2]:
        message["reasoning_content"] = message["thinking"] = THOUGHT
    assert left_out(tmp_path, FORGETS, messages, train_on) == [LeftOut(1, "reasoning", THOUGHT)]
    assert left_out(tmp_path, CHATML, messages, train_on) == [
        LeftOut(1, "reasoning", THOUGHT),
        LeftOut(3, "reasoning", THOUGHT),
    ]


def test_reasoning_at_the_beginning_of_content_is_left_out_in_part(tmp_path: Path) -> None:
    inline = f"<think>{THOUGHT}</think>\n\nhello  my friend"
    messages = chat("hi", inline, "bye", inline)
    assert left_out(tmp_path, FORGETS, messages) == [
        LeftOut(1, "content", f"<think>{THOUGHT}</think>")
    ]
    assert left_out(tmp_path, CHATML, messages) == []


def test_the_end_and_the_middle_of_a_text_are_left_out_in_part(tmp_path: Path) -> None:
    cut = CHATML.replace("{{ m.content }}", "{{ m.content.split('[stop]')[0] }}")
    messages = chat("hi", f"{THOUGHT} [stop] and then more", "bye", "ciao")
    assert left_out(tmp_path, cut, messages) == [LeftOut(1, "content", "[stop] and then more")]
    out = CHATML.replace(
        "{{ m.content }}", "{{ m.content.split('[a]')[0] + m.content.split('[/a]')[-1] }}"
    )
    messages = chat("hi", f"{THOUGHT} [a]gone[/a] and then more", "bye", "ciao")
    assert left_out(tmp_path, out, messages) == [LeftOut(1, "content", "[a]gone[/a]")]


def test_white_space_and_the_signs_of_json_are_not_left_out(tmp_path: Path) -> None:
    source = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content | trim }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}",
    )
    messages = chat(" hi\n", "  hello\n\n", "bye", " ")
    messages[1]["tool_calls"] = [
        {"function": {"name": "f", "arguments": {"x": 'a "b"\nc \\ d', "y": ["e", {"z": "f"}]}}}
    ]
    assert left_out(tmp_path, source, messages) == []
    silent = left_out(tmp_path, CHATML, messages)
    assert [(part.message, part.field) for part in silent] == [(1, "tool_calls")] * 4


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4), st.randoms())
def test_what_is_left_out_is_what_the_text_does_not_contain(
    turns: list[tuple[bool, bool]],
    rng: random.Random,
) -> None:
    """Every thought is one of a kind, so a search of the text says which ones are there."""
    messages: list[dict[str, Any]] = []
    expected = []
    for number, (thinks, inline) in enumerate(turns):
        thought = f"{number} thinks of {rng.random()}"
        answer = {"role": "assistant", "content": f"answer {rng.random()}"}
        if thinks and inline:
            answer["content"] = f"<think>{thought}</think>{answer['content']}"
        elif thinks:
            answer["reasoning_content"] = answer["thinking"] = thought
        messages += [{"role": "user", "content": f"question {rng.random()}"}, answer]
        if thinks and number < len(turns) - 1:
            gone = f"<think>{thought}</think>" if inline else thought
            expected.append(LeftOut(2 * number + 1, "content" if inline else "reasoning", gone))
    finder = TurnFinder(ChatTemplate(sources={"default": FORGETS}, variables={}), SPECIALS)
    rendered = finder.render(Conversation(messages))
    assert rendered.left_out == expected
    for part in expected:
        assert part.text not in rendered.text


def test_names_of_messages_are_left_out_where_the_template_does_not_write_them(
    tmp_path: Path,
) -> None:
    messages = chat("hi", "hello", "bye", "<s>ciao")
    messages[0]["name"], messages[1]["name"], messages[2]["name"] = "Ann", "Bob", " "
    names = [LeftOut(0, "name", "Ann"), LeftOut(1, "name", "Bob")]
    written = CHATML.replace("{{ m.role }}\n", "{{ m.role }}{{ m.name }}\n")
    compared = CHATML.replace("{{ m.role }}\n", "{{ m.role }}{{ '!' if m.name == 'Ann' }}\n")
    for rows in (messages[:2], messages):  # by a form, and by itself
        assert left_out(tmp_path, CHATML, rows, "all") == names
        assert left_out(tmp_path, written, rows, "all") == []
        assert left_out(tmp_path, compared, rows, "all") == []
    users = CHATML.replace(
        "{{ m.role }}\n", "{{ m.role }}{% if m.role == 'user' %}{{ m.name }}{% endif %}\n"
    )
    assert left_out(tmp_path, users, messages[:2], "all") == names[1:]
