"""Public chat templates, and some in their manner, with thoughts, calls and answers in prompts."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from packprep import PackprepError
from tests.helpers.characters import documents_of, save_characters

Messages = list[dict[str, Any]]

TOKEN = re.compile(r"<\|[^|<>\s]+\|?>|<｜[^｜]+｜>|<(?:start|end)_of_\w+>|<eos>|<turn\|>")
ROWS = {"messages_column": "messages"}
PROMPTED = {"prompt_column": "prompt", "response_column": "completion"}


# Their contents are lists of parts.
TAKE_PARTS = {"idefics3", "llava_next", "smolvlm"}
TAKE_PARTS |= {f"{name}_training" for name in TAKE_PARTS}


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
