"""Chat templates: messages to text exactly as transformers renders them.

They run in the bounded sandbox of `packprep.chat.sandbox`.

The template comes from a file given by hand, or from beside the tokenizer (chat_template.jinja, or
the key of tokenizer_config.json). It writes every special token itself: no BOS or EOS is added to
what it gives.

Two things of a rendering that transformers leaves open are fixed, because the same input must give
the same bytes: the clock (`strftime_now` exists only with a date given; templates have a default of
their own for a world without one), and which template (`tool_use` for rows with tools where there
are several, `default` otherwise).

Options of a build: chat_template (a file), template_date (YYYY-MM-DD), template_variables
(enable_thinking: false).
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from packprep.chat.conversations import Conversation
from packprep.chat.marks import GENERATED, MARKS
from packprep.chat.sandbox import Sandbox
from packprep.engines.tokenizer import Tokenizer
from packprep.support.errors import ConfigError, InputError


class RenderError(InputError):
    """The template cannot render a conversation: it raised, or went over a bound.

    The row is the caller's to name.
    """


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template ready to render.

    variables: what it sees beside the messages, special tokens among them.

    notes are sentences for the user.
    """

    sources: Mapping[str, str] = field(repr=False)  # "default" and perhaps "tool_use"
    variables: Mapping[str, Any]
    date: datetime.date | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Facts that enter the identity of a build."""
        digests = {
            name: hashlib.sha256(source.encode()).hexdigest()
            for name, source in sorted(self.sources.items())
        }
        return {
            "sha256": digests,
            "variables": dict(self.variables),
            "date": self.date and self.date.isoformat(),
        }

    def record(self) -> dict[str, Any]:
        """All of it as plain values, for `of`."""
        return asdict(self) | {"date": self.date and self.date.isoformat()}

    @staticmethod
    def from_dict(record: dict[str, Any]) -> ChatTemplate:
        """The template of a record."""
        date = record["date"] and datetime.date.fromisoformat(record["date"])
        return ChatTemplate(**record | {"date": date, "notes": tuple(record["notes"])})

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = False,
        marked: bool = False,
    ) -> str:
        """The text of a conversation.

        marked: with GENERATED marks around what stands in {% generation %} blocks.

        Raises RenderError with the template's own reason.
        """
        sandbox, template, variables = self._compiled[self._which(conversation)]
        given = (
            variables
            | dict(conversation.variables)
            | {
                "messages": conversation.messages,
                "tools": conversation.tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        try:
            return sandbox.render(template, given, marked=marked)
        except TemplateError as error:
            raise RenderError(f"the chat template cannot render it: {error}") from None

    def has_generation_blocks(self, conversation: Conversation) -> bool:
        """True if the template itself marks what the assistant writes."""
        return self._compiled[self._which(conversation)][0].generates

    def _which(self, conversation: Conversation) -> str:
        return (
            "tool_use"
            if conversation.tools is not None and "tool_use" in self.sources
            else "default"
        )

    @cached_property
    def _compiled(self) -> dict[str, tuple[Sandbox, Template, dict[str, Any]]]:
        compiled = {}
        for name, source in self.sources.items():
            sandbox = Sandbox(GENERATED)
            if self.date is not None:
                sandbox.globals["strftime_now"] = self.date.strftime
            compiled[name] = sandbox, sandbox.from_string(source), dict(self.variables)
        return compiled


def load_chat_template(
    tokenizer: Tokenizer,
    file: str | Path | None = None,
    *,
    date: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> ChatTemplate:
    """The template in `file`, else the tokenizer's own.

    date: YYYY-MM-DD, what `strftime_now` tells. variables: for the template, over the special
    tokens of the tokenizer. Raises ConfigError where there is no template, it does not parse, or it
    needs a date and none is given.
    """
    sources = template_file(Path(file)) if file is not None else dict(tokenizer.chat_templates)
    where = str(file) if file is not None else "the tokenizer's chat template"
    if "default" not in sources:
        known = f"; it has {', '.join(sorted(sources))} and no default" if sources else ""
        raise ConfigError(
            f"the tokenizer has no chat template{known}; give one with --chat-template FILE"
        )
    try:
        day = datetime.date.fromisoformat(date) if date is not None else None
    except ValueError:
        raise ConfigError(f"template_date is {date!r}, expected a day such as 2026-01-31") from None
    notes = []
    for source in sources.values():
        try:
            asked = meta.find_undeclared_variables(Sandbox(GENERATED).parse(source))
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"{where} does not parse: line {error.lineno}: {error.message}"
            ) from None
        if found := MARKS.search(source):
            raise ConfigError(
                f"{where} holds U+{ord(found[0]):04X}, which is no character; take it out"
            )
        if "strftime_now" in asked and day is None:
            notes.append(
                f"{where} asks for today's date, and a build has no clock: it uses the date "
                "written in it "
                "(another one: --template-date YYYY-MM-DD)"
            )
    return ChatTemplate(
        sources=sources,
        variables={**tokenizer.named_tokens, **(variables or {})},
        date=day,
        notes=tuple(dict.fromkeys(notes)),
    )


def template_file(path: Path) -> dict[str, str]:
    """The one template of a file, as the default. ConfigError where it cannot be read."""
    try:
        return {"default": path.read_text("utf-8")}
    except FileNotFoundError:
        raise ConfigError(
            f"no chat template {path}; check the path given with --chat-template"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; expected a Jinja template") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
