"""Public chat templates, and some in their manner, with thoughts, calls and answers in prompts."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from packprep import PackprepError
from tests.helpers.characters import documents_of, save_characters
from tests.helpers.errors import refused

Messages = list[dict[str, Any]]

TOKEN = re.compile(r"<\|[^|<>\s]+\|?>|<｜[^｜]+｜>|<(?:start|end)_of_\w+>|<eos>|<turn\|>")
ROWS = {"messages_column": "messages"}


# Their contents are lists of parts.
TAKE_PARTS = {"idefics3", "llava_next", "smolvlm"}
TAKE_PARTS |= {f"{name}_training" for name in TAKE_PARTS}

WITHOUT_CALLS = {"deepseek_r1_distill", "lfm2", "llama3", "phi3", "phi3_5", "qwen2_5_vl"}


def public_templates() -> list[Any]:
    """Our own templates, and those of the installed TRL, which take long."""
    own = sorted((Path(__file__).parents[1] / "helpers" / "templates").glob("*.jinja"))
    paths = [pytest.param(path, id=f"own-{path.stem}") for path in own]
    if (spec := importlib.util.find_spec("trl")) is not None and spec.origin:
        theirs = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
        paths += [pytest.param(path, id=path.stem, marks=pytest.mark.long) for path in theirs]
    return paths


def saved(folder: Path, template: str) -> Path:
    return save_characters(folder / "tokenizer", template, TOKEN.findall(template))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, thought: str | None = None, **more: Any) -> dict[str, Any]:
    thoughts = {} if thought is None else {"reasoning_content": thought}
    return {"role": "assistant", "content": text} | thoughts | more


def calling(arguments: Any, thought: str | None = None) -> Messages:
    """A call, its result, and an answer."""
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call12345", "type": "function", "function": function}
    result = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "-8"}
    return [
        user("Cold in Rome?"),
        answer("", thought, tool_calls=[call]),
        result,
        answer("It is."),
    ]


# Their generation prompts end with something that is empty: a thought, calls, or quotes.
OPEN = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
CLOSE = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
THOUGHT = "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>"
EMPTY = {
    "thought": OPEN + THOUGHT + "{% endif %}{{ m.content }}" + CLOSE + "<think></think>{% endif %}",
    "thought always": (
        OPEN + "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content or '' }}</think>"
        "{% endif %}{{ m.content }}" + CLOSE + "<think></think>{% endif %}"
    ),
    "channel": (
        OPEN.replace("\n", "|") + "{% if m.reasoning_content %}<|channel>thought\n"
        "{{ m.reasoning_content }}\n<channel|>{% endif %}{{ m.content }}"
        + CLOSE.replace("assistant\n", "assistant|")
        + "<|channel>thought\n\n<channel|>{% endif %}"
    ),
    "calls": (
        OPEN + "{% if m.tool_calls %}[CALLS]{% for c in m.tool_calls %}"
        "{{ c.function.arguments.city }}{% endfor %}[/CALLS]{% endif %}{{ m.content }}"
        + CLOSE
        + "[CALLS][/CALLS]{% endif %}"
    ),
    "quotes": OPEN + '"{{ m.content }}"' + CLOSE + '""{% endif %}',
}
THOUGHTS: dict[str, tuple[Messages, list[list[str]]]] = {
    "plain": ([user("Hi?"), answer("Fine.")], [["Fine."]]),
    "thought": ([user("Hi?"), answer("Fine.", "I have to greet")], [["Fine.", "I have to greet"]]),
    "thought alone": ([user("Hi?"), answer("", "I have to greet")], [["I have to greet"]]),
    "inside": (
        [user("Hi?"), answer("<think>\nI have to greet\n</think>\n\nFine.")],
        [["Fine.", "I have to greet"]],
    ),
    "lines": (
        [user("Hi?"), answer("Fine.", "\nI have to greet\n")],
        [["Fine.", "I have to greet"]],
    ),
    "every turn": (
        [user("Hi?"), answer("Fine.", "I have to greet"), user("So?"), answer("Well.", "The end")],
        [["Fine.", "I have to greet"], ["Well.", "The end"]],
    ),
    "last turn": (
        [user("Hi?"), answer("Fine."), user("So?"), answer("Well.", "The end")],
        [["Fine."], ["Well.", "The end"]],
    ),
    "first turn": (
        [user("Hi?"), answer("Fine.", "I have to greet"), user("So?"), answer("Well.")],
        [["Fine.", "I have to greet"], ["Well."]],
    ),
    "call": (calling({"city": "Oslo"}, "I have to look"), [["Oslo", "I have to look"], ["It is."]]),
}


def check_thoughts(folder: Path, template: str, turns: str) -> int:
    """Build each row with thinking on and off, and check its trained texts; their number.

    A text that a document has is trained in one piece, if it is of a turn that is trained there.
    """
    kwargs: list[dict[str, Any]] = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    rows = [
        {
            "messages": messages,
            "chat_template_kwargs": each | {"thinking": each.get("enable_thinking")},
        }
        for each in kwargs
        for messages, _ in THOUGHTS.values()
    ]
    options = ROWS | {"turns": turns, "on_error": "skip", "template_date": "2026-01-31"}
    try:
        made = documents_of(folder, rows, tokenizer=saved(folder, template), **options)
    except PackprepError:  # it takes none of these rows
        return 0
    texts, count = [*THOUGHTS.values()], 0
    for document in made:
        messages, of_turns = texts[document.row % len(texts)]
        answers = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
        for at, of_turn in zip(answers, of_turns, strict=True):
            for text in of_turn if document.turn in (-1, at) else ():
                if text in document.text:
                    assert any(text in piece for piece in document.trained), document
                    count += 1
    return count


@pytest.mark.parametrize("turns", ["row", "each", "auto"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_prompt_that_ends_with_nothing_in_signs_takes_no_text(
    tmp_path: Path, name: str, turns: str
) -> None:
    """With a document of the whole row, such rows are refused."""
    least = 24 if turns == "each" else 6
    assert check_thoughts(tmp_path, EMPTY[name], turns) >= least


@pytest.mark.parametrize("turns", ["row", "each", "auto"])
@pytest.mark.parametrize("path", public_templates())
def test_content_and_thought_of_a_trained_turn_are_trained_whole(
    tmp_path: Path, path: Path, turns: str
) -> None:
    checked = check_thoughts(tmp_path, path.read_text(), turns)
    assert checked > 2 or path.stem in TAKE_PARTS


ARGUMENTS = {"city": "Oslo", "days": 2}
HEAD = OPEN + "{{ m.content }}{% for c in m.tool_calls or [] %}"
TAIL = "{% endfor %}" + CLOSE + "{% endif %}"
ITEMS = "{% for k, v in ARGUMENTS|items %}<{{ k }}>{{ v }}{% endfor %}"
CALL = "c.function.arguments"
CALLS = {
    "as JSON": ("{{ c.function | tojson }}", '"arguments": {"city": "Oslo", "days": 2}}<|im_end|>'),
    "a flat call as JSON": ("{{ c.arguments | tojson }}", '{"city": "Oslo", "days": 2}<'),
    "text as it is": (
        f"{{{{ {CALL} if {CALL} is string else {CALL} | tojson(indent=2) }}}}",
        '{"city": "Oslo", "days": 2}<|im_end|>',
    ),
    "text alone": ("{{ 'call ' + c.function.arguments }}", 'call {"city": "Oslo", "days": 2}<'),
    "as Python writes it": ("{{ c.function.arguments }}", '{"city": "Oslo", "days": 2}<|im_end|>'),
    "keys": (ITEMS.replace("ARGUMENTS", CALL), "<city>Oslo<days>2<|im_end|>"),
    "keys of a flat call": (ITEMS.replace("ARGUMENTS", "c.arguments"), "<city>Oslo<days>2<"),
    "keys where there are tools": (
        "{% if tools %}" + ITEMS.replace("ARGUMENTS", CALL) + "{% endif %}",
        "<city>Oslo<days>2<|im_end|>",
    ),
    "keys, or no text": (
        f"{{% if {CALL} is mapping %}}{ITEMS.replace('ARGUMENTS', CALL)}{{% endif %}}",
        "<city>Oslo<days>2<|im_end|>",
    ),
    "in braces": (
        f"{{{{ '{{' }}}}{{% if {CALL} is mapping %}}{ITEMS.replace('ARGUMENTS', CALL)}"
        f"{{% else %}}{{{{ {CALL} }}}}{{% endif %}}{{{{ '}}' }}}}",
        "{<city>Oslo<days>2}<|im_end|>",
    ),
    "raises": (
        f"{{% if {CALL} is string %}}{{{{ raise_exception('no text') }}}}{{% endif %}}"
        f"{{{{ {CALL} | tojson }}}}",
        '{"city": "Oslo", "days": 2}<|im_end|>',
    ),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "City."}},
            },
        },
    }
]
WHOLE = ROWS | {"train_on": "all", "template_date": "2026-01-31"}


def called(arguments: Any, flat: bool = False) -> dict[str, Any]:
    """A row with a call. flat: without `function` in the call."""
    messages = calling(arguments)
    if flat:
        [call] = messages[1]["tool_calls"]
        messages[1]["tool_calls"] = [{"id": call["id"]} | call["function"]]
    return {"messages": messages, "tools": TOOLS}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_given_to_a_template_in_the_form_that_it_takes(
    tmp_path: Path, name: str
) -> None:
    template, expected = CALLS[name]
    forms = (ARGUMENTS, json.dumps(ARGUMENTS))
    rows = [called(form, flat="flat" in name) for form in forms]
    folder = saved(tmp_path, HEAD + template + TAIL)
    made = [each.text for each in documents_of(tmp_path, rows, tokenizer=folder, **WHOLE)]
    if name == "text as it is":  # an object is written with line ends
        assert '{\n  "city": "Oslo",\n  "days": 2\n}<|im_end|>' in made[0]
        made = made[1:]
    assert all(expected in text for text in made), made
    assert len({*made}) == 1


@pytest.mark.parametrize(
    "text", ["not JSON", '["Oslo"]', "null", '{"a": 1, "a": 2}', '{"a": "\\ud800"}', '"{}"']
)
def test_text_of_no_object_is_refused_where_the_template_takes_objects(
    tmp_path: Path, text: str
) -> None:
    for name in ("keys", "as JSON", "in braces"):
        folder = saved(tmp_path / name, HEAD + CALLS[name][0] + TAIL)
        with refused(
            PackprepError, "rows.jsonl row 0", "the arguments of a tool call", "an object"
        ):
            documents_of(tmp_path, [called(text)], tokenizer=folder, **WHOLE)


def test_blank_arguments_are_a_call_without_any(tmp_path: Path) -> None:
    folder = saved(tmp_path, HEAD + "{{ c.function | tojson }}" + TAIL)
    rows = [called(""), called({})]
    texts = [each.text for each in documents_of(tmp_path, rows, tokenizer=folder, **WHOLE)]
    assert texts[0] == texts[1]
    assert '{"name": "weather", "arguments": {}}' in texts[0]


@pytest.mark.parametrize("path", public_templates())
def test_public_templates_write_the_same_for_both_forms_of_arguments(
    tmp_path: Path, path: Path
) -> None:
    template = path.read_text()
    folder = saved(tmp_path, template)
    rows = [called(ARGUMENTS), called(json.dumps(ARGUMENTS))]
    try:
        made = documents_of(tmp_path, rows, tokenizer=folder, **WHOLE)
    except PackprepError as error:  # it takes no results of tools, or no contents that are text
        assert re.search(r"roles must|element 0", str(error)), error
        return
    assert made[0].text == made[1].text
    wrong = ['\\"city', '{{"city', "{'city", "{{city"]
    assert not any(each in made[0].text for each in wrong)
    writes_calls = path.stem.removesuffix("_training") not in WITHOUT_CALLS
    assert ("Oslo" in made[0].text) == writes_calls
