"""Templates in Python, and in Jinja of the same form."""

from typing import Any

LAST = """{%- set seen = namespace(last=-1) %}
{%- for message in messages if message.role == 'user' %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}
{%- endfor %}"""
TEMPLATES = {
    "deepseek": LAST
    + """{{- '<｜begin▁of▁sentence｜>' }}
{%- for message in messages %}
{%- set thinks = thinking is not defined and loop.index0 >= seen.last %}
{%- set opened = '<think>' if thinks else '</think>' %}
{%- if message.role == 'system' %}
{{- message.content }}
{%- if tools %}{{- '\\n\\n## Tools\\n' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor %}{% endif %}
{%- elif message.role == 'user' %}
{{- '<｜User｜>' + message.content + '<｜Assistant｜>' + opened }}
{%- elif message.role == 'tool' %}
{{- '\\n\\n<result>' + message.content + '</result>\\n\\n' + opened }}
{%- else %}{% generation %}
{%- if thinks %}{{- (message.reasoning_content or '') + '</think>' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\\n\\n<｜DSML｜invoke name="' + call.function.name + '">' }}
{%- for name, value in call.function.arguments.items() %}
{{- '\\n<｜DSML｜parameter name="' + name + '">' + value | tojson }}
{%- endfor %}
{{- '\\n</｜DSML｜invoke>' }}
{%- endfor %}
{{- '<｜end▁of▁sentence｜>' }}{% endgeneration %}{% endif %}
{%- endfor %}""",
    "kimi": LAST
    + """
{%- if tools %}
{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}{% generation %}{{- '<think>' }}
{%- if loop.index0 > seen.last %}{{- message.reasoning_content or '' }}{% endif %}
{{- '</think>' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor %}
{{- '<|im_end|>' }}{% endgeneration %}
{%- elif message.role == 'tool' %}
{{- '<|im_system|>' + (message.name or 'tool') + '<|im_middle|>## Return of ' }}
{{- message.tool_call_id + '\\n' + message.content + '<|im_end|>' }}
{%- else %}
{{- ('<|im_user|>' if message.role == 'user' else '<|im_system|>') + message.role }}
{{- '<|im_middle|>' + message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}""",
}
SPECIALS = [
    *(f"<｜{name}｜>" for name in ("User", "Assistant", "begin▁of▁sentence", "end▁of▁sentence")),
    *(f"<|im_{name}|>" for name in ("system", "user", "assistant", "middle", "end")),
    *(f"<|tool_call_{name}|>" for name in ("begin", "argument_begin", "end")),
    *("｜DSML｜", "<think>", "</think>"),
]
CALL = {"name": "weather", "arguments": '{"city": "Größe", "days": 3}'}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ROWS: list[dict[str, Any]] = [
    {"messages": [said("user", "The cat?"), said("assistant", "sat", reasoning_content="on the")]},
    {
        "messages": [
            said("system", "Be short."),
            said("user", "What is <think> or <｜User｜> and <|im_end|>?"),  # text, no special token
            said("assistant", "no </think> more", reasoning_content="dropped"),
            said("user", "<|im_"),
            said("assistant", "", tool_calls=[{"id": "w:0", "type": "function", "function": CALL}]),
            said("tool", "-8 < 0", tool_call_id="w:0", name="weather"),
            said("assistant", "cold", reasoning_content="below zero"),
        ],
        "tools": TOOLS,
    },
    {"messages": [said("user", "a"), said("assistant", "b", weight=0), said("user", "c")]},
]
BAD = """
def raises(messages, tools):
    return messages[0]["missing"]

def ids(messages, tools):
    return [{"token_ids": [10**6], "train": True}]

def alone(messages):
    return []

import sys
def ends(messages, tools):
    sys.exit("over")
"""
