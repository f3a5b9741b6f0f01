"""The sandbox that chat templates run in: Jinja2's, set up as in transformers, with bounds added.

A template is untrusted data. It sees only the values passed to it. It stops when it takes more than
MAX_STEPS loop rounds and calls, or makes something larger than MAX_SIZE. Steps are counted, not
seconds, so the same template and row stop at the same place on every machine, or on none.

Jinja2's sandbox does not bound nested loops, macros that call themselves twice, values that double
in each `set`, or paddings and products of a billion characters, and it renders attributes that
begin with an underscore as empty text. All of these raise here.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 500_000  # of one rendering; a conversation of 100 messages takes a few hundred
MAX_SIZE = 1 << 24  # characters of one rendering or of one value inside it
MAX_ITEMS = 1 << 20  # lists, objects and what is in them, of one value


_PLAIN = frozenset({str, bool, int, type(None)})
_OF_DICT = frozenset(dir(dict))
_OF_TEXT = frozenset({"startswith", "endswith", "split", "strip", "lstrip", "rstrip"})
_OF_LOOP = frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})


class LimitError(TemplateError):
    """A rendering exceeded one of the bounds."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template. Several threads may render in it at once.

    mark: put around the text of {% generation %} blocks, in renderings that ask for it.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, mark: str) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self._local = threading.local()
        self._mark = mark
        self.generates = False  # True once a template with {% generation %} was parsed
        self.filters |= {"tojson": _tojson, "counted": self._counted, "sized": _sized}
        for name in _GROWING_FILTERS:
            self.filters[name] = _checked(self.filters[name])
        self.globals |= {"raise_exception": _raise, "dict": _dict, "namespace": _PlainNamespace}

    @property
    def current_mark(self) -> str:
        """Mark of the rendering that this thread makes; empty if it has none."""
        mark: str = self._local.mark
        return mark

    def render(
        self, template: Template, variables: Mapping[str, Any], *, marked: bool = False
    ) -> str:
        """Render the template. Raises TemplateError for any failure."""
        self._local.steps, self._local.mark = 0, self._mark if marked else ""
        parts, size = [], 0
        try:
            for part in template.root_render_func(template.new_context(dict(variables))):
                parts.append(part)
                size += len(part)
                if size > MAX_SIZE:
                    raise LimitError(f"the template writes more than {MAX_SIZE:,} characters")
        except TemplateError:
            raise
        except RecursionError:
            raise LimitError("the template calls itself without end") from None
        # An operator in a template can raise any exception of Python.
        except (MemoryError, Exception) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from None
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, with every loop counted and every assigned value measured."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filter(loop.iter, "counted")
        for assign in list(tree.find_all(nodes.Assign)):
            assign.node = _filter(assign.node, "sized")
        for block in list(tree.find_all(nodes.AssignBlock)):
            block.filter = _filter(block.filter, "sized")
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja2's sandbox, without its checks where they always pass.

        These attributes take most of the time of a rendering: keys of messages, variables of
        namespaces, facts of loops and methods of texts.
        """
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj, attribute)
        elif kind is str:
            if attribute in _OF_TEXT:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in _OF_LOOP:
                return getattr(obj, attribute)
        elif kind is _PlainNamespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, self)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 as in Jinja2
        __self._count(1)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        _check_arguments(
            getattr(method, "__self__", None),
            getattr(method, "__name__", ""),
            (*args, *kwargs.values()),
        )
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise LimitError(f"the template takes a power of {str(left)[:20]}")
        if operator == "*":
            _check_product(left, right)
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(
            f"the template reads the attribute {attribute!r} of a {type(obj).__name__}"
        )

    def _counted(self, items: Any) -> Any:
        """Return the items; add their number to the steps before a loop over them begins."""
        if hasattr(items, "__len__") and not isinstance(items, Undefined):
            self._count(1 + len(items))
            return items
        return self._one_by_one(items)

    def _one_by_one(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._count(1)
            yield item

    def _count(self, steps: int) -> None:
        self._local.steps += steps
        if self._local.steps > MAX_STEPS:
            raise LimitError(f"the template takes more than {MAX_STEPS:,} steps")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 as in Jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.environment.generates = True  # type: ignore[attr-defined]
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.EnvironmentAttribute("current_mark")]) for _ in range(2)]
        return nodes.Scope([marks[0], *body, marks[1]]).set_lineno(line)


class _PlainNamespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        Namespace.__init__(self, *rest, **kwargs)
        for name in dict(*rest, **kwargs):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"the template sets the attribute {name!r} of a namespace")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON text. Jinja2's own filter escapes characters for HTML."""
    if isinstance(indent, int):
        _check_arguments(None, "indent", (indent,))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(
        node, name, [], [], None, None, lineno=node.lineno if node is not None else 1
    )


def _sized(value: Any) -> Any:
    """Return the value, or raise LimitError if it is too large.

    Nested lists are counted at every level: [x, x] of [x, x] doubles each time.
    """
    if type(value) in _PLAIN and not (type(value) is str and len(value) > MAX_SIZE):
        return value
    pending, size, items = [value], 0, 0
    while pending:
        item = pending.pop()
        items += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        if size > MAX_SIZE or items + len(pending) > MAX_ITEMS:
            raise LimitError(
                f"the template makes a value of more than {MAX_SIZE:,} characters or {MAX_ITEMS:,} "
                "items"
            )
    return value


# Filters whose result can be much larger than their arguments. Methods of str with these names get
# the same checks.
_GROWING_FILTERS = ("center", "format", "indent", "join", "replace", "wordwrap")
_WIDTH = re.compile(r"[0-9*]{7,}|\*")


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with its arguments checked first.

    Jinja2 marks filters that need its environment; the mark is kept.
    """
    name = function.__name__.removeprefix("do_")

    def checked(*args: Any, **kwargs: Any) -> Any:
        values = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _check_arguments(values[0], name, (*values[1:], *kwargs.values()))
        return function(*args, **kwargs)

    checked.__dict__.update(function.__dict__)
    return checked


def _check_arguments(owner: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a call whose result could be larger than MAX_SIZE.

    That is one with a huge number, a huge text, or a product of two texts.
    """
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_SIZE:
            raise LimitError(f"the template calls {name} with {argument:,}")
        if isinstance(argument, str) and len(argument) > MAX_SIZE:
            raise LimitError(f"the template makes a text of more than {MAX_SIZE:,} characters")
    if not isinstance(owner, (str, list, tuple)):
        return
    if name in ("format", "format_map") and isinstance(owner, str):
        _check_widths(owner)
    elif name in ("replace", "join", "indent", "wordwrap"):
        longest = max(
            (len(argument) for argument in arguments if hasattr(argument, "__len__")), default=1
        )
        _check_product(owner or "-", longest)


def _check_widths(text: str) -> None:
    if _WIDTH.search(text):
        raise LimitError(f"the template formats with {text[:30]!r}")


def _check_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if (
            isinstance(sequence, (str, list, tuple))
            and isinstance(times, int)
            and len(sequence) * times > MAX_SIZE
        ):
            raise LimitError(f"the template makes a value of more than {MAX_SIZE:,} characters")


def _is_small(number: Any) -> bool:
    return isinstance(number, (int, float)) and abs(number) < 1000
