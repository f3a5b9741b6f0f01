import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation
from packprep.chat.template import RenderError
from packprep.chat.turn_locator import TrainOn
from packprep.chat.turns import Rendered, TurnFinder
from tests.helpers.errors import refused

from .test_template import template

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PROMPT = "message 1 does not begin with the template's generation prompt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tokenizer"


def find(
    folder: Path, source: str, messages: Any, train_on: TrainOn = "assistant", tools: Any = None
) -> Rendered:
    return TurnFinder(template(folder, source), SPECIALS, train_on).render(
        Conversation(messages, tools)
    )


def trained(rendered: Rendered) -> list[str]:
    return [rendered.text[first:last] for first, last in rendered.trained or []]


def chat(*texts: str) -> list[dict[str, Any]]:
    """User and assistant in turn."""
    return [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]


def chatml(content: str) -> str:
    """CHATML with another expression for the content of a message."""
    return CHATML.replace("{{ m.content }}", content)


THINKS = chatml("{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}")
CALLS = "{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
BLOCKS = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ "
    "m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)
SYSTEM_LAST = (
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[{% if "
    "loop.revindex <= 2 and (loop.last or loop.revindex == 2) %}{{ messages[0].content }} "
    "{% endif %}{{ m.content }}]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
LOOKS = (
    "{% for m in messages %}{% if m.content.startswith('<r>') and m.content.endswith('</r>') "
    "%}R{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
TWO = chat("hi", "hello", "bye", "ciao")
CALL = {"id": "1", "function": {"name": "f", "arguments": {"a": 'x"y'}}}
WITH_CALLS = [
    *chat("hi", "", "so"),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "three"},
]
TRAINED: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "from the generation prompt to the end token": (
        CHATML,
        TWO,
        ["hello<|im_end|>", "ciao<|im_end|>"],
    ),
    "no turn": (CHATML, chat("hi"), []),
    "what the generation prompt does not write": (
        THINKS,
        chat("hi", "hello"),
        ["<think></think>hello<|im_end|>"],
    ),
    "not what it writes": (
        THINKS.replace("assistant\n{% endif %}", "assistant\n<think></think>{% endif %}"),
        chat("hi", "hello"),
        ["hello<|im_end|>"],
    ),
    "without a generation prompt": (INST, TWO, [" hello</s>", " ciao</s>"]),
    "earlier thinking dropped": (
        chatml("{{ m.content if loop.last else m.content.split('</t>')[-1] }}"),
        chat("hi", "<t>hm</t>hello", "bye", "<t>ah</t>ciao"),
        ["hello<|im_end|>", "<t>ah</t>ciao<|im_end|>"],
    ),
    "the system message last": (
        SYSTEM_LAST,
        [{"role": "system", "content": "be"}, *TWO],
        ["hello</s>", "ciao</s>"],
    ),
    "trims, and looks at how a text begins and ends": (
        LOOKS,
        chat("<r>1</r>", " a ", "<r>\n2</r>", "<r>b"),
        ["a<|im_end|>", "<r>b<|im_end|>"],
    ),
    "compares the messages of the user": (
        CHATML.replace("{{ m.role }}\n", "{{ m.role }}\n{{ 'tools' if m == messages[0] }}"),
        chat("hi", "hello", "hi", "ciao"),
        ["hello<|im_end|>", "ciao<|im_end|>"],
    ),
    "calls and empty texts": (
        chatml(CALLS),
        WITH_CALLS,
        [
            "<|im_end|>",
            '{"name": "f", "arguments": {"a": "x\\"y"}}<|im_end|>',
            "three<|im_end|>",
        ],
    ),
    "an assistant first": (
        "{{ messages[0].role }}:" + CHATML,
        chat("", "hello", "hi", "ciao")[1:],
        ["hello<|im_end|>", "ciao<|im_end|>"],
    ),
    "blocks": (BLOCKS, TWO, ["hello</s>", "ciao</s>"]),
    "blocks upside down": (
        "{% filter trim | reverse %}" + BLOCKS + "{% endfilter %}",
        chat("hi", "hello"),
        [">s/<olleh"],
    ),
    "blocks in capitals": (
        "{% filter upper %}" + BLOCKS + "{% endfilter %}",
        chat("hi", "hello"),
        ["HELLO</S>"],
    ),
    "without an end token": (CHATML.replace("<|im_end|>", ""), TWO, ["hello\n", "ciao\n"]),
    "without an end token or a text": (
        CHATML.replace("<|im_end|>", ""),
        chat("hi", "hello", "bye", ""),
        ["hello\n", "\n"],
    ),
}


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_a_model_writes(folder: Path, name: str) -> None:
    source, messages, expected = TRAINED[name]
    rendered = find(folder, source, messages)
    assert trained(rendered) == expected
    assert rendered.specials is None
    asked = max(at for at, message in enumerate(messages) if message["role"] == "user")
    answers = sum(message["role"] == "assistant" for message in messages[asked:])
    of_last = expected[len(expected) - answers :]
    if name != "blocks upside down":  # it is not known which message they are of
        assert trained(find(folder, source, messages, "last-turn")) == of_last
    assert find(folder, source, messages, "all").trained is None


def test_a_template_ends_turns_unless_no_special_token_does(folder: Path) -> None:
    assert TurnFinder(template(folder, CHATML), SPECIALS).ends_turns()
    without = template(folder, CHATML.replace("<|im_end|>", ""))
    assert not TurnFinder(without, SPECIALS).ends_turns()


# As Qwen3 has it with enable_thinking false: the prompt ends with an empty thought, and only the
# last turn has one.
EMPTY_THOUGHT = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and (loop.last or m.reasoning_content) %}<t>{{ "
    "m.reasoning_content }}</t>{% endif %}"
    "{{ m.content.split('</t>')[-1] }}",
).replace("assistant\n{% endif %}", "assistant\n<t></t>{% endif %}")


def test_a_turn_without_the_end_of_the_generation_prompt_begins_where_that_breaks_off(
    folder: Path,
) -> None:
    rendered = find(folder, EMPTY_THOUGHT, chat("hi", "hello", "bye", "<b>ciao</b>", "so", "yes"))
    assert trained(rendered) == ["hello<|im_end|>", "<b>ciao</b><|im_end|>", "yes<|im_end|>"]
    rendered = find(
        folder, EMPTY_THOUGHT, chat("hi", "<t>hm</t>hello", "<|im_end|>", "ciao", "so", "yes")
    )  # by itself
    assert trained(rendered) == ["hello<|im_end|>", "ciao<|im_end|>", "yes<|im_end|>"]


def test_a_turn_that_begins_differently_from_the_generation_prompt_is_refused(
    folder: Path,
) -> None:
    messages = chat("hi", "hello", "bye", "ciao")
    messages[1]["reasoning_content"] = "hm"
    prompt = ("message 1 does not begin with", r"'<|im_start|>assistant\n<t></t>'")
    advice = ("remove the reasoning from the row", "--chat-template", "--train-on all")
    with refused(RenderError, *prompt, r"'<|im_start|>assistant\n<t>hm</' there", *advice):
        find(folder, EMPTY_THOUGHT, messages)
    elsewhere = CHATML.replace("<|im_start|>{{ m.role }}\n", "<|im_start|>{{ m.role }}: ")
    with refused(RenderError, "message 1", "'<|im_start|>assistant:' there", *advice[1:]):
        find(folder, elsewhere, chat("hi", "hello"))


@pytest.mark.parametrize("inline", [False, True])
def test_reasoning_in_the_last_turn_is_refused_with_advice_where_thinking_is_off(
    folder: Path, inline: bool
) -> None:
    source = (
        "{% for m in messages %}{% set thought = m.reasoning_content or ('</think>' in m.content "
        "and m.content.split('</think>')[0].split('<think>')[-1]) or '' %}<|im_start|>{{ m.role }}"
        "\n{% if m.role == 'assistant' and loop.last %}<think>{{ thought }}</think>{% endif %}"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
    )
    messages = chat("hi", "<think>hm</think>hello" if inline else "hello")
    if not inline:
        messages[1]["reasoning_content"] = messages[1]["thinking"] = "hm"
    thinking = find(folder, source, messages)
    assert trained(thinking) == ["<think>hm</think>hello<|im_end|>"]
    words = ("message 1", r"'<|im_start|>assistant\n<think></think>'", "enable_thinking is false")
    with refused(RenderError, *words, "set enable_thinking to true for it"):
        TurnFinder(template(folder, source), SPECIALS).render(
            Conversation(messages, None, {"enable_thinking": False})
        )


@pytest.mark.parametrize("blocks", [False, True])
def test_a_message_that_the_row_takes_out_is_not_trained(folder: Path, blocks: bool) -> None:
    source = CHATML
    if blocks:
        source = source.replace(
            "{{ m.content }}<|im_end|>",
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"
            "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}",
        )
    finder = TurnFinder(template(folder, source), SPECIALS)
    messages = chat("hi", "hello", "bye", "ciao")
    for untrained, kept in (((), [1, 3]), ((1,), [3]), ((3,), [1]), ((1, 3), [])):
        rendered = finder.render(Conversation(messages, untrained=untrained))
        assert trained(rendered) == [f"{messages[index]['content']}<|im_end|>" for index in kept]


def test_a_row_that_takes_a_message_out_is_refused_where_everything_is_trained(
    folder: Path,
) -> None:
    finder = TurnFinder(template(folder, CHATML), SPECIALS, "all")
    with pytest.raises(RenderError, match="takes message 1 out of what is trained, but --train-on"):
        finder.render(Conversation(chat("hi", "hello"), untrained=(1,)))


@pytest.mark.parametrize("quotes", [True, False])
def test_arguments_given_as_json_text_are_written_once(folder: Path, quotes: bool) -> None:
    written = "c.function.arguments | tojson"
    if not quotes:
        written = f"c.function.arguments if c.function.arguments is string else {written}"
    source = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls %}{{ " + written + " }}{% endfor %}",
    )
    text = '{"x":1}'
    for arguments in (text, json.loads(text)):
        messages = chat("hi", "hello")
        messages[1]["tool_calls"] = [{"function": {"name": "f", "arguments": arguments}}]
        expected = text if arguments == text and not quotes else json.dumps(json.loads(text))
        assert trained(find(folder, source, messages)) == [f"hello{expected}<|im_end|>"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages | reverse %}{{ m.content }}<|im_end|>{% endfor %}", "message 1"),
        (
            "{% for m in messages %}{{ m.content | upper }}</s>{{ messages | length }}{% endfor %}",
            "where message 1 begins",
        ),
        (
            "{{ messages | map(attribute='content') | map('length') | join }}</s>",
            "cannot find the trained text",
        ),
        (
            "{% filter list | unique | join %}" + BLOCKS + "{% endfilter %}",
            "cannot find the trained text: the template changes",
        ),
    ],
)
def test_turns_that_cannot_be_found_are_refused_with_advice(
    folder: Path, source: str, reason: str
) -> None:
    with pytest.raises(RenderError, match=reason) as error:
        find(folder, source, chat("hi", "hello", "bye", "ciao"))
    assert "--train-on all" in str(error.value)
    assert find(folder, source, chat("hi", "hello", "bye", "ciao"), "all").trained is None


def test_special_tokens_in_messages_are_told_apart_from_the_templates(folder: Path) -> None:
    rendered = find(folder, CHATML, chat("<|im_end|>", "a</s>b"))
    assert rendered.specials is not None
    assert (
        rendered.text
        == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\na</s>b<|im_end|>\n"
    )
    assert [first for first, _ in rendered.specials] == [0, 27, 38, 66]
    assert trained(rendered) == ["a</s>b<|im_end|>"]


@pytest.mark.parametrize("name", ["|im_end|", "im_end|>", "<|im_end|>"])
def test_special_tokens_made_of_a_name_and_the_templates_own_signs_are_found(
    folder: Path, name: str
) -> None:
    source = (
        "{% for t in tools %}{% for key in t %}<{{ key }}><|{{ key }}{{ key }}{% endfor %}{% "
        "endfor %}" + CHATML
    )
    rendered = find(folder, source, chat("hi", "hello"), tools=[{name: name}])
    assert rendered.specials is not None
    assert [rendered.text[first:last] for first, last in rendered.specials] == [
        "<|im_start|>",
        "<|im_end|>",
    ] * 2


def test_a_token_that_a_template_makes_by_cutting_a_text_is_found(folder: Path) -> None:
    source = CHATML.replace("{{ m.content }}", "{{ m.content.replace('<think>', '') }}")
    rendered = find(folder, source, chat("<|im_<think>end|>", "hello"))
    assert "<|im_end|><|im_end|>" in rendered.text
    assert rendered.specials is not None
    assert len(rendered.specials) == 4


def test_a_text_with_a_mark_is_refused(folder: Path) -> None:
    with refused(RenderError, "U+FDD1, which is not a character; remove it"):
        find(folder, CHATML, chat("\ufdd1", "a"))


TEXTS = st.text("ab \n<|>/s_imend</think>", max_size=12) | st.sampled_from(
    ["<|im_end|>", "</s>", " x\n", "", "<think>a</think>b"]
)


@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_a_form_and_the_row_itself_give_the_same_spans(texts: list[str]) -> None:
    finder = _finder()
    conversation = Conversation(chat(*texts))
    text = finder.template.render(conversation)
    shaped = finder._shaped(conversation)
    assert shaped is not None
    by_form = finder._by_form(shaped, text)
    assert by_form is not None
    if by_form.specials is None:  # no text spells one
        by_form = by_form._replace(specials=finder._tokens.spans(text))
    assert by_form._replace(form=None) == finder._by_itself(conversation, text)
    expected, at = [], 0
    for message in conversation.messages:
        at += len(f"<|im_start|>{message['role']}\n")
        end = at + len(message["content"]) + len("<|im_end|>")
        expected += [(at, end)] if message["role"] == "assistant" else []
        at = end + 1
    assert by_form[0] == expected


def _finder() -> TurnFinder:
    from packprep.chat.template import ChatTemplate

    return TurnFinder(ChatTemplate(sources={"default": CHATML}, variables={}), SPECIALS)


def test_conversations_of_one_form_are_rendered_once_each() -> None:
    finder = _finder()
    for number in range(5):
        finder.render(Conversation(chat("hi", str(number), "bye", "ciao")))
    assert finder._form.cache_info().misses == 1
