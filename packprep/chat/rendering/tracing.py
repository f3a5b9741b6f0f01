"""A rendering that records how its text is made of the texts of its messages.

The same template, compiled for a sandbox in which every filter, test, call and `~` passes through
here. Those that only move values about, or are operators on them, take traced texts. For all others
a traced text in an argument refuses the trace: they could read it in ways that are not recorded.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from packprep.chat.rendering.expressions import Expression, TextGuard, flattened
from packprep.chat.rendering.sandbox import Sandbox
from packprep.chat.rendering.traced_text import (
    METHODS,
    TRACED,
    Recording,
    TracedLength,
    TracedParts,
    TracedText,
    UntraceableError,
)
from packprep.chat.rendering.value_limits import MAX_SIZE

# They pass values on, or use operators and methods of them alone.
_FILTERS = frozenset(
    [
        *("capitalize", "count", "d", "default", "first", "items", "join", "last", "length"),
        *("list", "lower", "map", "reject", "rejectattr", "reverse", "select", "selectattr"),
        *("string", "trim", "upper"),
    ]
)
# Operators, and questions about types.
_TESTS = frozenset(
    [
        *(name for name, test in TESTS.items() if test.__module__ == operator.eq.__module__),
        *("boolean", "callable", "defined", "false", "float", "in", "integer", "mapping", "none"),
        *("number", "string", "true", "undefined"),
    ]
)


@dataclass(frozen=True)
class Trace:
    """A rendering as constants with expressions between them, and the guards it depends on.

    literals: [values + 1]. For texts for which all guards hold, the template renders literals[0] +
    values[0] + literals[1] + ...
    most: characters that all texts together may have, so that no value in the template exceeds
    MAX_SIZE.
    """

    literals: tuple[str, ...]
    values: tuple[Expression, ...]
    guards: tuple[TextGuard, ...]
    most: int

    def compose(self, texts: list[str]) -> str | None:
        """The rendering with these texts; None if the template could take another path."""
        if sum(map(len, texts)) > self.most or not all(g.holds(texts) for g in self.guards):
            return None
        values = [*(value.of(texts) for value in self.values), ""]
        return "".join(part for pair in zip(self.literals, values, strict=True) for part in pair)


class TracingSandbox(Sandbox):
    """The environment that records. Several threads may render in it at once."""

    def __init__(self, mark: str) -> None:
        super().__init__(mark)
        self._state = threading.local()
        self.filters = {
            name: self._traced("filter", name, each, _FILTERS)
            for name, each in self.filters.items()
        }
        self.tests = {
            name: self._traced("test", name, each, _TESTS) for name, each in TESTS.items()
        }
        # A template is measured when it renders the row itself, see `Trace.most` for others.
        self.filters |= {
            "counted": self._looped,
            "sized": self._lifted,
            "joined": self._joined,
            "replace": self._replaced,
        }

    def trace(
        self, template: Template, variables: Mapping[str, object], recording: Recording
    ) -> Trace | None:
        """The trace of a rendering; None if one cannot be recorded.

        template: of this environment. variables: with texts of `recording` in them.
        """
        self._state.recording = recording
        try:
            text = self.render(template, variables)
            written = recording.lifted(text)
        except (TemplateError, UntraceableError):
            return None
        finally:
            self._state.recording = None
        if recording.refused is not None:
            return None
        parts = [written] if type(written) is str else flattened(written.expression)
        return _trace(list(parts), recording)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) not in TRACED:
            return super().getattr(obj, attribute)
        if type(obj) is TracedText:
            if attribute in METHODS:
                return getattr(obj, attribute)
            if not hasattr(str, attribute):  # content.content: a text has no keys
                return self.undefined(obj=obj, name=attribute)
        return self._refuse(f"the attribute {attribute}")

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) in TRACED:
            self._refuse("a text as a key")
        if type(obj) is TracedText and type(argument) is str:
            return self.getattr(obj, argument)
        if type(obj) in TRACED:
            return obj[argument]
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 as in Jinja2
        owner = getattr(__obj, "__self__", None) if not isinstance(__obj, Macro) else None
        moves = (
            isinstance(__obj, Macro)
            or any(__obj is __self.globals[name] for name in ("namespace", "dict"))
            or type(owner) is TracedText
        )
        if not moves:
            # Of the compiled template, for callables that ask for its context; none does here.
            own = kwargs.keys() - {"_loop_vars", "_block_vars"}
            if hasattr(__obj, "jinja_pass_arg"):
                __self._refuse("a call with the context")
            __self._check_plain((*args, *(kwargs[name] for name in own)), "a call")
            return __self._lifted(super().call(__context, __obj, *args, **kwargs))
        __self._count(1)
        # Not the bounds of `Sandbox.call`: they would measure texts.
        return __self._lifted(SandboxedEnvironment.call(__self, __context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._check_plain((left, right), operator)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, with `~` as a filter: Jinja2's own looks into texts as they are."""
        tree = super()._parse(source, name, filename)
        joined: nodes.Template = _Joining().visit(tree)
        return joined

    def _refuse(self, reason: str) -> NoReturn:
        recording: Recording | None = getattr(self._state, "recording", None)
        if recording is None:  # Jinja2 computes constants when it compiles a template
            raise UntraceableError(reason)
        recording.refuse(reason)

    def _check_plain(self, values: tuple[Any, ...], reason: str) -> None:
        """Refuse values that are not of plain Python, or that have a traced text in them."""
        pending = list(values)
        while pending:
            value = pending.pop()
            if type(value) in (list, tuple):
                pending.extend(value)
            elif type(value) is dict:
                pending.extend(value.values())
            elif type(value) is str:
                if self._lifted(value) is not value:
                    self._refuse(reason)
            elif not (
                value is None
                or type(value) in (bool, int, float)
                or (type(value) not in TRACED and isinstance(value, Undefined))
            ):
                self._refuse(reason)

    def _traced(
        self, kind: str, name: str, function: Any, passing: frozenset[str]
    ) -> Callable[..., Any]:
        """A filter or test, for values of which some may be traced. passing: take all of these."""
        passed = hasattr(function, "jinja_pass_arg")  # its environment or context comes first

        def traced(*args: Any, **kwargs: Any) -> Any:
            if name == "random":
                self._refuse(name)
            first, values = (args[:1], args[1:]) if passed else ((), args)
            values = tuple(map(self._lifted, values))
            if name in ("first", "last") and type(values[0]) is TracedParts:
                return values[0][-1 if name == "last" else 0]
            if name in ("count", "length") and type(values[0]) is TracedText:
                return TracedLength(values[0])
            if name in ("iterable", "sequence") and type(values[0]) is TracedText:
                return True
            if name not in passing:
                self._check_plain((*values, *kwargs.values()), f"the {kind} {name}")
            return self._lifted(function(*first, *values, **kwargs))

        traced.__dict__.update(getattr(function, "__dict__", {}))
        return traced

    def _lifted(self, value: Any) -> Any:
        recording: Recording | None = getattr(self._state, "recording", None)
        return value if recording is None else recording.lifted(value)

    def _looped(self, items: Any) -> Any:
        if type(items) in TRACED:
            self._refuse("a loop over a text")
        return items

    def _joined(self, items: list[Any]) -> Any:
        return self._lifted("".join(map(str, items)))

    def _replaced(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        text = self._lifted(text)
        if type(text) is TracedText and not kwargs and len(args) == 2:
            return text.replace(*args)
        self._check_plain((text, *args, *kwargs.values()), "the filter replace")
        return str(text).replace(*args, **kwargs)


class _Joining(NodeTransformer):
    """`a ~ b` as a filter of a list."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 as in Jinja2
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "joined", [], [], None, None, lineno=node.lineno)


def _trace(parts: list[str | Expression], recording: Recording) -> Trace | None:
    literals, values = [""], list[Expression]()
    for part in parts:
        if isinstance(part, str):
            literals[-1] += part
        else:
            values.append(part)
            literals.append("")
    times, constant = recording.largest
    most = (MAX_SIZE - constant - sum(map(len, literals))) // max(times, 1)
    return Trace(tuple(literals), tuple(values), tuple(recording.guards.values()), most)
