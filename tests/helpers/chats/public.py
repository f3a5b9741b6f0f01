"""Public chat templates, and some in their manner, with thoughts, calls and answers in prompts."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

Messages = list[dict[str, Any]]
TOKEN = re.compile(r"<\|[^|<>\s]+\|?>|<｜[^｜]+｜>|<(?:start|end)_of_\w+>|<eos>|<turn\|>")
# Their contents are lists of parts.
TAKE_PARTS = {"idefics3", "llava_next", "smolvlm"}
TAKE_PARTS |= {f"{name}_training" for name in TAKE_PARTS}


def public_templates() -> list[Any]:
    """Our own templates, and those of the installed TRL."""
    own = sorted((Path(__file__).parents[1] / "templates").glob("*.jinja"))
    paths = [pytest.param(path, id=f"own-{path.stem}") for path in own]
    if (spec := importlib.util.find_spec("trl")) is not None and spec.origin:
        theirs = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
        paths += [pytest.param(path, id=path.stem) for path in theirs]
    return paths


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
    return [user("Cold in Rome?"), answer("", thought, tool_calls=[call]), result, answer("It is.")]


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


def called(arguments: Any, flat: bool = False) -> dict[str, Any]:
    """A row with a call. flat: without `function` in the call."""
    messages = calling(arguments)
    if flat:
        [call] = messages[1]["tool_calls"]
        messages[1]["tool_calls"] = [{"id": call["id"]} | call["function"]]
    return {"messages": messages, "tools": TOOLS}
