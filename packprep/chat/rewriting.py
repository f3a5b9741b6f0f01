"""Finds out if a chat template keeps earlier turns or rewrites them in later renderings.

A turn is kept if the rendering of the whole row has all text of its message that the rendering up
to the turn has. Text that no message holds may differ: Qwen3's template writes an empty thought in
the last turn only. Most rows share a form (see `forms`), whose history is found once.

A template is unstable for a row if the rendering up to a turn does not begin with the rendering of
the messages before it, with or without the generation prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from packprep.chat.conversations import Conversation
from packprep.chat.forms import FormKey
from packprep.chat.left_out import LeftOut
from packprep.chat.marks import unmark, with_texts
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turns import Rendered, as_mark


@dataclass(frozen=True)
class FormHistory:
    """History of all rows of a form.

    rewritten: message and field of texts that the whole rendering lacks but that of their turn has.
    differs: True if the rendering up to a turn is not the beginning of the whole one.
    """

    rewritten: frozenset[tuple[int, str]]
    differs: bool

    def rewrites(self, whole: Rendered) -> bool:
        """True if a turn of a row of the form loses text."""
        return any((part.message, part.field) in self.rewritten for part in whole.left_out)


def form_history(template: ChatTemplate, key: FormKey, turns: Sequence[int]) -> FormHistory:
    """History of a form. turns: messages of the assistant. Raises RenderError if it is unstable."""
    blank, texts = with_texts(key.conversation, as_mark)
    rewritten, differs = set[tuple[int, str]](), False
    text = template.render(blank)
    written = {number for _, number in unmark(text).marks}
    for turn in turns:
        until = template.render(replace(blank, messages=blank.messages[: turn + 1]))
        check_stable(template, blank, turn, until)
        differs |= not text.startswith(until)
        rewritten |= {
            (turn, texts[number].field)
            for _, number in unmark(until).marks
            if number >= 0 and texts[number].message == turn and number not in written
        }
    return FormHistory(frozenset(rewritten), differs)


def row_history(
    template: ChatTemplate,
    conversation: Conversation,
    whole: Rendered,
    documents: Mapping[int, Rendered],
) -> tuple[bool, bool]:
    """History of a row that fills no form: True if it loses text, True if a rendering differs.

    whole: the rendering of all messages. documents: those up to each turn. Raises RenderError if it
    is unstable.
    """
    rewrites = differs = False
    for turn, document in documents.items():
        check_stable(template, conversation, turn, document.text)
        if not whole.text.startswith(document.text):
            differs = True
            later, then = (_missing(each.left_out, turn) for each in (whole, document))
            rewrites |= any(later[field] > then[field] for field in later)
    return rewrites, differs


def check_stable(template: ChatTemplate, conversation: Conversation, turn: int, until: str) -> None:
    """Raise RenderError unless the rendering `until` a turn continues the messages before it."""
    if turn == 0:
        return
    before = replace(conversation, messages=conversation.messages[:turn])
    for prompt in (True, False):
        with suppress(RenderError):
            if until.startswith(template.render(before, add_generation_prompt=prompt)):
                return
    raise RenderError(
        f"the template renders the messages before message {turn} differently once it follows "
        "them, so no document shows what a model is prompted with; choose --turns row or each, or "
        "another template (--chat-template)"
    )


def _missing(left_out: Sequence[LeftOut], turn: int) -> Counter[str]:
    """Characters of each field of a message that are left out, without white space."""
    missing: Counter[str] = Counter()
    for part in left_out:
        if part.message == turn:
            missing[part.field] += len("".join(part.text.split()))
    return missing
