"""Rows composed without their template equal rows rendered by it."""

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.chat import composer
from packprep.chat.composer import _PLANTED, _REFUSALS, Composer
from packprep.chat.conversations import Conversation, Message, find_conversations
from packprep.chat.forms import PlainChat, plain_chat
from packprep.chat.masks import render_chats
from packprep.chat.rendering.traced_text import Recording
from packprep.chat.rendering.tracing import Trace
from packprep.chat.rendering.value_limits import MAX_SIZE
from packprep.chat.template import ChatTemplate, RenderError, load_chat_template
from packprep.chat.turns import TurnFinder
from packprep.engines.tokenizer import load_tokenizer
from tests.helpers.corpus import SHARED
from tests.helpers.examples import share_of_examples

from .test_turns import CHATML, NAMES, chatml

HELPERS = Path(__file__).parents[1] / "helpers" / "templates"
SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "[/INST]")
# Each asks or changes a text in another way.
COMPOSED = {
    "truth": chatml("{% if m.content %}{{ m.content }}{% endif %}"),
    "trimmed": chatml("{{ m.content | trim }}"),
    "stripped": chatml(
        "{{ m.content.rstrip() }}|{{ m.content.strip('\n') }}|{{ m.content.rstrip('\n') }}"
    ),
    "upper": chatml("{{ m.content | upper }}"),
    "joined": chatml("{{ '<' ~ m.content ~ m.role ~ '>' }}"),
    "length": chatml("{% if m.content | length > 4 %}long {% endif %}{{ m.content }}"),
    "contains": chatml("{% if '<t' in m.content %}T{% endif %}{{ m.content }}"),
    "begins": chatml("{% if m.content.startswith(('a', ' ')) %}A{% endif %}{{ m.content }}"),
    "compared": chatml("{% if m.content == messages[0].content %}same{% endif %}{{ m.content }}"),
    "ordered": chatml("{% if m.content < 'b' %}a{% endif %}{{ m.content }}"),
    "compared with no text": chatml(
        "{{ 'one' if m.content == 1 }}{{ m.content if m.content != 1 }}"
    ),
    "compared messages": chatml("{% if m == messages[-1] %}last{% endif %}{{ m.content }}"),
    "namespace": "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.role "
    "+ m.content + '<|im_end|>' %}{% endfor %}{{ ns.t }}",
    "namespace asked": "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ "
    "m.role ~ m.content %}{% endfor %}{% if 'b' in ns.t %}B{% endif %}{{ ns.t }}</s>",
    "set block asked": chatml(
        "{% set x %}{{ m.content }}{% endset %}{% if 'a' in x %}A{% endif %}{{ x }}"
    ),
    "macro": "{% macro w(t) %}[{{ t }}]{% endmacro %}" + chatml("{{ w(m.content) | trim }}"),
    "macro asked": "{% macro w(t) %}[{{ t }}]{% endmacro %}"
    + chatml("{{ 'B' if 'b' in w(m.content) }}{{ m.content }}"),
    "replaced": chatml("{{ m.content | replace('a', 'b') }}{{ m.content.replace('</', '') }}"),
    "split": chatml("{{ m.content.split('</think>')[-1].lstrip('\n') }}"),
    "sliced": chatml("{{ m.content[:3] }}|{{ m.content[2:] }}"),
    "reversed": chatml("{{ m.content | reverse }}"),
    "in a list": chatml("{{ 'A' if m.content in ['a', 'b'] }}{{ m.content }}"),
    "joined list": "{{ messages | map(attribute='content') | join('<|im_end|>') }}",
    "selected": "{% for m in messages | selectattr('content') %}{{ m.content }}{% endfor %}",
    "unpacked": chatml("{% set a, b = m.content[:2] + 'xx', 1 %}{{ a }}{{ m.content }}"),
    "a key of a text": chatml("{{ m.content.text or 'none' }}{{ m.content }}"),
    "items": chatml("{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}"),
    "left out": chatml("{{ m.content if loop.last else '' }}"),
    "previous": chatml("{{ loop.previtem.content if loop.previtem }}{{ m.content }}"),
}
# These read texts in ways that a trace cannot hold.
RENDERED = {
    "counted": chatml("{{ m.content | length }}{{ m.content }}"),
    "first character": chatml("{% if m.content[0] == 'a' %}A{% endif %}{{ m.content }}"),
    "characters": chatml("{% for c in m.content %}{{ c }}.{% endfor %}"),
    "set block measured": chatml("{% set x %}{{ m.content }}{% endset %}{{ x | length }}{{ x }}"),
    "caller": "{% macro w() %}{{ caller() | upper }}{% endmacro %}"
    + chatml("{% call w() %}{{ m.content }}{% endcall %}"),
    "filter block": chatml("{% filter upper %}{{ m.content }}{% endfilter %}"),
    "split and measured": chatml("{{ m.content.split('a') | length }}{{ m.content }}"),
    "split and looped": chatml("{% for x in m.content.split('a') %}{{ x }}-{% endfor %}"),
    "split in the middle": chatml("{{ m.content.split('a')[1] }}{{ m.content }}"),
    "split at space": chatml("{{ m.content.split()[-1] if m.content.split() }}"),
    "json": chatml("{{ m.content | tojson }}"),
    "json of a message": chatml("{{ m | tojson }}"),
    "text of a message": chatml("{{ m }}"),
    "formatted": chatml("{{ '%s!' % m.content }}{{ '%s' | format(m.content) }}"),
    "formatted tuple": chatml("{{ '%s|%s' % (m.content, m.role) }}"),
    "format method": chatml("{{ '{}'.format(m.content) }}"),
    "key": chatml("{{ {m.content: 1} | length }}{{ m.content }}"),
    "looked up": chatml("{{ {'a': 1}[m.content] or 'none' }}{{ m.content }}"),
    "looked up with get": chatml("{{ {'a': 1}.get(m.content, 2) }}{{ m.content }}"),
    "joined method": "{{ '-'.join(messages | map(attribute='content') | list) }}",
    "joined and measured": "{{ messages | map(attribute='content') | join | length }}",
    "lengths": "{{ messages | map(attribute='content') | map('length') | join }}</s>",
    "sorted": "{% for m in messages | sort(attribute='content') %}{{ m.content }}{% endfor %}",
    "unique": "{{ messages | map(attribute='content') | unique | join(',') }}",
    "grouped": "{% for k, v in messages | groupby('content') %}{{ k }}{{ v | length }}{% endfor %}",
    "number": chatml("{{ m.content | int + 1 }}{{ m.content }}"),
    "repeated": chatml("{{ m.content * 2 }}"),
    "escaped": chatml("{{ m.content | e }}"),
    "escaping": "{% autoescape true %}" + CHATML + "{% endautoescape %}",
    "words": chatml("{{ m.content | wordcount }}{{ m.content | title }}"),
    "types": chatml(
        "{{ m.content is string }}{{ m.content is iterable }}{{ m.content is mapping }}"
        "{{ m.content is sequence }}{{ m.content is number }}{{ m.content is defined }}"
        "{{ m.content is none }}{{ m.content is lower }}{{ m.content is true }}{{ m.content }}"
    ),
    "changed": chatml("{{ loop.changed(m.content) }}{{ m.content }}"),
    "random": chatml("{{ [1, 1] | random }}{{ m.content }}"),
}


def of_source(source: str) -> ChatTemplate:
    return ChatTemplate(sources={"default": source}, variables=NAMES)


def templates() -> dict[str, ChatTemplate]:
    """Templates of the tests, those of the tokenizers in shared data, and the ones above."""
    found = {path.stem: of_source(path.read_text()) for path in sorted(HELPERS.glob("*.jinja"))}
    for folder in sorted((SHARED / "tokenizers").iterdir()):
        tokenizer = load_tokenizer(folder, bos="none", eos="none")
        if tokenizer.chat_templates:
            found[f"{folder.name} own"] = load_chat_template(tokenizer)
    return found | {name: of_source(source) for name, source in (COMPOSED | RENDERED).items()}


TEMPLATES = templates()
THOUGHT, RESPONSE = "<think>\nhm\n</think>\n\nSunny.", "<tool_response>a</tool_response>"
SIGNS = ["", "a", "b", "12", "hello", "</think>", "<|im_end|>", "</s>[INST]", THOUGHT, RESPONSE]
SPACES = [" a ", " \n", "\u2028a\u00a0", "\x1fb\x1c", "\ufdde0\ufddf"]
TEXTS = st.text("ab\n <|>/\\\"'&%{}é你ßΐ", min_size=1, max_size=6)
TEXTS |= st.sampled_from(SIGNS) | st.sampled_from(SPACES)
ROLES = (["user", "assistant"], ["system", "user", "assistant", "user", "assistant"])


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=share_of_examples(5))
@given(st.data())
def test_a_trace_gives_the_rendering_of_every_row_that_its_guards_let_pass(
    name: str, data: st.DataObject
) -> None:
    template = TEMPLATES[name]
    roles = data.draw(st.sampled_from(ROLES))
    texts = data.draw(st.lists(TEXTS, min_size=len(roles), max_size=len(roles)))
    trace = trace_of(template, roles, texts)
    if trace is None:
        return
    others = data.draw(st.lists(st.lists(TEXTS | st.sampled_from(texts), min_size=5, max_size=5)))
    for other in [texts, [text + _PLANTED for text in texts], *others]:
        row = other[: len(roles)]
        composed = trace.compose(row)
        if composed is not None:
            assert composed == template.render(conversation(roles, row))


def trace_of(template: ChatTemplate, roles: list[str], texts: list[str]) -> Trace | None:
    recording = Recording()
    traced = [recording.text(number, text) for number, text in enumerate(texts)]
    return template.trace(conversation(roles, traced), recording)


def conversation(roles: list[str], texts: list[Any]) -> Conversation:
    return Conversation(
        [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    )


def test_what_reads_texts_in_other_ways_refuses_the_trace() -> None:
    texts = ["a", "b b", " c ", "dd", "e"]
    refused = {name for name in TEMPLATES if trace_of(TEMPLATES[name], ROLES[1], texts) is None}
    assert refused == {*RENDERED}


def test_texts_that_could_exceed_a_bound_of_the_sandbox_are_rendered() -> None:
    source = (
        "{{ messages[0].content }}{% set a = messages[0].content + 'four' %}{% set x = a + a %}"
    )
    template = of_source(source)
    trace = trace_of(template, ["user"], ["a"])
    assert trace is not None
    text = "a" * (MAX_SIZE // 2 - 4)
    assert trace.compose([text]) == text == template.render(conversation(["user"], [text]))
    assert trace.compose([text + "a"]) is None
    with pytest.raises(RenderError, match="the template makes a value of more than"):
        template.render(conversation(["user"], [text + "a"]))


def rendered_by(finder: TurnFinder, rows: list[Any]) -> list[dict[str, Any]]:
    columns = find_conversations(["messages"])
    assert columns is not None
    cells = pa.array([json.dumps(row).encode() for row in rows], pa.large_binary())
    return render_chats(pa.table({"messages": cells}), columns, finder).to_pylist()


class Rendering(Composer):
    """Composes nothing."""

    def text(self, *_: Any) -> None:
        return None

    def plain(self, *_: Any) -> None:
        return None


def never_composing(template: ChatTemplate, **options: Any) -> TurnFinder:
    finder = TurnFinder(template, SPECIALS, **options)
    finder._composer = Rendering(template, finder._tokens)
    return finder


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=share_of_examples(20))
@given(st.data())
def test_composed_rows_equal_rendered_rows(name: str, data: st.DataObject) -> None:
    roles = data.draw(st.sampled_from(ROLES))
    options: dict[str, Any] = data.draw(
        st.sampled_from(
            [{}, {"train_on": "all"}, {"train_on": "last-turn"}, {"fields": {"content"}}]
        )
    )
    often = st.sampled_from(["a", "hello", "b b", " c\n", "de"])
    row = st.tuples(*[often | often | TEXTS for _ in roles])
    rows = data.draw(st.lists(row, min_size=6, max_size=12))
    rows += [(text,) * len(roles) for text in ("a", "", "b", " ", "c", "")]
    messages = [conversation(roles, [*texts]).messages for texts in rows]
    composing = TurnFinder(TEMPLATES[name], SPECIALS, **options)
    expected = [  # each row by itself, with nothing kept of others
        rendered_by(never_composing(TEMPLATES[name], **options), [row])[0] for row in messages
    ]
    if name != "random":
        assert rendered_by(composing, messages) == expected
        assert rendered_by(composing, messages[::-1]) == expected[::-1]


def calls_of(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows with each call of a method."""
    calls: list[Any] = []
    method = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return method(*args, **options)

    monkeypatch.setattr(owner, name, called)
    return calls


def test_rows_with_thoughts_tools_and_variables_are_composed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thought = "<t>{{ m.reasoning_content }}</t>{{ m.content }}"
    template = of_source("{{ tools | tojson }}{{ greeting }}" + chatml(thought))
    finder, plain = TurnFinder(template, SPECIALS), never_composing(template)
    rows = []
    for number in range(20):
        question: Message = {"role": "user", "content": f"question {number}", "name": "ann"}
        answer: Message = {"role": "assistant", "content": f"answer {number}"}
        answer["reasoning_content"] = answer["thinking"] = f"thought {number}"
        rows.append(Conversation([question, answer], [{"name": "f"}], {"greeting": "hi"}))
    expected = [plain.render(row) for row in rows]
    renderings = calls_of(ChatTemplate, "render", monkeypatch)
    assert [finder.render(row) for row in rows] == expected
    before = len(renderings)
    assert [finder.render(row) for row in rows] == expected
    assert len(renderings) == before + 1  # use 32 of the trace; 1 to 18 were in the first round


def test_a_thought_that_differs_under_its_other_name_is_rendered() -> None:
    template = of_source(chatml("{{ m.thinking }}"))
    finder, plain = TurnFinder(template, SPECIALS, "all"), never_composing(template, train_on="all")
    for number in range(4):
        message: Message = {"role": "assistant", "content": "a", "reasoning_content": "same"}
        row = Conversation([message | {"thinking": f"thought {number}"}])
        assert finder.render(row) == plain.render(row)


def test_the_order_of_keys_is_part_of_the_shape() -> None:
    finder = TurnFinder(of_source("{{ messages[0].keys() | list | join }}"), SPECIALS, "all")
    rows = [{"role": "user", "content": "a"}, {"content": "a", "role": "user"}] * 4
    texts = [row["text"] for row in rendered_by(finder, [[row] for row in rows])]
    assert texts == ["rolecontent", "contentrole"] * 4


def test_a_composed_row_that_differs_from_its_rendering_stops_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = of_source(CHATML)
    finder = TurnFinder(template, SPECIALS)
    rows = [conversation(["user", "assistant"], ["a", str(number)]) for number in range(8)]
    for row in rows[:3]:
        finder.render(row)
    render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **kw: render(*args, **kw) + "!")
    with pytest.raises(RuntimeError, match="a row composed from a trace of its chat template"):
        finder.render(rows[3])


def test_composed_rows_that_are_drawn_by_their_hash_are_rendered_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(composer, "_DRAWN", 5)
    template = of_source(CHATML)
    finder = TurnFinder(template, SPECIALS)
    rows = [conversation(["user", "assistant"], ["a", f"{number} é"]) for number in range(64)]
    for row in rows[:3]:  # rendered, traced, and composed for the first time
        finder.render(row)
    drawn = [zlib.crc32(template.render(row).encode()) % 5 == 0 for row in rows[3:]]
    rendered = calls_of(ChatTemplate, "render", monkeypatch)
    for row in rows[3:]:
        finder.render(row)
    expected = [
        row
        for use, (row, is_drawn) in enumerate(zip(rows[3:], drawn, strict=True), 2)
        if is_drawn or use & (use - 1) == 0
    ]
    assert [row for _, row in rendered] == expected
    assert sum(drawn) > 3


def test_a_trace_that_fails_at_its_first_use_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    template = of_source(CHATML)
    finder = TurnFinder(template, SPECIALS)
    monkeypatch.setattr(Trace, "compose", lambda *_: "wrong")
    monkeypatch.setattr(
        Composer, "_trace", lambda self, conversation, _: _traced(self, conversation)
    )
    rows = [conversation(["user", "assistant"], ["a", str(number)]) for number in range(8)]
    expected = [template.render(row) for row in rows]
    assert [finder.render(row).text for row in rows] == expected


def _traced(composer: Composer, row: Conversation) -> Trace | None:
    texts = [str(message["content"]) for message in row.messages]
    return trace_of(composer._template, [message["role"] for message in row.messages], texts)


def test_a_template_that_cannot_be_traced_is_not_traced_for_every_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = of_source(RENDERED["json"])
    finder = TurnFinder(template, SPECIALS)
    traced = calls_of(ChatTemplate, "trace", monkeypatch)
    for size in range(1, 30):
        for number in range(3):
            texts = [f"{number}"] * 2 * size
            finder.render(conversation(["user", "assistant"] * size, texts))
    assert len(traced) == _REFUSALS


PIECES = st.text(
    st.sampled_from('a"\\/\n\t<|[ {}\x00\x1f\x7f\x85é你😀\ufdd0\ufb00') | st.characters(),
    max_size=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), PIECES), max_size=4),
    st.booleans(),
    st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " : ")]),
)
def test_plain_chats_are_read_as_json_reads_them(
    turns: list[tuple[str, str]], ascii_only: bool, separators: tuple[str, str]
) -> None:
    chat = [{"role": role, "content": text} for role, text in turns]
    cell = json.dumps(chat, ensure_ascii=ascii_only, separators=separators).encode(
        "utf-8", "replace"
    )
    texts = [message["content"] for message in json.loads(cell)]
    is_plain = bool(chat) and all(text.strip() for text in texts)
    expected = PlainChat(tuple(role for role, _ in turns), texts) if is_plain else None
    assert plain_chat(cell) == expected


@pytest.mark.parametrize(
    "cell",
    [
        "{}",
        "null",
        '[{"content": "a", "role": "user"}]',
        '[{"role": "user"}]',
        '[{"role": "user", "content": null}]',
        '[{"role": 1, "content": "a"}]',
        '[{"role": "user", "content": ["a"]}]',
        '[{"role": "user", "content": "a", "name": "b"}]',
        '[{"role": "user", "content": "a"}, 1]',
        '[{"role": "user", "content": " \\u00a0\\u3000"}]',
        '[{"role": "user", "content": "a"}] x',
        '[{"role": "user", "content": "a"}',
    ],
)
def test_other_rows_are_left_to_the_general_code(cell: str) -> None:
    assert plain_chat(cell.encode()) is None
