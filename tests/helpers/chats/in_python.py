"""Templates in Python, in the manner of DeepSeek V3.2 and of Kimi K2."""

# mypy: allow-untyped-defs, allow-untyped-calls

import json


def piece(text, train=False):
    return {"text": text, "train": train}


def last_question(messages):
    return max((n for n, each in enumerate(messages) if each["role"] == "user"), default=-1)


def deepseek(messages, tools, thinking=True):
    """The prompt opens the thought; thoughts before the last question are dropped."""
    pieces, last = [piece("<｜begin▁of▁sentence｜>")], last_question(messages)
    for number, message in enumerate(messages):
        role, text = message["role"], message.get("content", "")
        thinks = thinking and number >= last
        opened = "<think>" if thinks else "</think>"
        if role == "system":
            declared = "".join("\n" + json.dumps(each, ensure_ascii=False) for each in tools or [])
            pieces.append(piece(text + ("\n\n## Tools\n" + declared if tools else "")))
        elif role == "user":
            pieces.append(piece(f"<｜User｜>{text}<｜Assistant｜>{opened}"))
        elif role == "tool":
            pieces.append(piece(f"\n\n<result>{text}</result>\n\n{opened}"))
        else:
            thought = message.get("reasoning_content", "") + "</think>" if thinks else ""
            calls = "".join(dsml(call["function"]) for call in message.get("tool_calls", []))
            text = f"{thought}{text}{calls}<｜end▁of▁sentence｜>"
            pieces.append(piece(text, message.get("train", True)))
    return pieces


def dsml(call):
    values = call["arguments"]
    values = json.loads(values) if isinstance(values, str) else values
    lines = [
        f'\n<｜DSML｜parameter name="{name}">{json.dumps(value, ensure_ascii=False)}'
        for name, value in values.items()
    ]
    return f'\n\n<｜DSML｜invoke name="{call["name"]}">{"".join(lines)}\n</｜DSML｜invoke>'


def kimi(messages, tools):
    """Every message has a name; thoughts before the last question are empty."""
    pieces, last = [], last_question(messages)
    if tools:
        declared = json.dumps(tools, ensure_ascii=False)
        pieces.append(piece(f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|>"))
    for number, message in enumerate(messages):
        role, text = message["role"], message.get("content", "")
        if role == "assistant":
            thought = message.get("reasoning_content", "") if number > last else ""
            calls = "".join(
                f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
                f"{call['function']['arguments']}<|tool_call_end|>"
                for call in message.get("tool_calls", [])
            )
            pieces.append(piece("<|im_assistant|>assistant<|im_middle|>"))
            text = f"<think>{thought}</think>{text}{calls}<|im_end|>"
            pieces.append(piece(text, message.get("train", True)))
        elif role == "tool":
            head = f"<|im_system|>{message.get('name', role)}<|im_middle|>"
            pieces.append(piece(f"{head}## Return of {message['tool_call_id']}\n{text}<|im_end|>"))
        else:
            head = "<|im_user|>" if role == "user" else "<|im_system|>"
            pieces.append(piece(f"{head}{role}<|im_middle|>{text}<|im_end|>"))
    return pieces
