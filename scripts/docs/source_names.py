"""Modules of the product as trees: what a name in them may mean, without importing them."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("packprep", "loaders", "schemas")

# A string with one of these words is the sentence of a fault.
FAULT_WORDS = re.compile(r"\bexpected\b|\bsays\b|\bcannot be\b|; restore |; build again")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Place(NamedTuple):
    """An expression, its module, and the functions around it, innermost first."""

    node: ast.expr
    module: str
    scopes: tuple[ast.AST, ...]


class Sources:
    """Modules of the product as trees, with what a name in them may mean."""

    def __init__(self, root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> None:
        self.constants: dict[str, dict[str, ast.expr]] = {}
        self.imports: dict[str, dict[str, str]] = {}
        self.functions: dict[str, list[tuple[str, ast.FunctionDef]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[ast.Call, Place]]] = defaultdict(list)
        self.fields: dict[str, list[str]] = {}
        self.assigned: dict[str, list[Place]] = defaultdict(list)
        self.returned: dict[ast.AST, list[Place]] = defaultdict(list)
        self.faults: list[Place] = []
        self.stored: dict[tuple[ast.AST, str], list[Place]] = defaultdict(list)
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                if root / "packprep" / "next" in path.parents:
                    continue  # on no page before it is the product
                self._read(path.relative_to(root).as_posix(), ast.parse(path.read_text()))
        self._fill_fields()

    def _read(self, module: str, tree: ast.Module) -> None:
        self.constants[module] = {}
        self.imports[module] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.constants[module][target.id] = node.value
        self._walk(tree, module, ())

    def _walk(self, node: ast.AST, module: str, scopes: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.imports[module][alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ClassDef):
            self.fields[node.name] = [
                line.target.id
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            ]
        elif isinstance(node, ast.FunctionDef):
            self.functions[node.name].append((module, node))
        elif isinstance(node, ast.Call):
            self.calls[called(node)].append((node, Place(node, module, scopes)))
        elif isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value and scopes:
            self.returned[scopes[0]].append(Place(node.value, module, scopes))
        if scopes:
            for target, value in bindings(node):
                self._bind(target, Place(value, module, scopes))
        if isinstance(node, ast.expr) and is_written(node) and FAULT_WORDS.search(plain(node)):
            self.faults.append(Place(node, module, scopes))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.keyword) and node.arg == "help":
            return
        if isinstance(node, FUNCTIONS):
            scopes = (node, *scopes)
        for child in ast.iter_child_nodes(node):
            self._walk(child, module, scopes)

    def _bind(self, target: ast.expr, place: Place) -> None:
        if isinstance(target, ast.Name):
            self.stored[place.scopes[0], target.id].append(place)
        elif isinstance(target, ast.Attribute):
            self.assigned[target.attr].append(place)
        elif isinstance(target, ast.Tuple | ast.List):
            values = place.node.elts if isinstance(place.node, ast.Tuple | ast.List) else []
            fit = len(values) == len(target.elts)
            for at, part in enumerate(target.elts):
                self._bind(part, place._replace(node=values[at]) if fit else place)

    def _fill_fields(self) -> None:
        """Take the arguments of a class as values of its fields."""
        for name, fields in self.fields.items():
            for call, place in self.calls[name]:
                for field, value in zip(fields, call.args, strict=False):
                    self.assigned[field].append(place._replace(node=value))
                for word in call.keywords:
                    if word.arg:
                        self.assigned[word.arg].append(place._replace(node=word.value))

    def constant(self, module: str, name: str) -> Place | None:
        """Constant of a module that this name means there, its own or an imported one."""
        if name in self.constants[module]:
            return Place(self.constants[module][name], module, ())
        if origin := self.imports[module].get(name):
            for other, constants in self.constants.items():
                if origin in constants and not isinstance(constants[origin], ast.Name):
                    return Place(constants[origin], other, ())
        return None


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_written(node: ast.AST) -> bool:
    """True for a string, and for a sum with a string."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return is_written(node.left) or is_written(node.right)
    return is_text(node)


def plain(node: ast.AST) -> str:
    """Text of a string or a sum of strings, without its placeholders."""
    if isinstance(node, ast.BinOp):
        return plain(node.left) + plain(node.right)
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))


def called(call: ast.Call) -> str:
    """Last name of what is called."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets of a node and the values that they take."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
