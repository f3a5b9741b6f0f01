import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from packprep.chat.conversations import Conversation, Message
from packprep.chat.template import ChatTemplate, RenderError, load_chat_template
from packprep.engines.tokenizer import load_tokenizer
from packprep.support.errors import ConfigError
from tests.helpers.corpus import SHARED, save_tokenizer
from tests.helpers.errors import refused
from tests.helpers.examples import long_but

TOKENIZERS = SHARED / "tokenizers"
DATE = "26 Jul 2024"  # what llama3_2's template writes where there is no clock

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the <weather> "now", é',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "default": None}},
        },
    },
}
CALL = {
    "type": "function",
    "id": "abcdefghi",
    "function": {"name": "weather", "arguments": {"city": 'Pa"ris\n'}},
}
SYSTEM: Message = {"role": "system", "content": " Be kind.\n"}
USER: Message = {"role": "user", "content": "  Hello 你好 \n"}
ANSWER: Message = {"role": "assistant", "content": "\n\nHi there  "}
BYE: Message = {"role": "user", "content": "Bye"}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "content": "{}", "tool_call_id": "abcdefghi", "name": "weather"}
THINKING: Message = {"role": "assistant", "content": "Sunny.", "reasoning_content": "hm\n"}
INLINE: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."}

CHATS: dict[str, list[Message]] = {
    "one turn": [USER, ANSWER],
    "system": [SYSTEM, USER, ANSWER],
    "turns": [SYSTEM, USER, ANSWER, USER, ANSWER, BYE, ANSWER],
    "thinking": [USER, THINKING, USER, THINKING],
    "thinking in the text": [USER, INLINE, USER, INLINE],
    "a call": [SYSTEM, USER, CALLING, RESULT, THINKING],
    "calls": [USER, CALLING, RESULT, ANSWER, BYE, CALLING, RESULT, ANSWER],
    "a question": [USER],
    "the question last": [USER, ANSWER, USER],
}


def templated() -> Sequence[Any]:
    """Every tokenizer that has a template, one of which is in the short run."""
    names = (
        folder.name
        for folder in sorted(TOKENIZERS.glob("*"))
        if "chat_template" in json.loads((folder / "tokenizer_config.json").read_text())
    )
    return long_but(["qwen3"], names)


def template(folder: Path, source: str, **options: Any) -> ChatTemplate:
    """A template beside a small tokenizer."""
    (save_tokenizer(folder) / "chat_template.jinja").write_text(source)
    return load_chat_template(load_tokenizer(folder), **options)


@lru_cache
def transformers_tokenizer(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(str(TOKENIZERS / name))


@pytest.mark.parametrize("name", templated())
def test_a_rendering_is_that_of_transformers(name: str) -> None:
    theirs = transformers_tokenizer(name)
    ours = load_chat_template(load_tokenizer(TOKENIZERS / name))
    compared = 0
    asked = {"tokenize": False, "date_string": DATE}
    offered = (None, [TOOL], [TOOL, TOOL])
    for messages, tools, prompt in product(CHATS.values(), offered, (False, True)):
        given = {"tools": tools, "add_generation_prompt": prompt}
        try:
            expected = theirs.apply_chat_template(messages, **given, **asked)
        except Exception as error:
            with pytest.raises(RenderError, match="the chat template cannot render it"):
                ours.render(Conversation(messages, tools), add_generation_prompt=prompt)
            assert type(error).__name__ in ("TemplateError", "UndefinedError"), error
            continue
        rendered = ours.render(Conversation(messages, tools), add_generation_prompt=prompt)
        assert rendered == expected
        compared += 1
    assert compared >= 42


def test_a_file_wins_over_the_tokenizer_and_the_jinja_file_over_the_configuration(
    tmp_path: Path,
) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "config"}))
    conversation = Conversation([USER])
    assert load_chat_template(load_tokenizer(folder)).render(conversation) == "config"
    (folder / "chat_template.jinja").write_text("jinja")
    assert load_chat_template(load_tokenizer(folder)).render(conversation) == "jinja"
    (own := tmp_path / "own.jinja").write_text("own")
    assert load_chat_template(load_tokenizer(folder), own).render(conversation) == "own"


def test_the_template_tool_use_is_for_rows_with_tools(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    chat = load_chat_template(load_tokenizer(folder))
    texts = [chat.render(Conversation([USER], tools)) for tools in (None, [TOOL])]
    assert texts == ["plain", "tools"]


def test_special_tokens_and_variables_are_seen_by_the_template(tmp_path: Path) -> None:
    source = "{{ eos_token }}{{ mood }}{{ [tools, documents, add_generation_prompt] | tojson }}"
    chat = template(tmp_path, source, variables={"mood": "glad"})
    eos = load_tokenizer(tmp_path).eos
    assert eos is not None
    assert chat.render(Conversation([USER])) == f"{eos.text}glad[null, null, false]"
    sad = Conversation([USER], None, {"mood": "sad"})
    assert chat.render(sad) == f"{eos.text}sad[null, null, false]"


def test_there_is_no_clock_unless_a_date_is_given(tmp_path: Path) -> None:
    asks = "{{ strftime_now('%d %b %Y') }}"
    source = "{% if strftime_now is defined %}" + asks + "{% else %}long ago{% endif %}"
    without = template(tmp_path, source)
    assert without.render(Conversation([USER])) == "long ago"
    assert "asks for today's date; a build uses the default date" in without.notes[0]
    dated = template(tmp_path, source, date="2026-01-31")
    assert (dated.render(Conversation([USER])), dated.notes) == ("31 Jan 2026", ())
    assert dated.as_dict() != without.as_dict()
    for always in (asks, "{% if strftime_now is defined %}{% endif %}" + asks):
        needs = template(tmp_path, always)
        assert needs.notes == ()
        with refused(RenderError, "today's date", "--template-date YYYY-MM-DD"):
            needs.render(Conversation([USER]))
    with refused(ConfigError, "template_date is 'today', expected a day such as 2026-01-31"):
        template(tmp_path, source, date="today")


def test_a_file_that_is_not_a_template_is_refused_at_once(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tokenizer(tmp_path / "none"))
    with pytest.raises(ConfigError, match="has no chat template; give one with chat_template"):
        load_chat_template(tokenizer)
    with pytest.raises(ConfigError, match=r"no chat template .*nowhere\.jinja"):
        load_chat_template(tokenizer, tmp_path / "nowhere.jinja")
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_chat_template(tokenizer, tmp_path / "latin.jinja")
