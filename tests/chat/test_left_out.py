"""Text of messages that is in no token is counted under its key, with advice by its cause."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, write_jsonl

AUTO = "--turns auto"


def template(*written: str, roles: str = "m.role") -> str:
    """A template of roles and content, which writes something more into each message."""
    return (
        f"{{% for m in messages %}}{{% if {roles} %}}{{{{ '<s>' + m.role + '\n' }}}}"
        + "".join(written)
        + "{{ m.content }}{{ '</s>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
    )


def user(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **keys}


def assistant(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


def chat(**keys: Any) -> list[dict[str, Any]]:
    """Two turns; both answers have these keys."""
    return [user("q one"), assistant("a one", **keys), user("q two"), assistant("a two", **keys)]


def calls(**keys: Any) -> list[dict[str, Any]]:
    """A call of a tool, its result and an answer. keys: of the result."""
    function = {"name": "sum_of", "arguments": {"numbers": "1 and 2"}}
    call = {"id": "call-1", "type": "function", "function": function}
    result = {"role": "tool", "content": "3", "tool_call_id": "call-1", **keys}
    return [user("Add."), assistant("", tool_calls=[call]), result, assistant("It is 3.")]


PLAIN = template()
THOUGHT = "first I look, then I leap"  # 25 characters
LAST = template(
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}{% endif %}"
)
INSIDE = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' }}{% if loop.last %}{{ m.content }}{% else %}"
    "{{ m.content.split('</think>')[-1] }}{% endif %}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
WRITES_CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
BLOCKS = [{"type": "thinking", "thinking": THOUGHT, "signature": "c2lnbmVk"}]

CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, int]]] = {
    "thoughts of all turns": (PLAIN, chat(reasoning_content=THOUGHT), {"reasoning": 50}),
    "thoughts under a name of ours": (PLAIN, chat(reasoning=THOUGHT), {"reasoning": 50}),
    "a thought that is read as reasoning": (
        template("{{ m.reasoning or '' }}"), chat(reasoning=THOUGHT), {}),
    "two different thoughts": (
        template("{{ m.reasoning_content or '' }}"),
        chat(reasoning_content="on the one hand", thinking="on the other hand"),
        {"thinking": 34}),
    "a key of somebody": (PLAIN, chat(thought=THOUGHT), {"thought": 50}),
    "blocks of a thought": (PLAIN, chat(thinking_blocks=BLOCKS), {"thinking_blocks": 66}),
    "details of a thought": (
        PLAIN, chat(reasoning_details=[{"type": "reasoning.text", "text": THOUGHT, "id": "r1"}]),
        {"reasoning_details": 50}),
    "a call of the old kind": (
        PLAIN, chat(function_call={"name": "f", "arguments": '{"a": 1}'}), {"function_call": 18}),
    "where a message is from": (
        PLAIN,
        [user("q", hashed_ip="00ff" * 8, header={"agent": "Moz", "languages": ["en", "de"]}),
         assistant("a", timestamp=1.5, toxic=False, refusal=None, note=" ")],
        {"hashed_ip": 32, "header": 7}),
    "developer": (
        template(roles="m.role != 'developer'"),
        [{"role": "developer", "content": "Be short."}, *chat()], {"content": 9}),
    "the name of a user": (PLAIN, [user("q", name="margaret"), assistant("a")], {"name": 8}),
    "the name of a tool": (template(WRITES_CALLS), calls(name="sum_of"), {"tool_name": 6}),
    "a name that is written": (
        template("{{ m.name or '' }}", WRITES_CALLS), calls(name="sum_of"), {}),
    "a key that only the last turn has": (
        template("{% if loop.last %}{{ m.thought }}{% endif %}"), chat(thought=THOUGHT),
        {"thought": 25}),
    "an earlier turn that is not to be trained": (
        LAST, [user("q"), assistant("a", reasoning_content=THOUGHT, train=False), *chat()],
        {"reasoning": 25}),
    "one key is compared, the other not read": (
        template("{% if m.channel == 'final' %}!{% endif %}"),
        chat(channel="final", thought=THOUGHT), {"thought": 50}),
    "content under another key too": (
        PLAIN, [user("a question of some words", text="a question of some words"),
                assistant("a", name="abc")], {"name": 3}),
    "all keys are written": (
        "{% for m in messages %}{{ '<s>' + (m | tojson) + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}<s>{% endif %}",
        chat(thought=THOUGHT, extra={"deep": ["text"]}), {}),
    "content beside calls": (
        "{% for m in messages %}{{ '<s>' + m.role + '\n' }}{% if m.tool_calls %}" + WRITES_CALLS +
        "{% else %}{{ m.content }}{% endif %}{{ '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}",
        [row | {"content": "Let me add them."} if "tool_calls" in row else row for row in calls()],
        {"content": 16}),
}  # fmt: skip
"""By name: a template, messages, and the characters that are left out by key; no turn helps."""

IN_TURNS: dict[str, tuple[str, list[dict[str, Any]], dict[str, int], int]] = {
    "reasoning of an earlier turn": (LAST, chat(reasoning_content=THOUGHT), {"reasoning": 25}, 25),
    "reasoning inside of content": (
        INSIDE, [*chat()[:1], assistant(f"<think>{THOUGHT}</think>yes"), *chat()[2:]],
        {"content": 40}, 40),
    "an earlier turn beside a call": (
        LAST.replace("<think>", WRITES_CALLS),
        [*chat(reasoning_content=THOUGHT)[:2], *calls()], {"reasoning": 25, "tool_calls": 13}, 25),
    "reasoning of an earlier turn, and a name": (
        LAST, [user("q", name="margaret"), *chat(reasoning_content=THOUGHT)[1:]],
        {"name": 8, "reasoning": 25}, 25),
}  # fmt: skip
"""The same, with the characters that --turns auto trains."""


def fields_of(output: Path) -> dict[str, int]:
    """Characters by key that report.json has."""
    report = json.loads((output / "report.json").read_text())
    return {key: size["characters"] for key, size in report["left_out"]["fields"].items()}


def left_out(folder: Path, source: str, messages: Any, *options: str) -> tuple[dict[str, int], str]:
    """Characters by key of a build of one row, and its sentence about them."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": source}
    tokenizer = save_tokenizer(folder / "tokenizer", config=config)
    rows = write_jsonl(folder / "rows.jsonl", [{"messages": messages}])
    out = folder / "-".join(["out", *options])
    line = ["--tokenizer", tokenizer, "--messages-column", "messages", "--max-length", "512"]
    result = done("build", rows, "-o", out, *line, "--engine", "hf", *options)
    fields = fields_of(out)
    said = [line for line in result.err.splitlines() if "leaves out" in line]
    assert len(said) == bool(fields), result.err
    return fields, "".join(said)


@pytest.mark.parametrize("case", CASES)
def test_text_under_any_key_is_counted_and_no_turn_is_named_that_would_not_help(
    tmp_path: Path, case: str
) -> None:
    source, messages, expected = CASES[case]
    fields, said = left_out(tmp_path, source, messages)
    assert fields == expected
    assert AUTO not in said


@pytest.mark.parametrize("case", IN_TURNS)
def test_turns_are_named_where_they_train_text_of_earlier_turns(tmp_path: Path, case: str) -> None:
    """The same build with --turns auto has less that is left out, by what was named."""
    source, messages, expected, helped = IN_TURNS[case]
    fields, said = left_out(tmp_path, source, messages)
    assert fields == expected
    assert AUTO in said
    rest = sum(expected.values()) - helped
    assert (f"for {helped} of them" in said) == (rest > 0), said
    split, _ = left_out(tmp_path, source, messages, "--turns", "auto")
    assert sum(split.values()) == rest


def test_many_keys_are_named_in_a_short_sentence(tmp_path: Path) -> None:
    keys = {f"key\n{number}": "text" for number in range(12)}
    fields, said = left_out(tmp_path, PLAIN, [user("q", **keys), assistant("a")])
    assert len(fields) == 12
    assert "48 characters of 'key\\n0', 'key\\n1'," in said
    assert "and 7 other keys in 1 documents, first at" in said
    assert "rows.jsonl row 0 message 0 ('key\\n0')" in said


def test_rows_without_a_template_count_all_but_content(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = save_tokenizer(tmp_path / "tokenizer", config=config)
    answer = assistant("four", reasoning_content=THOUGHT, note="checked", id="a1")
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "2 and 2?", "response": [answer]}])
    line = ["--tokenizer", tokenizer, "--prompt-column", "prompt", "--response-column", "response"]
    done("build", rows, "-o", tmp_path / "out", *line, "--max-length", "64", "--engine", "hf")
    assert fields_of(tmp_path / "out") == {"note": 7, "reasoning": 25}
