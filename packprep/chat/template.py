"""Chat templates: messages to text exactly as transformers renders them.

The template is a file that the user names, or the tokenizer's own. It runs in the bounded sandbox
of sandbox.py and writes every special token itself: no BOS or EOS is added to its text.

Transformers leaves two things open that are fixed here, because equal inputs must give equal bytes.
The clock: `strftime_now` exists only where the variable of that name is a day, and templates have
their own default without it. And which template: where there are several, `tool_use` for rows with
tools, `default` for all others.
"""

import datetime
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from ..support.errors import ConfigError, brief
from .sandbox import Sandbox
from .types import BadRowError, Conversation, Message, RenderError, parsed_json

CLOCK = "strftime_now"
"""Function of a template, and variable of a build, for the day."""
_DAY = f"give a day by template_variables: {{{CLOCK}: 2026-01-31}}"

_ARGUMENTS = "the arguments of a tool call"
_PROBE = {"key": "probed"}  # arguments of a call
_PROPERTIES = {"key": {"type": "string", "description": "Key."}}
_PARAMETERS = {"type": "object", "properties": _PROPERTIES, "required": ["key"]}
_TOOL = {"name": "probe", "description": "Probe.", "parameters": _PARAMETERS}


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template ready to render.

    sources: by name, "default" and perhaps "tool_use". variables: what it sees beside the messages,
    special tokens included.
    """

    sources: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """All that decides its text, as JSON."""
        sources = sorted(self.sources.items())
        digests = {name: hashlib.sha256(source.encode()).hexdigest() for name, source in sources}
        return {"sha256": digests, "variables": dict(self.variables)}

    @property
    def eos(self) -> str | None:
        """The token that the template knows as EOS, if any."""
        token = self.variables.get("eos_token")
        return token if isinstance(token, str) else None

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = False,
        marked: bool = False,
    ) -> str:
        """The text of a conversation.

        marked: with GENERATED marks around the text of {% generation %} blocks. Raises RenderError
        with the template's own reason.
        """
        sandbox, template = _compiled(self._source(conversation))
        values = {**self.variables, **conversation.variables, "documents": None}
        values |= {"messages": conversation.messages, "tools": conversation.tools}
        values["add_generation_prompt"] = add_generation_prompt
        if CLOCK in values:
            values[CLOCK] = _clock(values[CLOCK])
        try:
            return sandbox.render(template, values, marked=marked)
        except TemplateError as error:
            reason = str(error)
            if reason == f"'{CLOCK}' is undefined":
                reason = f"it asks for today's date; {_DAY}"
            raise RenderError(f"the chat template cannot render it: {reason}") from None

    def has_generation_blocks(self, conversation: Conversation) -> bool:
        """True if the template itself marks what the assistant writes."""
        return _compiled(self._source(conversation))[0].generates

    def names(self, conversation: Conversation, key: str) -> bool:
        """True if the template has this key of a message in its source."""
        return key in self._source(conversation)

    def with_call_arguments(self, conversation: Conversation) -> Conversation:
        """The conversation with arguments of tool calls in the form that the template takes.

        OpenAI's rows have arguments as JSON text. Most templates take objects: they write them as
        JSON, which would quote the text, or go through their keys. Raises RenderError for text that
        is no JSON object, where the template takes only objects.
        """
        if not any("tool_calls" in message for message in conversation.messages):
            return conversation
        change = self._changes_of_arguments[self._source(conversation)]
        return with_arguments(conversation, change) if change is not None else conversation

    def _source(self, conversation: Conversation) -> str:
        name = "default" if conversation.tools is None else "tool_use"
        return self.sources.get(name, self.sources["default"])

    @cached_property
    def _changes_of_arguments(self) -> dict[str, Callable[[Any], Any] | None]:
        """By source: what arguments of tool calls are changed by; None where both forms do."""
        return {
            source: _change_of_arguments(replace(self, sources={"default": source}))
            for source in self.sources.values()
        }


@lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[Sandbox, Template]:
    sandbox = Sandbox()
    return sandbox, sandbox.from_string(source)


def _clock(day: object) -> Callable[[str], str]:
    """`strftime_now` on a day."""
    try:
        return datetime.date.fromisoformat(str(day)).strftime
    except ValueError:
        raise RenderError(f"{CLOCK} is {brief(day)}, expected a day such as 2026-01-31") from None


def _change_of_arguments(template: ChatTemplate) -> Callable[[Any], Any] | None:
    """Change of arguments of tool calls to the form that a template takes; None if it needs none.

    It is found by rendering a call twice. Text is right where it is written as the object is, or
    where the template cannot write an object: it fails, or writes it as Python does. Elsewhere the
    object is right, such as where the template fails with text, leaves it out, quotes it, or puts
    it between braces of its own.
    """
    for tools in ([{"type": "function", "function": _TOOL}], None):
        text, written = (_probed(template, each, tools) for each in (json.dumps(_PROBE), _PROBE))
        if text == written:
            if text is not None:
                return None
        elif written is None or (text and repr(_PROBE).replace(" ", "") in written):
            return _as_text
        else:
            return as_object
    return None  # it writes no calls


def _probed(template: ChatTemplate, arguments: object, tools: list[Any] | None) -> str | None:
    """A conversation with a call, rendered, without its white space; None if the call is not there.

    The call has its name and arguments twice: some templates look for them in `function`, others
    in the call itself.
    """
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "callprobe", "type": "function", "function": function} | function
    messages: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    with suppress(RenderError):
        text = "".join(template.render(Conversation(messages, tools)).split())
        return text if _PROBE["key"] in text else None
    return None


def with_arguments(conversation: Conversation, change: Callable[[Any], Any]) -> Conversation:
    """The conversation with each value of `arguments` of its calls changed."""

    def changed(call: Any) -> Any:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or "arguments" not in function:
            return call
        function = function | {"arguments": change(function["arguments"])}
        return call | {"function": function} if "function" in call else function

    messages: list[Message] = []
    for message in conversation.messages:
        if "tool_calls" in message:
            message = message | {"tool_calls": [*map(changed, message["tool_calls"])]}
        messages.append(message)
    return replace(conversation, messages=messages)


def as_object(arguments: Any) -> Any:
    """Arguments that are JSON text of an object as that object; blank text is one without keys.

    Raises RenderError for other text.
    """
    if not isinstance(arguments, str):
        return arguments
    fault = f"{_ARGUMENTS} are {brief(arguments)}"
    try:
        value = parsed_json(arguments, _ARGUMENTS) if arguments.strip() else {}
        if isinstance(value, dict):
            return value
    except BadRowError as error:
        fault = str(error)
    raise RenderError(f"{fault}; the chat template takes an object, or JSON text of one")


def _as_text(arguments: Any) -> Any:
    """Arguments that are an object as JSON text, as `tojson` writes it."""
    if not isinstance(arguments, dict):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, RecursionError) as error:  # a date of a Parquet file
        raise RenderError(f"{_ARGUMENTS} are no JSON: {error}") from None


def load_template(
    file: str | None,
    own: Mapping[str, str],
    variables: Mapping[str, Any],
    named_tokens: Collection[tuple[str, str]],
) -> tuple[ChatTemplate, list[str]]:
    """The template in `file`, else the tokenizer's own, and notes about it for the user.

    own: by name. variables: for the template; they replace `named_tokens` of the tokenizer. Raises
    ConfigError where there is no template, or it does not parse.
    """
    where = file if file is not None else "the tokenizer's chat template"
    try:
        sources = dict(own) if file is None else {"default": read_file(file).decode()}
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8; expected a Jinja template") from None
    if "default" not in sources:
        known = f" named default, only {', '.join(sorted(sources))}" if sources else ""
        raise ConfigError(
            f"the tokenizer has no chat template{known}; give one with --chat-template FILE"
        )
    for source in sources.values():
        _check(source, where)
    template = ChatTemplate(sources=sources, variables={**dict(named_tokens), **variables})
    asks = any(CLOCK in source for source in sources.values()) and CLOCK not in variables
    note = f"{where} asks for today's date, and a build has none; {_DAY}, or it writes its own"
    return template, [note] * asks


def read_file(path: str) -> bytes:
    """Content of the file of a template. Raises ConfigError if there is none."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"there is no chat template {path}: {error.strerror}; check the path"
        ) from None


def _check(source: str, where: str) -> None:
    """Raise ConfigError for a template that does not compile."""
    try:
        _compiled(source)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{where} does not parse: line {error.lineno}: {error.message}") from None
    except (SyntaxError, RecursionError, MemoryError) as error:
        # Jinja2 writes Python, which may not compile: a break outside of a loop, deep nesting.
        reason = error.msg if isinstance(error, SyntaxError) else "it nests too deeply"
        raise ConfigError(f"{where} does not compile: {reason}; change the template") from None
