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
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from ..support.errors import ConfigError, brief
from .json_values import parsed_json
from .marks import GENERATED, MARKS
from .sandbox import Sandbox
from .types import BadRowError, Conversation, Message, RenderError

_LONGEST = 1_000_000  # characters of a template; those of large models have 20,000
_CLOCK = "strftime_now"
_DAY = f"give a day by template_variables: {{{_CLOCK}: 2026-01-31}}"

_ArgumentForm = Literal["object", "text", "either"]
_ARGUMENTS = "the arguments of a tool call"
_PROBE = {"key": "probed"}  # arguments of a call
_PROBED_TOOL = {
    "name": "probe",
    "description": "Probe.",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string", "description": "Key."}},
        "required": ["key"],
    },
}


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
        digests = {
            name: hashlib.sha256(source.encode()).hexdigest()
            for name, source in sorted(self.sources.items())
        }
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
        sandbox, template = self._compiled[self._which(conversation)]
        values = {
            **self.variables,
            **conversation.variables,
            "messages": conversation.messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if _CLOCK in values:
            values[_CLOCK] = _clock(values[_CLOCK])
        try:
            return sandbox.render(template, values, marked=marked)
        except TemplateError as error:
            reason = str(error)
            if reason == f"'{_CLOCK}' is undefined":
                reason = f"it asks for today's date; {_DAY}"
            raise RenderError(f"the chat template cannot render it: {reason}") from None

    def has_generation_blocks(self, conversation: Conversation) -> bool:
        """True if the template itself marks what the assistant writes."""
        return self._compiled[self._which(conversation)][0].generates

    def names(self, conversation: Conversation, key: str) -> bool:
        """True if the template has this key of a message in its source."""
        return key in self.sources[self._which(conversation)]

    def with_call_arguments(self, conversation: Conversation) -> Conversation:
        """The conversation with arguments of tool calls in the form that the template takes.

        OpenAI's rows have arguments as JSON text. Most templates take objects: they write them as
        JSON, which would quote the text, or go through their keys. Raises RenderError for text that
        is no JSON object, where the template takes only objects.
        """
        if not any("tool_calls" in message for message in conversation.messages):
            return conversation
        form = self._argument_forms[self._which(conversation)]
        if form == "either":
            return conversation
        change = as_object if form == "object" else _as_text
        return with_arguments(conversation, change)

    def _which(self, conversation: Conversation) -> str:
        has_tools = conversation.tools is not None
        return "tool_use" if has_tools and "tool_use" in self.sources else "default"

    @cached_property
    def _argument_forms(self) -> dict[str, _ArgumentForm]:
        """By name of the template: the form in which it takes arguments of tool calls."""
        return {
            name: _argument_form(replace(self, sources={"default": source}))
            for name, source in self.sources.items()
        }

    @cached_property
    def _compiled(self) -> dict[str, tuple[Sandbox, Template]]:
        compiled = {}
        for name, source in self.sources.items():
            sandbox = Sandbox(GENERATED)
            compiled[name] = sandbox, sandbox.from_string(source)
        return compiled


def _clock(day: object) -> Callable[[str], str]:
    """`strftime_now` on a day."""
    try:
        return datetime.date.fromisoformat(str(day)).strftime
    except ValueError:
        raise RenderError(f"{_CLOCK} is {brief(day)}, expected a day such as 2026-01-31") from None


def _argument_form(template: ChatTemplate) -> _ArgumentForm:
    """The form in which a template takes arguments of tool calls, found by rendering a call twice.

    Text is right where it is written as the object is, or where the template cannot write an
    object: it fails, or writes it as Python does. Elsewhere the object is right, such as where the
    template fails with text, leaves it out, quotes it, or puts it between braces of its own.
    """
    for tools in ([{"type": "function", "function": _PROBED_TOOL}], None):
        text, object_ = (_probed(template, each, tools) for each in (json.dumps(_PROBE), _PROBE))
        if text is None and object_ is None:
            continue
        if text is None or object_ is None or text == object_:
            return "object" if text is None else "text" if object_ is None else "either"
        return "text" if repr(_PROBE).replace(" ", "") in object_ else "object"
    return "either"  # it writes no calls


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
    try:
        value = parsed_json(arguments, _ARGUMENTS) if arguments.strip() else {}
    except BadRowError as error:
        fault = str(error)
    else:
        if isinstance(value, dict):
            return value
        fault = f"{_ARGUMENTS} are {brief(arguments)}"
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
    sources = {"default": _read(Path(file))} if file is not None else dict(own)
    where = file if file is not None else "the tokenizer's chat template"
    if "default" not in sources:
        known = f" named default, only {', '.join(sorted(sources))}" if sources else ""
        raise ConfigError(
            f"the tokenizer has no chat template{known}; give one with --chat-template FILE"
        )
    for source in sources.values():
        if len(source) > _LONGEST:
            what = f"has {len(source):,} characters"
            raise ConfigError(f"{where} {what}; expected at most {_LONGEST:,}")
        try:
            Sandbox(GENERATED).from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"{where} does not parse: line {error.lineno}: {error.message}"
            ) from None
        except (SyntaxError, RecursionError, MemoryError) as error:
            # Jinja2 writes Python, which may not compile: a break outside of a loop, deep nesting.
            reason = error.msg if isinstance(error, SyntaxError) else "it nests too deeply"
            raise ConfigError(f"{where} does not compile: {reason}; change the template") from None
        if mark := MARKS.search(source):
            what = f"contains U+{ord(mark[0]):04X}"
            raise ConfigError(f"{where} {what}, which is not a character; remove it")
    template = ChatTemplate(sources=sources, variables={**dict(named_tokens), **variables})
    asks = any(_CLOCK in source for source in sources.values()) and _CLOCK not in variables
    note = f"{where} asks for today's date, and a build has none; {_DAY}, or it writes its own"
    return template, [note] * asks


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no chat template {path}; check the path of --chat-template"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; expected a Jinja template") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
