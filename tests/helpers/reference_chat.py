"""Trained tokens, computed in a slow and simple way.

Token by token, or by a template that knows its parts.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packprep.chat.types import Message


def trained_by_tokens(ids: Sequence[int], opening: Sequence[int], closing: int) -> list[bool]:
    """Mask of each run of tokens after `opening`, up to and including `closing`.

    Example: ids=[7, 1, 5, 9, 7], opening=[7, 1], closing=9 -> [False, False, True, True, False]
    """
    mask = [False] * len(ids)
    inside = False
    for place in range(len(ids)):
        if inside:
            mask[place] = True
            inside = ids[place] != closing
        elif list(ids[place + 1 - len(opening) : place + 1]) == list(opening) and place + 1 >= len(
            opening
        ):
            inside = True
    return mask


def special_ids_of_text(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids of special tokens, in order."""
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return [id_ for id_ in ids if id_ in special]


BETWEEN = " not trained "


@dataclass(frozen=True)
class PartsTemplate:
    """A chat template made of parts, which says itself what is trained.

    header: around the role. end: behind each text. final: behind the last message, unless a
    generation prompt is asked for. prompt: asked, always or never. trims: roles whose texts are
    stripped. blocks: {% generation %} blocks for a turn, 0 to 2; between two is BETWEEN.
    """

    bos: str
    preamble: str
    header: tuple[str, str]
    end: str
    final: str
    prompt: str
    trims: frozenset[str]
    blocks: int

    def source(self) -> str:
        """The template for Jinja."""
        opening, behind = map(json.dumps, self.header)
        text = f"{{{{ m.content | trim if m.role in {sorted(self.trims)} else m.content }}}}"
        end = f"{{{{ {json.dumps(self.end)} }}}}"
        begin, stop = ("{% generation %}", "{% endgeneration %}") if self.blocks else ("", "")
        between = f"{stop}{BETWEEN}{begin}" if self.blocks == 2 else ""
        asked = f"{{{{ {opening} + 'assistant' + {behind} }}}}" if self._has_header else ""
        final = f"{{{{ {json.dumps(self.final)} }}}}"
        tail = {
            "asked": f"{{% if add_generation_prompt %}}{asked}{{% else %}}{final}{{% endif %}}",
            "always": asked,
            "never": "",
        }[self.prompt]
        header = f"{{{{ {opening} + m.role + {behind} }}}}" if self._has_header else ""
        return (
            f"{{{{ {json.dumps(self.bos + self.preamble)} }}}}{{% for m in messages %}}{header}"
            f"{{% if m.role == 'assistant' %}}{begin}{text}{between}{end}{stop}"
            f"{{% else %}}{text}{end}{{% endif %}}{{% endfor %}}{tail}"
        )

    @property
    def _has_header(self) -> bool:
        return self.header != ("", "")

    def rendered(
        self, messages: list[Message], special: re.Pattern[str]
    ) -> tuple[str, dict[int, list[tuple[int, int]]]]:
        """The text, and the trained spans of each message of the assistant.

        special: matches special tokens. A turn without blocks ends with the last one of `end`.
        """
        text, spans = self.bos + self.preamble, {}
        closed = max((match.end() for match in special.finditer(self.end)), default=len(self.end))
        for number, message in enumerate(messages):
            begin = len(text)
            if self._has_header:
                text += message["role"].join(self.header)
            first = len(text)
            content = str(message["content"])
            text += content.strip() if message["role"] in self.trims else content
            middle = len(text)
            if self.blocks == 2 and message["role"] == "assistant":
                text += BETWEEN
            second = len(text)
            text += self.end
            if message["role"] == "assistant":
                bounds = {
                    0: [(begin if self.prompt == "never" else first, middle + closed)],
                    1: [(first, len(text))],
                    2: [(first, middle), (second, len(text))],
                }[self.blocks]
                spans[number] = [(start, stop) for start, stop in bounds if start < stop]
        if self.prompt == "always" and self._has_header:
            text += "assistant".join(self.header)
        return text + self.final * (self.prompt == "asked"), spans
