"""Columns of rows and keys of messages whose meaning is certain, and what a build does with them.

A column that an option names (to read, group or carry it) is none of these. Any other column or key
that is not read is named, like those that the table says are; an empty value needs no word.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Where = Literal["conversations", "instruction", "completion", "messages", "ids"]
"""Kinds of rows: conversations of any form; a prompt that is called `instruction`; a prompt and a
completion; the messages of conversations, which have keys; and token ids."""

Treatment = Literal["read", "refused", "named"]

INSTRUCTION = "instruction"
UNREAD = "\0unread"
"""Column of rows that lists what nothing reads; see sources/reading.py."""


@dataclass(frozen=True)
class Known:
    """What a build does with columns or keys of these names.

    words: of a page, what they become, or why rows with them are refused and what to do.
    """

    where: Where
    names: tuple[str, ...]
    treatment: Treatment
    words: str


SWITCHES = ("train", "weight", "loss", "loss_mask", "trainable", "training")
PICTURES = ("image", "images", "video", "videos", "audio", "audios")

KNOWN_COLUMNS = (
    Known("conversations", ("system",), "read", "the first message, with the role `system`"),
    Known("conversations", ("tools",), "read", "tools for the template"),
    Known("conversations", ("chat_template_kwargs",), "read", "variables of the template"),
    Known(
        "instruction", ("input",), "read", "text after the instruction, behind a line break (`\\n`)"
    ),
    Known(
        "instruction",
        ("history",),
        "read",
        "a list of `[question, answer]`: earlier turns, whose answers are not trained",
    ),
    Known(
        "conversations",
        ("loss_mask",),
        "refused",
        'what it counts is not known; write `"train": false` into messages',
    ),
    Known(
        "completion",
        ("label",),
        "refused",
        "where it is false or 0: the completion is a bad answer; keep the rows of good ones",
    ),
    Known("conversations", ("kto_tag",), "refused", "where it is false or 0, as `label`"),
    Known(
        "conversations",
        PICTURES,
        "refused",
        "where a text says their place, such as `<image>`: they have no tokens; else named",
    ),
    Known(
        "conversations",
        ("context", "functions", "history", "input"),
        "named",
        "they have no one meaning",
    ),
    Known(
        "messages",
        (
            *("role", "content", "name", "tool_calls", "tool_call_id"),
            *("reasoning_content", "reasoning", "thinking"),
        ),
        "read",
        "given to the template; text that it does not write is counted as left out",
    ),
    Known("messages", SWITCHES, "read", "false or 0: this answer is not trained"),
    Known(
        "messages",
        ("train_detail", "training_detail"),
        "refused",
        "spans of characters are not read; write [pieces](renderers.md)",
    ),
    Known(
        "messages",
        ("function_call", "reasoning_details", "thinking_blocks", "thought", "tools"),
        "named",
        "and any other key, unless the template asks for it or a renderer gets it",
    ),
    Known(
        "ids",
        ("attention_mask",),
        "read",
        "0 at the ends of a row is padding, which is no part of the document; 0 between is refused",
    ),
    Known(
        "ids",
        ("labels", "completion_mask", "assistant_masks", "loss_mask"),
        "refused",
        "where `--labels-column` names none: every token would be trained; name it, or `--carry` "
        "it; else named",
    ),
)


def known(where: Iterable[Where], treatment: Treatment | None = None) -> tuple[str, ...]:
    """Names of the table for these kinds of rows, each once.

    treatment: of the names, if it is given.
    """
    names = (
        name
        for row in KNOWN_COLUMNS
        if row.where in where and treatment in (None, row.treatment)
        for name in row.names
    )
    return tuple(dict.fromkeys(names))


def not_read(columns: Iterable[str], keys: Iterable[tuple[str, int]]) -> str:
    """The line about columns and keys that a build does not read; empty if it reads all.

    keys: each with the number of messages that have it. Example: (["id", "url"], [("thought", 2)])
    -> "not read: columns id, url; key thought of 2 messages"
    """
    counted = [f"{key} of {count:,} message{'s' * (count != 1)}" for key, count in keys]
    parts = [_listed("column", [*columns]), _listed("key", counted)]
    return f"not read: {'; '.join(filter(None, parts))}" if any(parts) else ""


_SHOWN = 12


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{what}{'s' * (len(names) > 1)} {', '.join(names[:_SHOWN])}{more}" if names else ""


def beside_ids(ids: str, name: str) -> str:
    """The column of this meaning beside a column of ids.

    Example: ("chosen_input_ids", "labels") -> "chosen_labels"; ("ids", "labels") -> "labels"
    """
    return ids.replace("input_ids", name) if "input_ids" in ids else name


def markdown_table(where: Iterable[Where]) -> str:
    """The table of these kinds of rows in Markdown, for a page."""
    lines = ["| beside | columns or keys | | what that means |", "|---|---|---|---|"]
    for row in KNOWN_COLUMNS:
        if row.where in where:
            names = ", ".join(f"`{name}`" for name in row.names)
            lines.append(f"| {_PLACES[row.where]} | {names} | {row.treatment} | {row.words} |")
    return "\n".join(lines) + "\n"


_PLACES: dict[Where, str] = {
    "conversations": "a conversation",
    "instruction": f"a prompt column `{INSTRUCTION}`",
    "completion": "a prompt and a completion",
    "messages": "a message (its keys)",
    "ids": "token ids",
}
