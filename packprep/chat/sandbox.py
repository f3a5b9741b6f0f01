"""The sandbox that chat templates run in: Jinja2's, set up as in transformers, with bounds added.

A template is untrusted data. It sees only the values passed to it. It stops when it takes more than
MAX_STEPS loop rounds, calls and filters, or makes something larger than MAX_SIZE. Steps are
counted, not seconds, so the same template and row stop at the same place on every machine, or on
none. A call or filter of a large value counts as many. Operators such as `in` and slices are not
counted: of the largest values they take milliseconds each.

Jinja2's sandbox does not bound nested loops, macros that call themselves twice, values that double
in each `set`, or paddings and products of a billion characters, and it renders attributes that
begin with an underscore as empty text. All of these raise here.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .marks import GENERATED

MAX_SIZE = 1 << 24  # characters of one rendering or of one value inside it
MAX_ITEMS = 1 << 20  # lists, objects and what is in them, of one value

PLAIN = frozenset({str, bool, int, type(None)})
"""Types of values without others in them."""

_TOO_LARGE = f"a value of more than {MAX_SIZE:,} characters or {MAX_ITEMS:,} items"
# Such as %-5s, %(name)s, {0:>5} and the beginning of {0:{1}}.
_FIELD = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.*]*|\{[^{}]*\{?")
_WIDE = re.compile(r"[0-9]{4}|\*|.\{")  # a field of 1,000 characters, or as wide as a value says
_GROWING = ("expandtabs", "indent", "join", "replace", "translate", "wordwrap")
"""Filters and methods whose result can be as large as the product of their arguments."""


class LimitError(TemplateError):
    """A rendering exceeded one of the bounds."""


def steps_of(value: Any) -> int:
    """Steps of a filter or method of a value: 1, and 1 for each 64 items or 1,024 characters."""
    kind = type(value)
    if kind is str:
        return 1 + (len(value) >> 10)
    return 1 + (len(value) >> 6) if kind in (list, tuple, dict, range) else 1


def sized(value: Any) -> Any:
    """Return the value, or raise LimitError if it is too large."""
    if type(value) not in PLAIN or (type(value) is str and len(value) > MAX_SIZE):
        measured(value)
    return value


def measured(value: Any) -> int:
    """Characters of a value as text, about; LimitError if it is too large.

    Nested lists are counted at every level: [x, x] of [x, x] doubles each time.
    """
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
            raise LimitError(f"the template makes {_TOO_LARGE}")
    return size + items


def check_arguments(owner: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a call whose result could be larger than MAX_SIZE.

    That is one with a huge number, or a product of two texts.
    """
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_SIZE:
            raise LimitError(f"the template calls {name} with {argument:,}")
    if name in ("format", "format_map") and isinstance(owner, str):
        _check_format(owner, arguments)
    elif name in _GROWING and isinstance(owner, (str, list, tuple)):
        is_width = name in ("expandtabs", "indent")
        sizes = [
            each if is_width and isinstance(each, int) else measured(each) for each in arguments
        ]
        _check_product(owner or "-", max(sizes, default=8))


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation of two values whose result could be larger than MAX_SIZE."""
    if operator == "**":
        raise LimitError("the template takes a power")
    if operator == "*":
        _check_product(left, right)
        _check_product(right, left)
    elif operator == "%" and isinstance(left, str):
        _check_format(left, (right,))


def _check_format(text: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a format whose fields could be too wide, alone or together."""
    fields = _FIELD.findall(text.replace("{{", "").replace("%%", ""))
    if any(map(_WIDE.search, fields)) or len(fields) * (1000 + measured(arguments)) > MAX_SIZE:
        raise LimitError(f"the template formats with {text[:30]!r}")


def _check_product(value: Any, times: Any) -> None:
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        size = len(value) if isinstance(value, str) else measured(value)
        if size * times > MAX_SIZE:
            raise LimitError(f"the template makes {_TOO_LARGE}")


MAX_STEPS = 500_000  # of one rendering; a conversation of 100 messages takes a few hundred

_INDENT = 64  # characters at most, of one level of JSON
_NESTED = frozenset({list, tuple, dict})
_OF_DICT = frozenset(dir(dict))
_SAFE: Mapping[type, frozenset[str]] = {
    str: frozenset({"startswith", "endswith", "split", "strip", "lstrip", "rstrip"}),
    LoopContext: frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"}),
}
"""Attributes, by type of their owner, that Jinja2's sandbox would take long to find safe."""
_CHEAP_FILTERS = {"count", "d", "default", "dictsort", "first", "groupby", "items", "last"}
_CHEAP_FILTERS |= {"length", "list", "map", "reject", "rejectattr", "reverse", "select"}
_CHEAP_FILTERS |= {"selectattr", "sort", "unique"}
"""Filters that only take items from a value."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template, in which threads render one after another.

    mark: around the text of {% generation %} blocks, empty in renderings that do not ask for it.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        blocks = {"trim_blocks": True, "lstrip_blocks": True}
        super().__init__(**blocks, extensions=[_Generation, loopcontrols], finalize=sized)
        self._lock, self._steps, self.mark = threading.Lock(), 0, ""
        self.generates = False  # True once a template with {% generation %} was parsed
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded(name, each) for name, each in self.filters.items()}
        self.filters |= {"counted": self._counted, "joined": _joined, "sized": sized}
        del self.globals["lipsum"]  # another text each time, of any size
        self.globals["raise_exception"] = _raise
        self.globals["dict"] = lambda *args, **named: dict(*args, **named)

    def render(
        self, template: Template, variables: Mapping[str, object], *, marked: bool = False
    ) -> str:
        """Render the template. Raises TemplateError for any failure."""
        parts, size = [], 0
        try:
            with self._lock:
                self._steps, self.mark = 0, GENERATED if marked else ""
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
        for add in tree.find_all(nodes.Add):
            _measure_terms(add)
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_filter(nodes.List(concat.nodes, lineno=concat.lineno), "joined")]
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja2's sandbox, without its checks where they always pass.

        These attributes take most of the time of a rendering: keys of messages, variables of
        namespaces, facts of loops and methods of texts.
        """
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _SAFE.get(kind, ()):
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, obj)
            if value is not obj:
                return value
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 as in Jinja2
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        __self._count(steps_of(owner))
        args = tuple(map(__self._listed, args))
        arguments = (*args, *kwargs.values())
        for argument in arguments:
            if type(argument) in _NESTED:
                sized(argument)
        check_arguments(owner, getattr(method, "__name__", ""), arguments)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(
            f"the template reads the attribute {attribute!r} of a {type(obj).__name__}"
        )

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop, each of which is a step."""
        for item in items:
            self._count(1)
            yield item

    def _listed(self, value: Any) -> Any:
        """An iterator as a list, whose size is known; any other value unchanged."""
        if not hasattr(value, "__next__") or type(value) is LoopContext:
            return value
        return list(self._counted(value))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, with its arguments checked, and the work that it takes added to the steps."""
        place = 1 if hasattr(function, "jinja_pass_arg") else 0

        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name not in _CHEAP_FILTERS:
                args = tuple(map(self._listed, args))
            value, arguments = args[place], (*args[place + 1 :], *kwargs.values())
            self._count(steps_of(value))
            if name in ("batch", "slice"):
                self._count(sum(abs(each) for each in arguments if isinstance(each, int)))
            if type(value) in _NESTED and name not in _CHEAP_FILTERS:
                sized(value)
            check_arguments(value, name, arguments)
            return function(*args, **kwargs)

        bounded.__dict__.update(getattr(function, "__dict__", {}))  # marks of Jinja2
        return bounded

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise LimitError(f"the template takes more than {MAX_STEPS:,} steps")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 as in Jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        self.environment.generates = True  # type: ignore[attr-defined]
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.EnvironmentAttribute("mark")]) for _ in range(2)]
        return nodes.Scope([marks[0], *body, marks[1]]).set_lineno(line)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON text. Jinja2's own filter escapes characters for HTML."""
    width = indent if isinstance(indent, int) else len(indent or "")
    if max(width, *map(len, separators or ("", ""))) > _INDENT:
        raise LimitError(f"the template indents or separates JSON by over {_INDENT} characters")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _measure_terms(node: Any) -> int:
    """Number of terms of a sum, of which each eight are measured."""
    if not isinstance(node, nodes.Add):
        return 1
    left, right = _measure_terms(node.left), _measure_terms(node.right)
    if left + right > 8:
        node.left, left = _filter(node.left, "sized"), 1
    return left + right


def _joined(parts: list[Any]) -> str:
    """The text that `~` makes of its terms."""
    return "".join(map(str, sized(parts)))


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=getattr(node, "lineno", 1))
