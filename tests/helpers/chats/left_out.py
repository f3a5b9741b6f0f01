"""Text of messages that a template leaves out."""

from typing import Any


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
