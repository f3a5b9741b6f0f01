"""Chats: what is trained of a row, its ids, and which rows are refused."""

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packprep import BuildConfig, build
from packprep.chat.conversations import conversation_of, find_columns, rows_of
from packprep.chat.documents import Rendered, Renderer
from packprep.chat.function_template import load_function
from packprep.chat.rendering import Finder
from packprep.chat.template import ChatTemplate, load_template
from packprep.chat.turns import Splitter
from packprep.chat.types import (
    THOUGHT_KEYS,
    BadRowError,
    Conversation,
    Document,
    Message,
    RenderError,
)
from packprep.read.reading import splits
from packprep.run import job
from packprep.support.ahead import in_processes
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.tokens.encode import Encoded, encode_pieces, token_sizes
from packprep.tokens.engine import Reference
from packprep.tokens.tokenizer import load_tokenizer
from tests.helpers.chats import functions, in_python, left_out, public, tokenizers
from tests.helpers.chats.tokenizers import CHATS, DATE, TOOL, transformers_tokenizer
from tests.helpers.chats.turns import (
    CHATML,
    CUT,
    EMPTY_THOUGHT,
    FORGETS,
    MESSAGES,
    NAMED,
    NAMES,
    REFUSED,
    SIGNS,
    SPECIAL,
    SPECIALS,
    TRAINED,
    TWO,
    chat,
    parts,
)
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.reference_chat import PartsTemplate, special_ids_of_text, trained_by_tokens

DAY = {"strftime_now": "2026-01-31"}
HI: Message = {"role": "user", "content": "hi"}
HELLO: Message = {"role": "assistant", "content": "hello"}
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
PARTS = [{"type": "text", "text": "h"}, "el", {"text": "lo"}]


def finder(source: str, specials: Any = SPECIALS, train_on: Any = "assistant") -> Finder:
    template = ChatTemplate(sources={"default": source}, variables={**NAMES, **DAY})
    return Finder(template, specials, train_on)


def find(source: str, messages: Any, untrained: Any = (), **options: Any) -> Document:
    one = finder(source, **options)
    row = one.template.with_call_arguments(Conversation(messages, untrained=untrained))
    return one.render(row)


def trained(document: Document) -> list[str]:
    [piece] = document.pieces
    return [piece.text[first:last] for first, last in piece.trained or []]


def by_turn(one: Finder, messages: Any, turns: str = "each") -> list[tuple[int, list[str]]]:
    documents, _ = Splitter(one, turns).documents(Conversation(messages))
    return [(document.part, trained(document)) for document in documents]


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_a_model_writes(name: str) -> None:
    source, messages, expected = TRAINED[name]
    document = find(source, messages)
    assert trained(document) == expected
    spelled = any(token in str(messages) for token in SPECIALS)
    assert (document.pieces[0].specials is not None) == spelled
    assert find(source, messages, train_on="all").pieces[0].trained is None
    if name == "blocks upside down":  # it is not known which message they are of
        return
    asked = max(at for at, message in enumerate(messages) if message["role"] == "user")
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    of_last = [text for turn, text in zip(turns, expected, strict=True) if turn > asked]
    assert trained(find(source, messages, train_on="last-turn")) == of_last
    for gone in turns:
        kept = [text for turn, text in zip(turns, expected, strict=True) if turn != gone]
        assert trained(find(source, messages, (gone,))) == kept


@pytest.mark.parametrize(("source", "messages", "words"), REFUSED)
def test_turns_that_cannot_be_found_are_refused_with_advice(
    source: str, messages: Any, words: list[str]
) -> None:
    with refused(RenderError, *words, "--train-on all"):
        find(source, messages)
    assert find(source, messages, train_on="all").pieces[0].trained is None


@pytest.mark.parametrize("key", THOUGHT_KEYS)
def test_every_name_of_a_thought_is_taken_away_where_a_turn_is_found_without_it(key: str) -> None:
    """A prompt that ends with an empty thought: earlier turns begin where it breaks off."""
    source = EMPTY_THOUGHT.replace("m.reasoning_content", f"m.{key}")
    messages = chat("hi", "hello", "bye", "ciao")
    for message in messages[1::2]:
        message |= dict.fromkeys(THOUGHT_KEYS, "")
    expected = ["hello<|im_end|>", "ciao<|im_end|>"]
    assert trained(find(source, messages)) == expected
    with_thought: Any = [*messages[:3], {**messages[3], **dict.fromkeys(THOUGHT_KEYS, "hm")}]
    with refused(RenderError, "does not write the end of its generation prompt there"):
        find(source, with_thought)


def test_rows_that_a_template_cannot_train_are_refused() -> None:
    with refused(RenderError, "takes message 1 out of what is trained, but --train-on"):
        find(CHATML, TWO, (1,), train_on="all")
    with refused(RenderError, "U+FDD1, which is not a character; remove it"):
        find(CHATML, chat("\ufdd1", "a"))
    with refused(RenderError, "cannot find a block of message 1 alone, which is not trained"):
        find("{% generation %}" + CHATML + "{% endgeneration %}", TWO, (1,))


@pytest.mark.parametrize("test", ["m.content == 'hello'", "m.content[:2] == 'he'"])
def test_a_block_that_depends_on_a_text_is_that_of_its_row(test: str) -> None:
    block = "{% generation %}{{ m.content }}{% endgeneration %}"
    said = (
        f"{{% if m.role == 'user' or {test} %}}{{{{ m.content }}}}{{% else %}}{block}{{% endif %}}"
    )
    source = "{% for m in messages %}{{ m.role }}: " + said + "\n{% endfor %}"
    assert trained(find(source, chat("hi", "hello", "bye", "ciao"))) == ["ciao"]


LARGE = "{% set x = 'a' * 10000000 %}{% set ns = namespace(t='a', l=['a']) %}"
TIMES = "{% for i in range(60) %}{% set ns.WHAT %}{% endfor %}{{ ns.t }}{{ ns.l }}"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages.__class__ }}", "reads the attribute '__class__'"),
        ("{{ messages[0]['content'].__init__ }}", "reads the attribute '__init__'"),
        ("{{ '{0.__class__}'.format(messages) }}", "cannot render it"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ dict.update(messages[0], {'role': 'x'}) }}", "update"),
        ("{% for a in range(900) %}{% for b in range(900) %}{% endfor %}{% endfor %}", "500,000"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
        ("{{ [1] | batch(10000000, 'a') | list }}", "500,000 steps"),
        (LARGE + TIMES.replace("WHAT", "t = ns.t + ns.t"), "16,777,216 characters"),
        (LARGE + TIMES.replace("WHAT", "t = ns.t ~ ns.t"), "16,777,216 characters"),
        (LARGE + TIMES.replace("WHAT", "l = [ns.l, ns.l]"), "1,048,576 items"),
        (LARGE + "{{ (" + " + ".join("x" * 90) + ") | length }}", "16,777,216 characters"),
        (LARGE + "{{ (" + " ~ ".join("x" * 300) + ") | length }}", "16,777,216 characters"),
        (LARGE + "{{ x }}{{ x }}", "writes more than 16,777,216 characters"),
        (LARGE + "{{ x | replace('a', x) }}", "16,777,216 characters"),
        (LARGE + "{{ x.join(range(1000) | map('string')) }}", "16,777,216 characters"),
        (LARGE + "{{ range(1000) | map('string') | join(x) }}", "16,777,216 characters"),
        (LARGE + "{{ '{0}{0}{0}'.format(x) }}", "formats with"),
        ("{{ ('a\n' * 1000000) | indent(1000) }}", "16,777,216 characters"),
        ("{{ 'a'.center(1000000000) }}", "calls center with 1,000,000,000"),
        ("{{ 'a' * 1000000000 }}", "16,777,216 characters"),
        ("{{ 10 ** 10 ** 10 }}", "takes a power"),
        ("{{ '%*s' % (100000000, 'a') }}", "formats with"),
        ("{{ messages | tojson(indent=100000) }}", "indents or separates JSON"),
    ],
)
def test_a_template_stays_within_its_bounds(source: str, words: str) -> None:
    before = [dict(message) for message in TWO]
    with refused(RenderError, "the chat template cannot render it", words):
        find(source, TWO)
    assert before == TWO


@pytest.mark.parametrize(
    ("source", "question", "name"),
    [
        (NAMED, "hi", "|im_end|"),
        (NAMED, "hi", "im_end|>"),
        (CUT, "<|im_<think>end|>", "no sign of a token"),
    ],
)
def test_only_special_tokens_of_the_template_are_special(
    source: str, question: str, name: str
) -> None:
    messages: Any = chat(question, "hello")
    document = finder(source).render(Conversation(messages, [{name: name}]))
    [piece] = document.pieces
    assert piece.specials is not None
    found = [piece.text[first:last] for first, last in piece.specials]
    assert found == ["<|im_start|>", "<|im_end|>"] * 2


@given(parts(), st.lists(MESSAGES, min_size=1, max_size=5))
def test_turns_end_alike_whatever_follows(template: PartsTemplate, messages: Any) -> None:
    messages.append({"role": "assistant", "content": "last"})
    # Where a turn begins with its header and has no text, a token of that header is its last one.
    assume(template.prompt != "never" or all(str(each["content"]).strip() for each in messages))
    text, spans = template.rendered(messages, SPECIAL)
    one = finder(template.source())
    for stop in (len(messages) - 1, len(messages)):
        document = one.render(Conversation(messages[:stop]))
        text, spans = template.rendered(messages[:stop], SPECIAL)
        assert document.text == text
        assert document.pieces[0].trained == [span for bounds in spans.values() for span in bounds]
    assert [texts for _, texts in by_turn(one, messages)] == [
        [text[first:last] for first, last in bounds] for bounds in spans.values()
    ]


@pytest.mark.parametrize(
    ("source", "thought"), [(FORGETS, "I look"), (SIGNS, "a"), (SIGNS, "[see] <this> or that")]
)
def test_auto_sees_a_lost_thought_of_a_content(source: str, thought: str) -> None:
    """Also where it is written between other signs."""
    inline = f"<think>\n{thought}\n</think>\n\nhello"
    messages = chat("hi", inline, "bye", inline)
    assert [turn for turn, _ in by_turn(finder(source), messages, "auto")] == [1, 3]
    messages = chat("hi", "hello", "bye", inline)
    assert [turn for turn, _ in by_turn(finder(source), messages, "auto")] == [-1]


@pytest.mark.parametrize("calls", [False, True])
def test_auto_refuses_a_template_that_shows_no_model_what_it_trains(calls: bool) -> None:
    unstable = "<s>{{ messages | length }} messages</s>" + CHATML
    messages = chat("hi", "hello", "bye", "ciao")
    if calls:
        messages[1]["tool_calls"] = [{"function": {"name": "f", "arguments": {"x": "y"}}}]
    with refused(RenderError, "renders the messages before message 1 differently once it"):
        by_turn(finder(unstable), messages, "auto")
    expected = [(1, ["hello<|im_end|>"]), (3, ["ciao<|im_end|>"])]
    assert by_turn(finder(unstable), messages) == expected


def test_turns_are_counted() -> None:
    messages: Any = [*chat("hi", "hello", "bye", "ciao"), {"role": "user", "content": " more "}]
    splitter = Splitter(finder(CHATML), "each")
    documents, counts = splitter.documents(Conversation(messages, untrained=(3,)))
    assert [document.part for document in documents] == [1]
    assert +counts == {"split_rows": 1, "behind_rows": 1, "behind_characters": 11}
    _, counts = splitter.documents(Conversation(messages[:1]))
    assert counts == {"without_turn": 1}


Thoughts = tuple[list[Message], list[list[str]]]


@pytest.mark.parametrize("turns", ["row", "each", "auto"])
@pytest.mark.parametrize("path", public.public_templates())
def test_content_and_thought_of_a_trained_turn_are_trained_whole(path: Path, turns: str) -> None:
    """In our templates and in those of TRL, with thinking on and off."""
    checked = _checked(path.read_text(), turns)
    assert checked > 2 or path.stem in public.TAKE_PARTS


@pytest.mark.parametrize("turns", ["row", "each", "auto"])
@pytest.mark.parametrize("name", public.EMPTY)
def test_a_prompt_that_ends_with_nothing_in_signs_takes_no_text(name: str, turns: str) -> None:
    assert _checked(public.EMPTY[name], turns) >= (24 if turns == "each" else 6)


def _checked(source: str, turns: str) -> int:
    """Texts of THOUGHTS that are there; each is in one trained piece."""
    one, count = finder(source, {*public.TOKEN.findall(source), "</s>"}), 0
    settings: list[dict[str, Any]] = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    for variables in settings:
        for messages, of_turns in public.THOUGHTS.values():
            read = conversation_of({"messages": json.dumps(messages)}, ["messages"])
            thinking = variables | {"thinking": variables.get("enable_thinking")}
            row = Conversation(read.messages, variables=thinking)
            try:
                row = one.template.with_call_arguments(row)
                documents = (
                    [one.render(row)] if turns == "row" else Splitter(one, turns).documents(row)[0]
                )
            except RenderError:
                continue
            answers = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
            for document in documents:
                for at, texts in zip(answers, of_turns, strict=True):
                    for text in texts if document.part in (-1, at) else ():
                        if text in document.text:
                            assert any(text in piece for piece in trained(document)), document
                            count += 1
    return count


@pytest.mark.parametrize("path", public.public_templates())
def test_labels_of_templates_with_blocks_are_those_of_transformers(path: Path) -> None:
    """The training templates of TRL, by the masks that `apply_chat_template` returns."""
    source = path.read_text()
    if "{% generation %}" not in source and "{%- generation" not in source:
        pytest.skip("marks no text itself")
    transformers = pytest.importorskip("transformers")
    names = sorted({*public.TOKEN.findall(source), "<s>", "</s>"})
    backend = Tokenizer.from_str(tiny_tokenizer().to_str())
    backend.add_special_tokens(names)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=source
    )
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    today = {"strftime_now": str(datetime.date.today())}  # the day that transformers writes
    template = ChatTemplate(sources={"default": source}, variables={**tokens, **today})
    renderer = _renderer(backend.to_str().encode(), template)
    compared = 0
    for messages in [*CHATS.values(), *(messages for messages, _ in public.THOUGHTS.values())]:
        listed = json.loads(json.dumps(messages))
        try:
            expected = theirs.apply_chat_template(
                listed, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception:
            continue
        made = renderer.documents(pa.table({"messages": [json.dumps(listed)]}), ["messages"])
        if made.problems:
            continue
        encoded = _encoded(made, renderer)
        assert encoded.ids.tolist() == expected["input_ids"]
        assert _mask(encoded) == expected["assistant_masks"]
        compared += 1
    assert compared > 2 or path.stem in public.TAKE_PARTS


def _renderer(tokenizer_json: bytes, template: Any, **options: Any) -> Renderer:
    by_bytes = token_sizes(json.loads(tokenizer_json)) is not None
    options = {"vocab_size": 300, "by_bytes": by_bytes, **options}
    return Renderer(template=template, tokenizer_json=tokenizer_json, **options)


def _mask(tokens: Encoded) -> list[int]:
    """1 for each trained token."""
    assert tokens.mask is not None
    return [int(each) for each in tokens.mask]


def _encoded(made: Rendered, renderer: Renderer) -> Encoded:
    engine = Reference(renderer.tokenizer_json, parse_special_tokens=True)
    sizes = token_sizes(json.loads(renderer.tokenizer_json))
    return encode_pieces(made.table["pieces"].combine_chunks(), engine.encode, sizes)


def encoded(
    folder: Path, rows: Sequence[Any], *, tools: Any = None, file: Path | None = None
) -> tuple[list[tuple[list[int], list[bool]]], dict[int, tuple[str, str]]]:
    """Ids and mask of rows of messages, and problems of rows."""
    tokenizer = load_tokenizer(str(folder), bos="none", eos="none")
    named = tokenizer.named_tokens.items()
    template, _ = load_template(str(file) if file else None, tokenizer.chat_templates, {}, named)
    assert tokenizer.json is not None
    renderer = _renderer(tokenizer.json, template)
    columns = {"messages": [json.dumps(row) for row in rows]}
    columns |= {"tools": [json.dumps(tools)] * len(rows)}
    made = renderer.documents(pa.table(columns), ["messages"])
    tokens = _encoded(made, renderer)
    bounds = zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    listed = [
        (tokens.ids[a:b].tolist(), [each > 0 for each in _mask(tokens)[a:b]]) for a, b in bounds
    ]
    return listed, made.problems


@pytest.mark.parametrize("name", tokenizers.FORMATS)
def test_ids_are_those_of_transformers_and_the_mask_is_the_brute_force_one(
    name: str, record_inputs: Path
) -> None:
    theirs, messages = transformers_tokenizer(record_inputs / name), tokenizers.chats(40)
    opening, closing = (
        theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids
        for text in tokenizers.FORMATS[name]
    )
    rows, _ = encoded(record_inputs / name, messages)
    for row, (ids, mask) in zip(messages, rows, strict=True):
        assert ids == theirs.apply_chat_template(row, date_string=DATE)["input_ids"]
        assert mask == trained_by_tokens(ids, opening, closing[0])


@pytest.mark.parametrize("name", tokenizers.FORMATS)
def test_a_text_that_spells_every_special_token_gives_no_special_id(
    name: str, record_inputs: Path
) -> None:
    backend = transformers_tokenizer(record_inputs / name).backend_tokenizer
    added = backend.get_added_tokens_decoder().values()
    names = [token.content for token in added if token.special]
    spelled = "x".join(names) + "".join(names) + " ".join(names)
    plain = chat("hi", "hello", "hi", "hello")
    harmful = chat(*[f"{message['content']}{spelled}" for message in plain])
    one_each = [chat(*[token] * 4) for token in names[:: max(1, len(names) // 40)]]
    function = {"name": names[0], "description": names[-1], "parameters": {names[1]: names[2]}}
    for tools, calm in ((None, None), ([{"type": "function", "function": function}], [TOOL])):
        [(ids, _)], _ = encoded(record_inputs / name, [plain], tools=calm)
        expected = special_ids_of_text(backend, ids)
        rows, problems = encoded(record_inputs / name, [harmful, *one_each], tools=tools)
        assert problems == {}
        assert all(special_ids_of_text(backend, ids) == expected for ids, _ in rows)
        ids, mask = rows[0]
        kept = [id_ for id_, is_trained in zip(ids, mask, strict=True) if is_trained]
        assert backend.decode(kept, skip_special_tokens=False).count("hello" + spelled) == 2


@pytest.mark.parametrize("name", tokenizers.OTHERS)
def test_tokenizers_of_every_kind_give_the_ids_of_the_whole_text(
    name: str, record_inputs: Path, tmp_path: Path
) -> None:
    opening, closing = tokenizers.OTHERS[name]
    file = tmp_path / "chat.jinja"
    file.write_text(tokenizers.CHATML.replace("<s>", opening).replace("</s>", closing))
    theirs = transformers_tokenizer(record_inputs / name)
    messages = [*tokenizers.chats(20), CHATS["turns"], CHATS["one turn"]]
    rows, _ = encoded(record_inputs / name, messages, file=file)
    closes = theirs.convert_tokens_to_ids(closing)
    for row, (ids, mask) in zip(messages, rows, strict=True):
        asked = theirs.apply_chat_template(row, chat_template=file.read_text())
        assert ids == asked["input_ids"]
        turns = sum(message["role"] == "assistant" for message in row)
        assert sum(np.array(ids)[np.array(mask)] == closes) == turns


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_space_before_a_first_word_is_where_the_whole_text_has_it(
    scheme: str, tmp_path: Path
) -> None:
    folder, file = tokenizers.metaspace(tmp_path / "made", scheme), tmp_path / "chat.jinja"
    file.write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    plain, harmful = chat("hi you", "hello me"), chat("hi </s> you", "hello<s> me")
    [first, (ids, _)], problems = encoded(folder, [plain, harmful], file=file)
    assert problems == {}
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = whole.encode("user:hi you</s>assistant:hello me</s>", add_special_tokens=False)
    assert first == (encoding.ids, [end > 25 for _, end in encoding.offsets])
    opening, closing = whole.encode("<s></s>", add_special_tokens=False).ids
    assert (ids.count(closing), opening in ids) == (2, False)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"messages": [HI, HELLO]}, ()),
        ({"messages": json.dumps([HI, HELLO])}, ()),
        ({"conversations": SHAREGPT}, ()),
        ({"prompt": "hi", "response": "hello"}, ()),
        ({"prompt": [HI], "completion": [HELLO]}, ()),
        ({"q": "hi", "a": "hello"}, ("q", "a")),
        ({"q": [HI], "a": "hello"}, ("q", "a")),
        ({"messages": json.dumps([HI, {**HELLO, "content": PARTS}])}, ()),
    ],
)
def test_one_conversation_may_be_written_in_many_ways(row: Any, names: tuple[str, ...]) -> None:
    table = pa.table({name: [value] for name, value in row.items()})
    columns = find_columns(names or ("auto",), table.column_names, "rows")
    [read] = rows_of(table)
    assert conversation_of(read, columns) == Conversation([HI, HELLO])
    with refused(InputError, "rows has no column of conversations"):
        find_columns(("auto",), ["text", "prompt"], "rows")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"messages": "null"}, "null: 'messages' is null, expected a list of messages"),
        ({"messages": "[]"}, "no_messages: 'messages' is empty, expected at least one message"),
        ({"messages": ["hi"]}, "not_messages: message 0 is text, expected an object with role"),
        ({"messages": [{"content": "x"}]}, "no_role: message 0 has no role; it has 'content'"),
        ({"messages": [{"role": "user"}]}, "no_content: message 0 (user) has no content"),
        ({"messages": [{**HI, "content": 3}]}, "no_content: message 0 (user) has a number as"),
        ({"messages": [{**HI, "role": "<s>"}]}, "bad_role: message 0 has the role '<s>', expected"),
        ({"messages": [{**HELLO, "weight": 0.5}]}, "bad_train: message 0 (assistant) has 0.5 as"),
        ({"messages": [{**HI, "train": True}]}, "bad_train: message 0 (user) has True as train"),
        ({"messages": "[{"}, "bad_json: 'messages' is text but not JSON"),
        ({"messages": '[{"role": "user", "content": "a", "content": "b"}]'}, "'content' twice"),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "bad_utf8"),
        ({"messages": [HI], "tools": '{"a": 1}'}, "bad_tools: 'tools' is an object"),
        ({"messages": [HI], "chat_template_kwargs": "[1]"}, "bad_variables"),
        ({"prompt": "hi", "completion": "x", "label": False}, "'label' is False"),
        ({"messages": [HI], "loss_mask": [[1]]}, "'loss_mask'"),
        ({"prompt": [HI], "completion": [HI, HELLO]}, "'completion' begins with the prompt"),
        ({"messages": [{**HI, "content": "<image>"}], "images": ["x"]}, "'images' holds"),
        ({"messages": [{**HI, "train_detail": "x"}]}, "spans of characters"),
        ({"messages": [{**HI, "role": "system"}], "system": "b"}, "different texts"),
        ({"instruction": "a", "output": "b", "history": "[[1]]"}, "'history' is [[1]], expected"),
    ],
)
def test_a_row_that_is_no_conversation_or_would_train_something_wrong_is_refused(
    columns: Any, words: str
) -> None:
    names = find_columns(("auto",), columns, "rows")
    [row] = rows_of(pa.table({name: [value] for name, value in columns.items()}))
    with pytest.raises(BadRowError) as bad:
        conversation_of(row, names)
    assert words in f"{bad.value.reason}: {bad.value}"


def test_columns_beside_a_conversation_become_messages() -> None:
    columns = {"instruction": "a", "input": "b", "output": "c", "system": "s"}
    columns |= {"history": json.dumps([["q", "r"]])}
    table = pa.table({name: [value] for name, value in columns.items()})
    names = find_columns(("auto",), table.column_names, "rows")
    [cells] = rows_of(table)
    row = conversation_of(cells, names)
    texts = [(message["role"], message.get("content")) for message in row.messages]
    expected = [("system", "s"), ("user", "q"), ("assistant", "r"), ("user", "a\nb")]
    assert texts == [*expected, ("assistant", "c")]
    assert (row.untrained, row.prompt) == ((2,), 4)


@pytest.mark.parametrize("name", public.CALLS)
def test_arguments_are_given_to_a_template_in_the_form_that_it_takes(name: str) -> None:
    template, expected = public.CALLS[name]
    one = finder(public.HEAD + template + public.TAIL)
    forms = (public.ARGUMENTS, json.dumps(public.ARGUMENTS))
    texts = []
    for form in forms[name == "text as it is" :]:
        row = public.called(form, flat="flat" in name)
        conversation = Conversation(row["messages"], row["tools"])
        texts.append(one.template.render(one.template.with_call_arguments(conversation)))
    assert all(expected in text for text in texts), texts
    assert len({*texts}) == 1


CONTAINED = {
    "the name of a tool",  # it is in the call
    "a key that only the last turn has",  # both turns have the same text
    "one key is compared, the other not read",
    "content under another key too",
}
"""Cases in which a text is looked for in the rendering, not followed by marks."""


@pytest.mark.parametrize("case", sorted({*left_out.CASES} - CONTAINED))
def test_text_under_any_key_that_is_not_written_is_counted(case: str) -> None:
    source, messages, expected = left_out.CASES[case]
    renderer = _renderer(tiny_tokenizer().to_str().encode(), finder(source).template)
    made = renderer.documents(pa.table({"messages": [json.dumps(messages)]}), ["messages"])
    counts = {tuple(key.split(maxsplit=1)): count for key, count in made.left_out.items()}
    assert {key[1]: count for key, count in counts.items() if key[0] == "characters"} == expected
    assert all(count for key, count in counts.items() if key[0] == "tokens")


def test_keys_that_a_template_does_not_know_are_named() -> None:
    messages = [HI, {**HELLO, "score": 3, "name": "bob"}]
    renderer = _renderer(tiny_tokenizer().to_str().encode(), finder(CHATML).template)
    made = renderer.documents(pa.table({"messages": [json.dumps(messages)] * 2}), ["messages"])
    assert made.unread == ["score"]


@pytest.mark.parametrize("family", ["deepseek", "kimi"])
def test_a_template_in_python_equals_one_of_the_same_form(tmp_path: Path, family: str) -> None:
    """Special tokens that messages spell stay text, and the same thoughts are left out."""
    backend = Tokenizer.from_str(tiny_tokenizer().to_str())
    backend.add_special_tokens(functions.SPECIALS)
    raw = backend.to_str().encode()
    file = in_python.__file__
    rows = json.loads(json.dumps(functions.ROWS))
    columns = {key: [json.dumps(row.get(key)) for row in rows] for key in ("messages", "tools")}
    sources = {"default": functions.TEMPLATES[family]}
    results = []
    for template in (
        ChatTemplate(sources=sources, variables={}),
        load_function(f"{file}:{family}", {}),
    ):
        renderer = _renderer(raw, template)
        made = renderer.documents(pa.table(columns), ["messages"])
        assert made.problems == {}
        tokens = _encoded(made, renderer)
        thoughts = made.left_out["characters reasoning"]
        results.append((tokens.ids.tolist(), _mask(tokens), thoughts))
    assert results[0] == results[1]
    assert 0 < sum(results[0][1]) < len(results[0][1])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", ["raised KeyError in line 3", "'missing'"]),
        ("ids", ["piece 0 has 1000000 in token_ids", "ids from 0 to"]),
        ("ends", ["raised SystemExit", "over"]),
    ],
)
def test_a_template_in_python_that_fails_is_the_problem_of_its_row(
    tmp_path: Path, function: str, words: list[str]
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(functions.BAD)
    raw = tiny_tokenizer().to_str().encode()
    template = load_function(f"{file}:{function}", {})
    made = _renderer(raw, template).documents(
        pa.table({"messages": [json.dumps([HI])]}), ["messages"]
    )
    reason, sentence = made.problems[0]
    assert (reason, [word for word in words if word not in sentence]) == ("template", [])
    with refused(ConfigError, "no function 'gone'"):
        load_function(f"{file}:gone", {})
    with refused(ConfigError, "cannot take (messages, tools)"):
        load_function(f"{file}:alone", {})


def pieces_of(cells: Iterator[Any] | list[Any]) -> tuple[Rendered, Encoded]:
    raw = tiny_tokenizer().to_str().encode()
    renderer = _renderer(raw, None)
    texts = pa.array([json.dumps(cell).encode() for cell in cells], pa.large_binary())
    made = renderer.documents(pa.table({"p": texts}), ["p"], pieces=True)
    return made, _encoded(made, renderer)


def test_no_token_is_of_two_pieces_and_special_tokens_are_parsed() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.encode_special_tokens = False

    encode = partial(tokenizer.encode, add_special_tokens=False)
    row = [
        {"text": "<s>a b", "train": False},
        {"token_ids": [5, 6, 7], "train": True},
        {"text": " b</s>", "train": True},
        {"text": "", "train": True},
        {"token_ids": [8], "train": False},
    ]
    made, tokens = pieces_of([row, "<s>a text</s>", [], row[1:2]])
    first, last = encode("<s>a b").ids, encode(" b</s>").ids
    expected = [*first, 5, 6, 7, *last, 8]
    text = encode("<s>a text</s>").ids
    assert made.problems == {}
    assert tokens.ids.tolist() == [*expected, *text, 5, 6, 7]
    mask = [0] * len(first) + [1] * (3 + len(last)) + [0]
    assert _mask(tokens) == mask + [1] * (len(text) + 3)
    assert np.diff(tokens.offsets).tolist() == [len(expected), len(text), 0, 3]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (None, "null: 'p' is null, expected a list of pieces"),
        ('[{"text": "a", "train": true}]', "bad_pieces: 'p' is JSON in a text"),
        ([{"text": "a"}], "piece 0 has 'text', expected train, and one of text and token_ids"),
        ([{"text": "a", "train": "yes"}], "piece 0 has 'yes' as train, expected true or false"),
        ([{"token_ids": [300], "train": True}], "piece 0 has 300 in token_ids, expected ids"),
        ([{"text": "\ud800", "train": True}], "bad_utf8: the text of piece 0"),
    ],
)
def test_pieces_that_cannot_be_read_are_refused(cell: Any, words: str) -> None:
    made, _ = pieces_of([cell])
    assert words in ": ".join(made.problems[0])


def test_pieces_keep_their_spaces_where_each_word_has_one(record_inputs: Path) -> None:
    raw = (record_inputs / "t5_small/tokenizer.json").read_bytes()
    renderer, whole = _renderer(raw, None), Tokenizer.from_str(raw.decode())
    made = renderer.documents(pa.table({"q": ["What is"], "a": [" a shard of"]}), ["q", "a"])
    ids = whole.encode("What is a shard of", add_special_tokens=False).ids
    assert _encoded(made, renderer).ids.tolist() == ids


def test_prompt_and_response_without_a_template_are_encoded_apart(tmp_path: Path) -> None:
    folder = tokenizers.metaspace(tmp_path / "made", "always")
    raw = (folder / "tokenizer.json").read_bytes()
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    renderer = _renderer(raw, None)
    table = pa.table({"prompt": ["hi", "", "a <s>"], "response": [" you", "me", "b"]})
    made = renderer.documents(table, ["prompt", "response"])
    tokens = _encoded(made, renderer)
    ids = [tokens.ids[a:b].tolist() for a, b in pairwise(tokens.offsets)]
    assert "".join(str(whole.id_to_token(each)) for each in ids[0]) == "▁hi▁you"
    assert ids[1] == whole.encode("me", add_special_tokens=False).ids
    assert whole.token_to_id("<s>") not in ids[2]
    mask = _mask(tokens)[: tokens.offsets[1]]
    assert mask == sorted(mask)
    assert 0 < sum(mask) < len(mask)


def test_a_template_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with refused(ConfigError, "the tokenizer has no chat template; give one with"):
        load_template(None, {}, {}, ())
    with refused(ConfigError, "there is no chat template", "nowhere.jinja"):
        load_template(str(tmp_path / "nowhere.jinja"), {}, {}, ())
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with refused(ConfigError, "is not UTF-8"):
        load_template(str(tmp_path / "latin.jinja"), {}, {}, ())
    for source, words in (("{% if %}", "does not parse: line 1"), ("{% break %}", "compile")):
        with refused(ConfigError, words):
            load_template(None, {"default": source}, {}, ())
    asks = "{{ strftime_now('%d %b %Y') }}"
    template, [note] = load_template(None, {"default": asks}, {}, ())
    assert "asks for today's date" in note
    with refused(RenderError, "it asks for today's date"):
        template.render(Conversation([HI]))
    dated, notes = load_template(None, {"default": asks}, DAY, ())
    assert (dated.render(Conversation([HI])), notes) == ("31 Jan 2026", [])


def test_helper_processes_render_the_same_and_pass_on_errors() -> None:
    renderer = _renderer(tiny_tokenizer().to_str().encode(), finder(CHATML).template)
    rows = [chat("hi", f"hello {number}") for number in range(6)]
    table = pa.table({"messages": [json.dumps(row) for row in rows] + ["[]"]})
    expected = renderer.documents(table, ["messages"])
    assert [*expected.problems] == [6]
    with in_processes(renderer.documents, 2) as render:
        assert [render(table, ["messages"]) for _ in range(3)] == [expected] * 3
        with pytest.raises(TypeError):
            render(table)
        assert render(table, ["messages"]) == expected


def dies() -> None:
    os._exit(1)


def test_a_helper_process_that_dies_is_an_error() -> None:
    with in_processes(dies, 2) as call, refused(StoppedError, "has died", "--num-proc"):
        call()


def report_of(folder: Path, row: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Report of a build of 30 such rows, with the template of Kimi."""
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    config["chat_template"] = functions.TEMPLATES["kimi"]
    rows = write_jsonl(folder / "rows.jsonl", [row] * 30)
    options = {"messages": "messages", "sources": [{"path": str(rows), "limit": 3}]} | options
    options |= {"tokenizer": str(save_tokenizer(folder / "tokenizer", config=config))}
    made = build(BuildConfig(**options, output=str(folder / "out"), max_length=256, engine="hf"))
    report: dict[str, Any] = json.loads(made.files.read("report.json"))
    return report


def test_sources_with_limits_have_splits_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their token files have no documents, and so not the columns of the others."""
    monkeypatch.setattr(job, "splits", partial(splits, size=500))
    report = report_of(tmp_path, {"messages": chat("hi", "hello")})
    assert report["documents"]["in"] == 3


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    """A picture whose place no text says, and what only an instruction has."""
    row = {"prompt": "hi", "response": "hello", "images": ["x.png"], "input": "more", "id": 3}
    report = report_of(tmp_path, row | {"system": ""}, messages="prompt,response")
    assert {*report["not_read"]["columns"]} == {"images", "input", "id"}
