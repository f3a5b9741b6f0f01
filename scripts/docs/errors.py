"""Reads the sentences of all errors from the source, for the page docs/reference/errors.md.

scripts/docs/reference.py writes it. Nothing is imported or run. A sentence that has a variable
part is followed to where the part is written: a local name, a constant, a table, the functions that
return it and the calls that pass it.
"""

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from source_names import Place, Sources, called, is_written, parameters

PAGE = """# Errors

{generated}
Every sentence with which packprep refuses something, by the module that writes it. Search the page
for a few words of the message. Braces show what varies: `{{max_length}}` is a value, `(is|are)` a
choice.

| line | meaning | exit code |
|---|---|---|
| `ConfigError` | an option or an argument | 2 |
| `InputError`, `RenderError`, ... | a source, a row, a tokenizer or a template | 2 |
| `StoppedError` | the machine stopped the build; the same command resumes | 3 |
| `FormatError` | a file of an output is damaged | 1 or 2 |
| `ValueError` | an argument of a Python function | |
| `Problem` | a row; `--on-error skip` skips it | 2 |
| `finding` | a sentence of `verify`, or the end of one above, after file and place | 1 |
| `part` | a part of a sentence of this module or another | |
"""

FINDING = "finding"  # of verify and of readers, in an error or in a list
PART = "part"  # of a sentence that is built from several
# Other calls that refuse something: a row that is skipped, a lock, an argument of the command line.
REFUSALS = ("Problem", "Held", "WorkerDied", "BadParameter", "fail", "Rule")
# Not errors for a reader: assertions and signals inside the program.
INTERNAL = (
    "AssertionError",
    "CancelledError",
    "NotImplementedError",
    "OSError",
    "UntraceableError",
)
LONGEST_PLACEHOLDER = 45
FEWEST_WORDS = (2, 3)  # of a sentence, of a part of one
MOST_VALUES = 12  # an attribute with more is a common name, of which few values are sentences


class Sentence(NamedTuple):
    """A sentence with placeholders, and where it is written.

    kind: class of the error, FINDING or PART.
    """

    module: str
    line: int
    column: int
    kind: str
    text: str


class Reader:
    """Collects the sentences that reach an error."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.sentences: set[Sentence] = set()
        self._seen: set[tuple[ast.AST, str]] = set()
        self._covered: set[ast.AST] = set()

    def read(self) -> list[Sentence]:
        for name, calls in list(self.sources.calls.items()):
            if (name.endswith("Error") or name in REFUSALS) and name not in INTERNAL:
                for call, place in calls:
                    self._arguments(call, place, name)
        for place in self.sources.faults:
            if place.node not in self._covered:
                self._add(place, FINDING)
        named = {(each.module, each.text) for each in self.sentences if each.kind != PART}
        kept = (
            each
            for each in self.sentences
            if each.kind != PART or (each.module, each.text) not in named
        )
        return sorted(kept, key=lambda each: (str(Path(each.module).parent), each))

    def _arguments(self, call: ast.Call, place: Place, kind: str) -> None:
        shown = {"fail": "InputError", "Rule": "ConfigError"}.get(kind, kind.lstrip("_"))
        for value in (*call.args, *(word.value for word in call.keywords)):
            self._follow(place._replace(node=value), shown)

    def _follow(self, place: Place, kind: str) -> None:
        """Add the sentences that an expression may be."""
        node = place.node
        if (node, kind) in self._seen:
            return
        self._seen.add((node, kind))
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr():
                self._add(place, kind)
            case ast.BinOp() if is_written(node):
                self._add(place, kind)
            case ast.Name():
                for source in self._meanings(place, node.id):
                    self._follow(source, kind)
            case ast.Attribute() if len(self.sources.assigned[node.attr]) <= MOST_VALUES:
                for source in self.sources.assigned[node.attr]:
                    self._follow(source, kind)
            case ast.Call():
                self._call(place, node, kind)
            case ast.IfExp():
                self._all(place, kind, node.body, node.orelse)
            case ast.BoolOp():
                self._all(place, kind, *node.values)
            case ast.Tuple() | ast.List() | ast.Set() if kind != PART or has_tables(place):
                self._all(place, kind, *node.elts)
            case ast.Dict() if kind != PART or has_tables(place):
                self._all(place, kind, *node.values)
            case ast.Subscript() | ast.Starred() | ast.FormattedValue() | ast.Await():
                self._all(place, kind, node.value)
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp():
                self._all(place, kind, node.elt)
            case ast.BinOp(op=ast.Mod()):
                self._all(place, kind, node.left, node.right)

    def _all(self, place: Place, kind: str, *nodes: ast.expr) -> None:
        for node in nodes:
            self._follow(place._replace(node=node), kind)

    def _call(self, place: Place, call: ast.Call, kind: str) -> None:
        name = called(call)
        if name in self.sources.fields or name.endswith("Error"):
            return  # read with the arguments of that class
        if isinstance(call.func, ast.Attribute) and name in ("format", "join", "items", "values"):
            self._all(place, kind, call.func.value)
            self._all(place, PART, *call.args)
        elif name in (
            "str",
            "next",
            "iter",
            "zip",
            "enumerate",
            "reversed",
            "list",
            "min",
            "get",
            "fromkeys",
        ):
            self._all(place, kind, *call.args)
            if isinstance(call.func, ast.Attribute):
                self._all(place, kind, call.func.value)
        else:
            for returned in self._functions(place, name):
                self._follow(returned, kind)

    def _functions(self, place: Place, name: str) -> Iterator[Place]:
        """Values that a function of the product returns or yields."""
        name = self.sources.imports[place.module].get(name, name)
        known = self.sources.functions[name]
        near = [each for each in known if each[0] == place.module] or known
        if len(near) <= 3:
            for _, function in near:
                yield from self.sources.returned[function]

    def _meanings(self, place: Place, name: str) -> Iterator[Place]:
        """Expressions that a name may stand for: local values, arguments of callers, constants."""
        for scope in place.scopes:
            if local := self.sources.stored[scope, name]:
                yield from local
                return
            if isinstance(scope, ast.FunctionDef) and name in parameters(scope):
                yield from self._passed(scope, name)
                return
        if constant := self.sources.constant(place.module, name):
            yield constant

    def _passed(self, function: ast.FunctionDef, name: str) -> Iterator[Place]:
        if len(self.sources.functions[function.name]) > 3:
            return
        names = parameters(function)
        for call, place in self.sources.calls[function.name]:
            skipped = names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute)
            at = names.index(name) - skipped
            if 0 <= at < len(call.args):
                yield place._replace(node=call.args[at])
            for word in call.keywords:
                if word.arg == name:
                    yield place._replace(node=word.value)

    def _add(self, place: Place, kind: str) -> None:
        node = place.node
        text = " ".join(self._shown(place).split())
        # A sentence of a Rule is a format.
        text = (
            re.sub(r"(?<!\{)\{(\w+)[!:][^{}]*\}", r"{\1}", text)
            .replace("{{", "{")
            .replace("}}", "}")
        )
        words = re.findall(r"\b[a-z]{2,}\b", re.sub(r"\{.*?\}", " ", text))
        if len(words) >= FEWEST_WORDS[kind == PART]:
            self.sentences.add(Sentence(place.module, node.lineno, node.col_offset, kind, text))
        for part in ast.walk(node):
            self._covered.add(part)
            if isinstance(part, ast.FormattedValue) and self._shown(
                place._replace(node=part)
            ).startswith("{"):
                self._follow(place._replace(node=part.value), PART)
        if isinstance(node, ast.BinOp):
            for side in (node.left, node.right):
                if not is_written(side):
                    self._follow(place._replace(node=side), PART)

    def _shown(self, place: Place) -> str:
        """Text of an expression: what varies is in braces, and a constant is its text."""
        node = place.node
        match node:
            case ast.Constant(value=str()):
                return str(node.value)
            case ast.JoinedStr():
                return "".join(self._shown(place._replace(node=part)) for part in node.values)
            case ast.FormattedValue():
                return self._shown(place._replace(node=node.value))
            case ast.BinOp(op=ast.Add()) if is_written(node):
                sides = (node.left, node.right)
                return "".join(self._shown(place._replace(node=side)) for side in sides)
            case ast.IfExp(body=ast.Constant(value=str()), orelse=ast.Constant(value=str())):
                first, second = (place._replace(node=part) for part in (node.body, node.orelse))
                return f"({self._shown(first)}|{self._shown(second)})"
            case ast.Name():
                constant = self.sources.constant(place.module, node.id)
                local = any(self.sources.stored[scope, node.id] for scope in place.scopes)
                if constant and not local and isinstance(constant.node, ast.Constant):
                    return str(constant.node.value)
        return f"{{{placeholder(node)}}}"


def has_tables(place: Place) -> bool:
    """True in a room whose tables have parts of sentences."""
    return place.module.startswith("packprep/config/")


def placeholder(node: ast.expr) -> str:
    """Expression of a placeholder, or the name of its function if it is long."""
    text = ast.unparse(node)
    if len(text) > LONGEST_PLACEHOLDER and isinstance(node, ast.Call):
        return f"{ast.unparse(node.func)[:LONGEST_PLACEHOLDER]}(...)"
    return text if len(text) <= LONGEST_PLACEHOLDER else text[:LONGEST_PLACEHOLDER] + "..."


def sentences() -> list[Sentence]:
    """All sentences of the product, by module and line."""
    return Reader(Sources()).read()


def page(generated: str) -> str:
    """The page of all sentences. generated: the comment that names the command."""
    parts = [PAGE.format(generated=generated)]
    for room, inside in groupby(sentences(), lambda each: str(Path(each.module).parent)):
        parts.append(f"## {room}\n")
        for module, lines in groupby(inside, lambda each: each.module):
            text = "\n".join(dict.fromkeys(f"{line.kind}: {line.text}" for line in lines))
            parts.append(f"`{Path(module).name}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)
