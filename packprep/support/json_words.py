"""Words for what is wrong with JSON, the same in every sentence."""

import json
from typing import Any

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def json_kind(value: Any) -> str:
    """Name of the kind of a parsed value, or of a value that JSON cannot hold."""
    other = f"a value of type {type(value).__name__}"
    return next((words for kind, words in _KINDS.items() if isinstance(value, kind)), other)


def json_fault(error: ValueError | RecursionError) -> str:
    """Reason why `json.loads` failed, for a sentence such as "FILE is not JSON: REASON"."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} in line {error.lineno}, column {error.colno}"
    return "it has a number of too many digits"  # Python's limit, 4,300
