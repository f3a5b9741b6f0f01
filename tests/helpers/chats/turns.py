"""Templates in the manner of public ones, and what is trained of conversations."""

import re
from typing import Any

from hypothesis import strategies as st

from packprep.chat.types import Message
from tests.helpers.reference_chat import PartsTemplate

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
THOUGHTFUL = chat("hi", "hello", "bye", "ciao")
THOUGHTFUL[1]["reasoning_content"] = "hm"
REVERSED = "{% for m in messages | reverse %}{{ m.content }}<|im_end|>{% endfor %}"
COUNTS = "{% for m in messages %}{{ m.content | upper }}</s>{{ messages | length }}{% endfor %}"
LENGTHS = "{{ messages | map(attribute='content') | map('length') | join }}</s>"
ONCE = "{% filter list | unique | join %}" + BLOCKS + "{% endfilter %}"
OTHER_SIGNS = CHATML.replace("<|im_start|>{{ m.role }}\n", "<|im_start|>{{ m.role }}: ")
REFUSED = [
    (REVERSED, TWO, ["message 1"]),
    (COUNTS, TWO, ["where message 1 begins"]),
    (LENGTHS, TWO, ["cannot find the trained text"]),
    (ONCE, TWO, ["cannot find the trained text: the template changes"]),
    (OTHER_SIGNS, TWO, ["message 1", r"<|im_start|>assistant\n'", "--chat-template"]),
    (EMPTY_THOUGHT, THOUGHTFUL, ["message 1", r"\n<t></t>'", "remove the reasoning from the row"]),
]
NAMED = (
    "{% for t in tools %}{% for key in t %}<{{ key }}><|{{ key }}{{ key }}{% endfor %}{% "
    "endfor %}" + CHATML
)
CUT = chatml("{{ m.content.replace('<think>', '') }}")

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

SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))


@st.composite
def parts(draw: st.DrawFn) -> PartsTemplate:
    ends = ["<|end|>\n", "<|end|>", "<|stop|> <|end|>\n\n", "</s>", "\n", " ", "", " ;\n"]
    end = draw(st.sampled_from(ends))
    headers = [("<|start|>", "\n"), ("### ", ": "), ("[", "]\n"), ("", ": "), ("\n<|start|>", " ")]
    header = draw(st.sampled_from([*headers, ("", "")]))
    prompts = ["asked", "always", "never"] if header != ("", "") else ["never"]
    final = draw(st.sampled_from(["", "</s>", "\n"])) if SPECIAL.search(end) else ""
    return PartsTemplate(
        bos=draw(st.sampled_from(["", "<s>", "<s>\n"] if SPECIAL.search(end) else ["", "<s>"])),
        preamble=draw(st.sampled_from(["", f"{'system'.join(header)}be kind{end}"])),
        header=header,
        end=end,
        final=final,
        prompt=draw(st.sampled_from(prompts)),
        trims=frozenset(draw(st.sets(st.sampled_from(["user", "assistant"])))),
        blocks=draw(st.sampled_from([0, 0, 1, 2])),
    )


TEXTS = st.sampled_from(
    ["", " ", "hi", "hello", "\nhi", "hi\n", " hi \n", "a</s>b", "<|end|>", "hi\n\n"]
)
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["user", "assistant", "assistant"]),
    TEXTS,
)
