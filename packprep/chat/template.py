"""Chat templates: messages to text exactly as transformers renders them.

They run in the bounded sandbox of `packprep.chat.rendering.sandbox`.

The template is a file that the user names, or the tokenizer's own (chat_template.jinja, or the key
in tokenizer_config.json). It writes every special token itself: no BOS or EOS is added to its text.

Transformers leaves two things open that are fixed here, because equal inputs must give equal bytes.
The clock: `strftime_now` exists only where the user gives a date, and templates have their own
default without it. And which template: where there are several, `tool_use` for rows with tools,
`default` for all others.

Options of a build: chat_template (a file), template_date (YYYY-MM-DD), template_variables
(enable_thinking: false).
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from jinja2 import Template, meta, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from packprep.chat.conversations import (
    BadRowError,
    Conversation,
    Message,
    parsed_json,
    without_keys,
)
from packprep.chat.marks import GENERATED, MARKS
from packprep.chat.rendering.sandbox import Sandbox
from packprep.chat.rendering.traced_text import Recording
from packprep.chat.rendering.tracing import Trace, TracingSandbox
from packprep.config.grammar.known_columns import known
from packprep.engines.tokenizer import Tokenizer
from packprep.support.errors import ConfigError, InputError, brief

_GIVEN = {*known(("messages",), "read")}  # text of these that is not written is counted
_LONGEST = 1_000_000  # characters of a template; those of large models have 20,000
_NO_DATE = "'strftime_now' is undefined"
_SOME_DAY = "1999-10-24"  # no template has it as its default
_TURN: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
_TOOL = {"name": "f", "description": "c", "parameters": {"type": "object", "properties": {}}}
_PROBES = [
    Conversation([*system, *_TURN], tools)
    for system in ([], [Message(role="system", content="d")])
    for tools in (None, [{"type": "function", "function": _TOOL}])
]  # a template may write the date only beside a system message, or beside tools
_Kind = TypeVar("_Kind", bound=Sandbox)

_ArgumentForm = Literal["object", "text", "either"]
_ARGUMENTS = "the arguments of a tool call"
_NEEDS_OBJECT = "the chat template takes an object, or JSON text of one"
_PROBE = {"key": "probed"}  # arguments of a call
_PROBE_TEXT = json.dumps(_PROBE)
_PROBED_TOOL = {
    "name": "probe",
    "description": "Probe.",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string", "description": "Key."}},
        "required": ["key"],
    },
}


class RenderError(InputError):
    """The template cannot render a conversation: it raised, or exceeded a bound.

    The caller adds the row's place.
    """


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template ready to render.

    variables: what it sees beside the messages, special tokens included.
    notes: sentences for the user.
    """

    FACT: ClassVar = "chat_template"

    sources: Mapping[str, str] = field(repr=False)  # "default" and perhaps "tool_use"
    variables: Mapping[str, object]
    date: str | None = None  # YYYY-MM-DD
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Facts that enter the identity of a build."""
        digests = {
            name: hashlib.sha256(source.encode()).hexdigest()
            for name, source in sorted(self.sources.items())
        }
        return {"sha256": digests, "variables": dict(self.variables), "date": self.date}

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
        values = self._values(conversation, add_generation_prompt)
        try:
            return sandbox.render(template, values, marked=marked)
        except TemplateError as error:
            reason = str(error)
            if reason == _NO_DATE and self.date is None:
                reason = "it asks for today's date; give a day with --template-date YYYY-MM-DD"
            raise RenderError(f"the chat template cannot render it: {reason}") from None

    def has_default_date(self) -> bool:
        """True if the template writes another text where it is given a date."""
        dated = replace(self, date=_SOME_DAY)
        for probe in _PROBES:
            with suppress(RenderError):
                if self.render(probe) != dated.render(probe):
                    return True
        return False

    def trace(self, conversation: Conversation, recording: Recording) -> Trace | None:
        """The trace of the rendering of a conversation; None if it cannot be traced.

        conversation: with texts of `recording`.
        """
        sandbox, template = self._traceable[self._which(conversation)]
        return sandbox.trace(template, self._values(conversation), recording)

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """Those of these keys of messages that the template does not read.

        It reads what it names in its source. Where it names none of them, it may still write a
        message with all its keys, as JSON: then its text differs without them. That is tried once
        for messages of the same roles and keys.
        """
        which = self._which(conversation)
        unknown = frozenset(keys) - _GIVEN - self._named[which]
        if not unknown:
            return unknown
        kinds = frozenset((each["role"], frozenset(each)) for each in conversation.messages)
        if (tried := self._writes.get((which, unknown, kinds))) is None:
            messages = [without_keys(message, unknown) for message in conversation.messages]
            try:
                bare = self.render(replace(conversation, messages=messages))
                tried = bare != self.render(conversation)
            except RenderError:
                tried = True
            self._writes[which, unknown, kinds] = tried
        return () if tried else unknown

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
        changed = partial(with_objects, lenient=False) if form == "object" else _with_texts
        return replace(conversation, messages=[*map(changed, conversation.messages)])

    def has_generation_blocks(self, conversation: Conversation) -> bool:
        """True if the template itself marks what the assistant writes."""
        return self._compiled[self._which(conversation)][0].generates

    def _values(
        self, conversation: Conversation, add_generation_prompt: bool = False
    ) -> dict[str, object]:
        """Variables that the template sees."""
        return {
            **self.variables,
            **conversation.variables,
            "messages": conversation.messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }

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
    def _writes(self) -> dict[tuple[object, ...], bool]:
        """True for messages of these kinds that the template writes whole; see `unread`."""
        return {}

    @cached_property
    def _named(self) -> dict[str, set[str]]:
        """By name of the template: attributes and texts in it, which may be keys of messages."""
        named = {}
        for name, source in self.sources.items():
            tree = Sandbox(GENERATED).parse(source)
            named[name] = {each.attr for each in tree.find_all(nodes.Getattr)}
            values = [each.value for each in tree.find_all(nodes.Const)]
            named[name] |= {
                part for each in values if type(each) is str for part in each.split(".")
            }
        return named

    @cached_property
    def _compiled(self) -> dict[str, tuple[Sandbox, Template]]:
        return self._compile(Sandbox)

    @cached_property
    def _traceable(self) -> dict[str, tuple[TracingSandbox, Template]]:
        return self._compile(TracingSandbox)

    def _compile(self, kind: type[_Kind]) -> dict[str, tuple[_Kind, Template]]:
        compiled = {}
        for name, source in self.sources.items():
            sandbox = kind(GENERATED)
            if self.date is not None:
                day = datetime.date.fromisoformat(self.date)
                sandbox.globals["strftime_now"] = day.strftime
            compiled[name] = sandbox, sandbox.from_string(source)
        return compiled


def _argument_form(template: ChatTemplate) -> _ArgumentForm:
    """The form in which a template takes arguments of tool calls, found by rendering a call twice.

    Text is right where it is written as the object is, or where the template cannot write an
    object: it fails, or writes it as Python does. Elsewhere the object is right, such as where the
    template fails with text, leaves it out, quotes it, or puts it between braces of its own.
    """
    for tools in ([{"type": "function", "function": _PROBED_TOOL}], None):
        text, object_ = (_probed(template, each, tools) for each in (_PROBE_TEXT, _PROBE))
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


def with_objects(message: Message, *, lenient: bool = True) -> Message:
    """The message, with arguments of calls that are JSON text of an object as that object.

    Blank text is a call without arguments. lenient: other text stays; else raises RenderError.
    """

    def as_object(arguments: object) -> object:
        if not isinstance(arguments, str):
            return arguments
        try:
            value = parsed_json(arguments, _ARGUMENTS) if arguments.strip() else {}
        except BadRowError as error:
            if lenient:
                return arguments
            raise RenderError(f"{error}; {_NEEDS_OBJECT}") from None
        if isinstance(value, dict):
            return value
        if lenient:
            return arguments
        raise RenderError(f"{_ARGUMENTS} are {brief(arguments)}; {_NEEDS_OBJECT}")

    return _with_arguments(message, as_object)


def _with_texts(message: Message) -> Message:
    """The message, with arguments of calls that are objects as JSON text, as `tojson` writes it."""

    def as_text(arguments: object) -> object:
        if not isinstance(arguments, dict):
            return arguments
        try:
            return json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RenderError(
                f"{_ARGUMENTS} are no JSON, as which the chat template takes them: {error}"
            ) from None

    return _with_arguments(message, as_text)


def _with_arguments(message: Message, change: Callable[[object], object]) -> Message:
    """The message with each value of `arguments` of its calls changed."""
    if "tool_calls" not in message:
        return message
    calls: list[object] = []
    for call in message["tool_calls"]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(call, dict) and isinstance(function, dict) and "arguments" in function:
            function = function | {"arguments": change(function["arguments"])}
            call = call | {"function": function} if "function" in call else function
        calls.append(call)
    return message | {"tool_calls": calls}


def load_chat_template(
    tokenizer: Tokenizer,
    file: str | Path | None = None,
    *,
    date: str | None = None,
    variables: Mapping[str, object] | None = None,
) -> ChatTemplate:
    """The template in `file`, else the tokenizer's own.

    date: YYYY-MM-DD, the day that `strftime_now` gives. variables: for the template; they replace
    special tokens of the tokenizer with the same name. Raises ConfigError where there is no
    template, or it does not parse.
    """
    sources = template_file(Path(file)) if file is not None else dict(tokenizer.chat_templates)
    where = str(file) if file is not None else "the tokenizer's chat template"
    if "default" not in sources:
        known = f" named default, only {', '.join(sorted(sources))}" if sources else ""
        raise ConfigError(
            f"the tokenizer has no chat template{known}; give one with --chat-template FILE"
        )
    try:
        day = datetime.date.fromisoformat(date).isoformat() if date is not None else None
    except ValueError:
        raise ConfigError(
            f"--template-date is {date!r}, expected a day such as 2026-01-31"
        ) from None
    asks_for_date = False
    for source in sources.values():
        if len(source) > _LONGEST:
            raise ConfigError(
                f"{where} has {len(source):,} characters; expected at most {_LONGEST:,}"
            )
        try:
            asked = meta.find_undeclared_variables(Sandbox(GENERATED).parse(source))
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
            raise ConfigError(
                f"{where} contains U+{ord(mark[0]):04X}, which is not a character; remove it"
            )
        asks_for_date |= "strftime_now" in asked
    template = ChatTemplate(
        sources=sources, variables={**tokenizer.named_tokens, **(variables or {})}, date=day
    )
    if asks_for_date and day is None and template.has_default_date():
        note = (
            f"{where} asks for today's date; a build uses the default date written in the "
            "template instead, or the one of --template-date YYYY-MM-DD"
        )
        return replace(template, notes=(note,))
    return template


def template_file(path: Path) -> dict[str, str]:
    """The template of a file, as the default. Raises ConfigError where it cannot be read."""
    try:
        return {"default": path.read_text("utf-8")}
    except FileNotFoundError:
        raise ConfigError(
            f"there is no chat template {path}; check the path of --chat-template"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; expected a Jinja template") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
