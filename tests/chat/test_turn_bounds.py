"""Turns end with what a template also writes when another message follows."""

import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation, Message
from packprep.chat.template import RenderError
from packprep.chat.turn_documents import TurnSplitter
from packprep.chat.turns import TurnFinder
from tests.helpers.errors import refused
from tests.helpers.reference_chat import PartsTemplate

from .test_turn_documents import SIGNS, documents
from .test_turns import FORGETS, SPECIALS, chat, find, finder, trained

SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))


def by_turn(finder: TurnFinder, messages: list[Message]) -> list[list[str]]:
    """Trained texts of each document with --turns each."""
    rendered = TurnSplitter(finder, "each").render(Conversation(messages))
    return [texts for _, _, texts in documents(rendered)]


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


@given(parts(), st.lists(MESSAGES, min_size=1, max_size=5))
def test_turns_end_alike_whatever_follows(template: PartsTemplate, messages: list[Message]) -> None:
    messages.append({"role": "assistant", "content": "last"})
    # Where a turn begins with its header and has no text, a token of that header is its last one.
    assume(
        template.prompt != "never" or all(str(message["content"]).strip() for message in messages)
    )
    text, spans = template.rendered(messages, SPECIAL)
    each = finder(template.source())
    for stop in (len(messages) - 1, len(messages)):
        rendered = each.render(Conversation(messages[:stop]))
        text, spans = template.rendered(messages[:stop], SPECIAL)
        assert rendered.text == text
        assert rendered.trained == [span for bounds in spans.values() for span in bounds]
    assert by_turn(each, messages) == [
        [text[first:last] for first, last in bounds] for bounds in spans.values()
    ]


CHATML = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
HEADER = "{{ '<|start|>assistant\\n' }}"
ASKED = "{% if add_generation_prompt %}" + HEADER + "{% endif %}"


def test_the_eos_of_a_whole_conversation_is_not_trained() -> None:
    """Also where the template does not write what follows, as Phi-3's ignores tools."""
    source = CHATML + "{% if add_generation_prompt %}" + HEADER + "{% else %}</s>{% endif %}"
    source = source.replace("m in messages", "m in messages if m.role != 'tool'")
    messages = chat("hi", "hello", "3", "ciao")
    messages[2]["role"] = "tool"
    messages[1]["tool_calls"] = [{"function": {"name": "f", "arguments": {}}}]
    for size, answers in ((2, ["hello"]), (3, ["hello"]), (4, ["hello", "ciao"])):
        expected = [f"{text}<|end|>" for text in answers]
        assert trained(find(source, messages[:size])) == expected
        assert by_turn(finder(source), messages[:size]) == [[text] for text in expected]
    # An EOS after every turn is the end of each.
    source = CHATML.replace("<|end|>\n", "<|end|>\n</s>") + HEADER
    assert trained(find(source, chat("hi", "hello"))) == ["hello<|end|>\n</s>"]


@pytest.mark.parametrize("prompt", [ASKED, HEADER])
def test_the_last_turn_may_end_with_a_token_of_its_own(prompt: str) -> None:
    """As gpt-oss's does: other turns end with another token."""
    last = "loop.last and m.role == 'assistant'"
    source = CHATML.replace("<|end|>\n", f"{{{{ '<|stop|>' if {last} else '<|end|>' }}}}") + prompt
    messages = chat("hi", "hello", "bye", "ciao")
    assert trained(find(source, messages[:2])) == ["hello<|stop|>"]
    assert by_turn(finder(source), messages) == [["hello<|stop|>"], ["ciao<|stop|>"]]
    with pytest.raises(RenderError, match="cannot find where message 1 ends"):
        finder(source).render(Conversation(messages))


# White space of a text is told from that of the template.
TRIMS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | trim + '\n' }}"
    "{% else %}BEGIN{{ m.content + '</s>' }}END{% endif %}{% endfor %}"
)
CUT = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
    "{% if m.content.endswith('.') %}!{% endif %}{{ m.content.split('Q')[0] }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


TOKEN = re.compile(r"<\|[^|<>\s]+\|?>|<｜[^｜]+｜>|<(?:start|end)_of_\w+>|<eos>|<turn\|>")
# They write or mark the last turn otherwise than earlier ones, or refuse whole rows.
EXCEPTIONS = {"gptoss", "gptoss_training", "phi3_training", "phi3_5_training"}
EXCEPTIONS |= {"qwen3", "qwen3_5_think", "qwen3_6"}
EXCEPTIONS |= {f"nemotron_3_{size}" for size in ("5_lightning", "nano", "super", "ultra")}


def public_templates() -> list[Path]:
    """Templates of the installed TRL, and our own."""
    folders = [Path(__file__).parents[1] / "helpers" / "templates"]
    if (spec := importlib.util.find_spec("trl")) is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "chat_templates")
    return sorted(path for folder in folders for path in folder.glob("*.jinja"))


@pytest.mark.parametrize("path", public_templates(), ids=lambda path: path.stem)
def test_turns_of_public_templates_end_alike_whatever_follows(path: Path) -> None:
    source = path.read_text()
    each = finder(source, {*TOKEN.findall(source), "</s>"})
    messages, written = chat("Hi?", "Hello.", "And?", "Bye."), ""
    with contextlib.suppress(RenderError):
        written = each.template.render(Conversation(messages))
    if "Hello." not in written:
        pytest.skip("takes no content that is one text")
    turns = by_turn(each, messages)
    assert by_turn(each, messages[:2]) == turns[:1]
    assert len(turns) == 2
    if path.stem in EXCEPTIONS:
        return
    rows = [trained(each.render(Conversation(messages[:size]))) for size in (2, 3, 4)]
    assert rows == [turns[0], turns[0], turns[0] + turns[1]]


MEASURES = (
    "{% for m in messages %}{{ m.role }} ({{ m.content | length }} characters):"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_blocks_are_enough_where_a_template_measures_texts() -> None:
    messages = chat("hi", "hello", "bye", "ciao")
    expected = ["hello</s>", "ciao</s>"]
    assert trained(find(MEASURES, messages)) == expected
    assert by_turn(finder(MEASURES), messages) == [[text] for text in expected]
    assert trained(find(MEASURES, messages, train_on="last-turn")) == expected[1:]


@pytest.mark.parametrize(
    ("source", "untrained", "fields", "asks"),
    [
        (MEASURES, (1,), None, '"train": false in a message'),
        (MEASURES, (), ("content",), "--train-fields"),
        ("{{ messages | length }}" + MEASURES, (), None, "--train-on last-turn"),
    ],
)
def test_blocks_without_marks_are_refused_where_their_message_matters(
    source: str, untrained: tuple[int, ...], fields: Any, asks: str
) -> None:
    options = {"fields": fields} if fields else {}
    train_on = "last-turn" if "last-turn" in asks else "assistant"
    words = ("measures or changes the texts", "{% generation %} blocks", f"which {asks} needs")
    with refused(RenderError, *words):
        find(source, chat("hi", "hello", "bye", "ciao"), untrained, train_on=train_on, **options)


ROLE = "{% for m in messages %}<|start|>{{ m.role }}:"
BLOCK = (
    "{% if m.role == 'assistant' %}{% generation %}BODY{% endgeneration %}{% else %}BODY{% endif %}"
)
BODIES = [
    "{{ m.content }}<|end|>",
    "{{ m.content[:4] }}<|end|>",
    "{{ m.content[2:] | trim }}",
    "{{ m.content.split('Q')[-1] }}<|end|>{{ m.content.split('Q')[0] }}",
    "{{ m.content }}{{ m.content }}</s>",
    "{% if m.content.endswith('.') %}!{% endif %}{{ m.content.split('Q')[0] }}</s>",
    "{{ m.content | length }}{{ m.content }}<|end|>",
    "{{ m.content | replace('Q', '<|end|>') }}<|end|>",
    "{{ messages[-1].content }}{{ m.content if loop.last else '' }}",
]
ODD = [CUT, MEASURES, TRIMS, SIGNS, FORGETS, "{{ messages[0].content }}" + CHATML + HEADER]
ODD += [ROLE + body + "{% endfor %}" for body in BODIES]
ODD += [ROLE + BLOCK.replace("BODY", body) + "{% endfor %}" for body in BODIES]
ODD += ["{% filter reverse %}" + ODD[-1] + "{% endfilter %}"]
ODD_TEXTS = st.text("abQ.\n <>", max_size=8) | st.sampled_from(
    ["<|end|>", "abc Qdef.", "<think>\nhm\n</think>\n\nhello", "</s>", "<|start|>user:", "Q."]
)
ODD_MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
    ODD_TEXTS,
)


@given(st.sampled_from(ODD), st.lists(ODD_MESSAGES, min_size=1, max_size=5), st.data())
def test_any_template_gives_spans_in_order_or_a_sentence(
    source: str, messages: list[Message], data: st.DataObject
) -> None:
    assistants = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
    untrained = data.draw(st.sets(st.sampled_from(assistants))) if assistants else set()
    options: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"train_on": "last-turn"}, {"fields": ("content",)}])
    )
    row = Conversation(messages, untrained=tuple(sorted(untrained)))
    one = finder(source, **options)
    for render in (one.render, TurnSplitter(one, "each").render, TurnSplitter(one, "auto").render):
        try:
            rendered = render(row)
        except RenderError:
            continue
        for turn, text, _ in documents(rendered) if rendered.turns else []:
            assert turn not in untrained
            assert text in rendered.text
        bounds = [place for span in rendered.trained or [] for place in span]
        assert bounds == sorted(bounds)
        assert all(0 <= place <= len(rendered.text) for place in bounds)
