"""Turns of whole rows: what is trained, what is left out, and which rows are refused."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation, Message
from packprep.chat.left_out import LeftOut
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turns import Rendered, TurnFinder
from tests.helpers.errors import refused

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_middle|>", "<|im_end|>"]
SPECIALS += ["<|start|>", "<|end|>", "<|stop|>"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

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


def finder(source: str, specials: Any = SPECIALS, **options: Any) -> TurnFinder:
    template = ChatTemplate(sources={"default": source}, variables=NAMES, date="2026-01-31")
    return TurnFinder(template, specials, **options)


def find(source: str, messages: Any, untrained: Any = (), **options: Any) -> Rendered:
    return finder(source, **options).render(Conversation(messages, untrained=untrained))


def trained(rendered: Rendered) -> list[str]:
    return [rendered.text[first:last] for first, last in rendered.trained or []]


def chat(*texts: str) -> list[Message]:
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
# As Qwen3 has it with enable_thinking false: the prompt ends with an empty thought, and only the
# last turn has one.
EMPTY_THOUGHT = chatml(
    "{% if m.role == 'assistant' and (loop.last or m.reasoning_content) %}<t>{{ "
    "m.reasoning_content }}</t>{% endif %}{{ m.content.split('</t>')[-1] }}"
).replace("assistant\n{% endif %}", "assistant\n<t></t>{% endif %}")
TWO = chat("hi", "hello", "bye", "ciao")


def calling(arguments: Any) -> list[Message]:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    return [
        *chat("hi", "", "so"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "three"},
    ]


def ended(*texts: str, end: str = "<|im_end|>") -> list[str]:
    return [text + end for text in texts]


CALLED = '{"name": "f", "arguments": {"a": "x\\"y"}}'
GIVEN = "c.function.arguments"
AS_TEXT = CALLS.replace("{{ c.function |", f"{{{{ {GIVEN} if {GIVEN} is string else {GIVEN} |")
UNENDED = CHATML.replace("<|im_end|>", "")
LAST_WHOLE = chatml("{{ m.content if loop.last else m.content.split('</t>')[-1] }}")
COMPARES = CHATML.replace("{{ m.role }}\n", "{{ m.role }}\n{{ 'tools' if m == messages[0] }}")
PROMPTS_THOUGHT = THINKS.replace("assistant\n{% endif %}", "assistant\n<think></think>{% endif %}")
UPSIDE_DOWN = "{% filter trim | reverse %}" + BLOCKS + "{% endfilter %}"
UPPER = "{% filter upper %}" + BLOCKS + "{% endfilter %}"
WITH_SYSTEM: list[Message] = [{"role": "system", "content": "be"}, *TWO]
LOOKED_AT = chat("<r>1</r>", " a ", "<r>\n2</r>", "<r>b")
TRAINED: dict[str, tuple[str, list[Message], list[str]]] = {
    "from the generation prompt to the end token": (CHATML, TWO, ended("hello", "ciao")),
    "no turn": (CHATML, chat("hi"), []),
    "what the prompt does not write": (
        THINKS,
        TWO,
        ended("<think></think>hello", "<think></think>ciao"),
    ),
    "not what it writes": (PROMPTS_THOUGHT, TWO, ended("hello", "ciao")),
    "behind where it breaks off": (
        EMPTY_THOUGHT,
        chat("hi", "hello", "bye", "<b>ciao</b>", "so", "yes"),
        ended("hello", "<b>ciao</b>", "yes"),
    ),
    "behind where it breaks off, in a row by itself": (
        EMPTY_THOUGHT,
        chat("hi", "<t>hm</t>hello", "<|im_end|>", "ciao", "so", "yes"),
        ended("hello", "ciao", "yes"),
    ),
    "without a generation prompt": (INST, TWO, [" hello</s>", " ciao</s>"]),
    "earlier thinking dropped": (
        LAST_WHOLE,
        chat("hi", "<t>hm</t>hello", "bye", "<t>ah</t>ciao"),
        ended("hello", "<t>ah</t>ciao"),
    ),
    "the system message last": (SYSTEM_LAST, WITH_SYSTEM, ["hello</s>", "ciao</s>"]),
    "looks at how a text begins and ends": (LOOKS, LOOKED_AT, ended("a", "<r>b")),
    "compares messages": (COMPARES, chat("hi", "hello", "hi", "ciao"), ended("hello", "ciao")),
    "calls": (chatml(CALLS), calling({"a": 'x"y'}), ended("", CALLED, "three")),
    "calls in JSON": (chatml(CALLS), calling('{"a": "x\\"y"}'), ended("", CALLED, "three")),
    "calls as text": (chatml(AS_TEXT), calling('{"a":1}'), ended("", '{"a":1}', "three")),
    "an assistant first": (
        "{{ messages[0].role }}:" + CHATML,
        chat("", "hello", "hi", "ciao")[1:],
        ended("hello", "ciao"),
    ),
    "blocks": (BLOCKS, TWO, ["hello</s>", "ciao</s>"]),
    "blocks upside down": (UPSIDE_DOWN, chat("hi", "hello"), [">s/<olleh"]),
    "blocks in capitals": (UPPER, chat("hi", "hello"), ["HELLO</S>"]),
    "without an end token": (UNENDED, TWO, ["hello\n", "ciao\n"]),
    "without a text": (UNENDED, chat("hi", "hello", "bye", ""), ["hello\n", "\n"]),
}


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_a_model_writes(name: str) -> None:
    source, messages, expected = TRAINED[name]
    rendered = find(source, messages)
    assert trained(rendered) == expected
    assert (rendered.specials is None) != any(token in str(messages) for token in SPECIALS)
    assert find(source, messages, train_on="all").trained is None
    if name == "blocks upside down":  # it is not known which message they are of
        return
    asked = max(at for at, message in enumerate(messages) if message["role"] == "user")
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    of_last = [text for turn, text in zip(turns, expected, strict=True) if turn > asked]
    assert trained(find(source, messages, train_on="last-turn")) == of_last
    for gone in turns:
        kept = [text for turn, text in zip(turns, expected, strict=True) if turn != gone]
        assert trained(find(source, messages, (gone,))) == kept


def test_a_template_ends_turns_unless_no_special_token_does() -> None:
    assert finder(CHATML).ends_turns()
    assert not finder(CHATML.replace("<|im_end|>", "")).ends_turns()


THOUGHTFUL = chat("hi", "hello", "bye", "ciao")
THOUGHTFUL[1]["reasoning_content"] = "hm"
REVERSED = "{% for m in messages | reverse %}{{ m.content }}<|im_end|>{% endfor %}"
COUNTS = "{% for m in messages %}{{ m.content | upper }}</s>{{ messages | length }}{% endfor %}"
LENGTHS = "{{ messages | map(attribute='content') | map('length') | join }}</s>"
ONCE = "{% filter list | unique | join %}" + BLOCKS + "{% endfilter %}"
OTHER_SIGNS = CHATML.replace("<|im_start|>{{ m.role }}\n", "<|im_start|>{{ m.role }}: ")
PROMPT = r"message 1 does not begin with the template's generation prompt"
REFUSED = [
    (REVERSED, TWO, ["message 1"]),
    (COUNTS, TWO, ["where message 1 begins"]),
    (LENGTHS, TWO, ["cannot find the trained text"]),
    (ONCE, TWO, ["cannot find the trained text: the template changes"]),
    (OTHER_SIGNS, TWO, ["message 1", "'<|im_start|>assistant:' there", "--chat-template"]),
    (
        EMPTY_THOUGHT,
        THOUGHTFUL,
        [PROMPT, r"\n<t></t>'", r"\n<t>hm</' there", "remove the reasoning from the row"],
    ),
]


@pytest.mark.parametrize(("source", "messages", "words"), REFUSED)
def test_turns_that_cannot_be_found_are_refused_with_advice(
    source: str, messages: Any, words: list[str]
) -> None:
    with refused(RenderError, *words, "--train-on all"):
        find(source, messages)
    assert find(source, messages, train_on="all").trained is None


@pytest.mark.parametrize("inline", [False, True])
def test_reasoning_in_the_last_turn_is_refused_with_advice_where_thinking_is_off(
    inline: bool,
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
    assert trained(find(source, messages)) == ["<think>hm</think>hello<|im_end|>"]
    words = ("message 1", r"'<|im_start|>assistant\n<think></think>'", "enable_thinking is false")
    with refused(RenderError, *words, "set enable_thinking to true for it"):
        finder(source).render(Conversation(messages, None, {"enable_thinking": False}))


def test_rows_that_a_template_cannot_render_or_train_are_refused() -> None:
    with refused(RenderError, "takes message 1 out of what is trained, but --train-on"):
        find(CHATML, TWO, (1,), train_on="all")
    with refused(RenderError, "U+FDD1, which is not a character; remove it"):
        find(CHATML, chat("\ufdd1", "a"))
    with refused(RenderError, "a block of the template has message 1", "together with others"):
        find("{% generation %}" + CHATML + "{% endgeneration %}", TWO, (1,))
    with refused(RenderError, "cannot render it: the template reads the attribute '__class__'"):
        find("{{ messages.__class__ }}", TWO)


NAMED = (
    "{% for t in tools %}{% for key in t %}<{{ key }}><|{{ key }}{{ key }}{% endfor %}{% "
    "endfor %}" + CHATML
)
CUT = chatml("{{ m.content.replace('<think>', '') }}")


@pytest.mark.parametrize(
    ("source", "question", "name"),
    [
        (NAMED, "hi", "|im_end|"),
        (NAMED, "hi", "im_end|>"),
        (NAMED, "hi", "<|im_end|>"),
        (CUT, "<|im_<think>end|>", "no sign of a token"),
    ],
)
def test_only_special_tokens_of_the_template_are_special(
    source: str, question: str, name: str
) -> None:
    """Whatever a name makes with the template's signs, or a template by cutting a text."""
    rendered = finder(source).render(Conversation(chat(question, "hello"), [{name: name}]))
    assert rendered.specials is not None
    found = [rendered.text[first:last] for first, last in rendered.specials]
    assert found == ["<|im_start|>", "<|im_end|>"] * 2
    assert rendered.text.count("<|im_end|>") > 2


TEXTS = st.text("ab \n<|>/s_imend</think>", max_size=12) | st.sampled_from(
    ["<|im_end|>", "</s>", " x\n", "", "<think>a</think>b"]
)


@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_a_form_and_the_row_itself_give_the_same_spans(texts: list[str]) -> None:
    one = finder(CHATML)
    conversation = Conversation(chat(*texts))
    text = one.template.render(conversation)
    shaped = one._shaped(conversation)
    assert shaped is not None
    by_form = one._by_form(shaped, text)
    assert by_form is not None
    assert replace(by_form, form=None) == one._by_itself(conversation, text)
    turns, tokens, at = [], [], 0
    for message in conversation.messages:
        tokens.append((at, at + len("<|im_start|>")))
        at += len(f"<|im_start|>{message['role']}\n")
        end = at + len(message["content"]) + len("<|im_end|>")
        tokens.append((end - len("<|im_end|>"), end))
        turns += [(at, end)] if message["role"] == "assistant" else []
        at = end + 1
    specials = by_form.specials or one._tokens.spans(text)  # None: no text spells one
    assert (by_form.trained, specials) == (turns, tokens)


def left_out(source: str, messages: Any, **options: Any) -> list[LeftOut]:
    return find(source, messages, **options).left_out


def test_the_end_and_the_middle_of_a_text_are_left_out_in_part() -> None:
    cut = chatml("{{ m.content.split('[stop]')[0] }}")
    messages = chat("hi", "first I look [stop] and then more", "bye", "ciao")
    assert left_out(cut, messages) == [LeftOut(1, "content", "[stop] and then more")]
    out = chatml("{{ m.content.split('[a]')[0] + m.content.split('[/a]')[-1] }}")
    messages = chat("hi", "first I look [a]gone[/a] and then more", "bye", "ciao")
    assert left_out(out, messages) == [LeftOut(1, "content", "[a]gone[/a]")]


def test_white_space_and_the_signs_of_json_are_not_left_out() -> None:
    calls = "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    source = chatml("{{ m.content | trim }}" + calls)
    messages = chat(" hi\n", "  hello\n\n", "bye", " ")
    messages[1]["tool_calls"] = [
        {"function": {"name": "f", "arguments": {"x": 'a "b"\nc \\ d', "y": ["e", {"z": "f"}]}}}
    ]
    assert left_out(source, messages) == []
    silent = left_out(CHATML, messages)
    assert [(part.message, part.field) for part in silent] == [(1, "tool_calls")] * 4


@given(
    st.sampled_from([FORGETS, CHATML]),
    st.sampled_from(["assistant", "last-turn", "all"]),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.randoms(),
)
def test_what_is_left_out_is_what_the_text_does_not_contain(
    source: str, train_on: str, turns: list[tuple[bool, bool]], rng: random.Random
) -> None:
    """Every thought is one of a kind, so a search of the text says which ones are there."""
    messages: list[Message] = []
    expected = []
    for number, (thinks, inline) in enumerate(turns):
        thought = f"{number} thinks of {rng.random()}"
        answer: Message = {"role": "assistant", "content": f"answer {rng.random()}"}
        if thinks and inline:
            answer["content"] = f"<think>{thought}</think>{answer['content']}"
        elif thinks:
            answer["reasoning_content"] = answer["thinking"] = thought
        messages += [{"role": "user", "content": f"question {rng.random()}"}, answer]
        is_written = inline if source == CHATML else number == len(turns) - 1
        if thinks and not is_written:
            gone = f"<think>{thought}</think>" if inline else thought
            field = "content" if inline else "reasoning"
            expected.append(LeftOut(2 * number + 1, field, gone, in_turn=source == FORGETS))
    rendered = find(source, messages, train_on=train_on)
    assert rendered.left_out == expected
    for part in expected:
        assert part.text not in rendered.text


def test_names_of_messages_are_left_out_where_the_template_does_not_write_them() -> None:
    messages = chat("hi", "hello", "bye", "<s>ciao")
    messages[0]["name"], messages[1]["name"], messages[2]["name"] = "Ann", "Bob", " "
    names = [LeftOut(0, "name", "Ann"), LeftOut(1, "name", "Bob")]
    written = CHATML.replace("{{ m.role }}\n", "{{ m.role }}{{ m.name }}\n")
    compared = CHATML.replace("{{ m.role }}\n", "{{ m.role }}{{ '!' if m.name == 'Ann' }}\n")
    for rows in (messages[:2], messages):  # by a form, and by itself
        assert left_out(CHATML, rows, train_on="all") == names
        assert left_out(written, rows, train_on="all") == []
        assert left_out(compared, rows, train_on="all") == []
    users = CHATML.replace(
        "{{ m.role }}\n", "{{ m.role }}{% if m.role == 'user' %}{{ m.name }}{% endif %}\n"
    )
    assert left_out(users, messages[:2], train_on="all") == names[1:]
