"""Count how a value wanders through the code of a build: functions, stays, rooms and returns.

\b
python scripts/checks/walks.py [ROOT] [--show VALUE]

Reads the source of the checkout ROOT, by default this one, and runs nothing of it. It goes as a
reader would: from `packprep.execute.pipeline.build` through all that it refers to, in the order of
the source, each function once. Names, methods, properties and tables of functions are followed, by
the annotations of arguments, fields and results.

\b
functions  that hold the value: an argument, their result, or a field that they read has its
           type, alone or in a collection
stays      runs of these functions in one room
rooms      folders of these functions
returns    stays in a room that was left before: stays less rooms

A window number is a WindowSpec, an int called `window`, or one called `number` next to `split` or
in a class of windows.
"""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import click

FOLDERS = {"packprep": "packprep", "schemas": "packprep.schemas", "loaders": "packprep.loaders"}
START = "packprep.execute.pipeline.build"
VALUES = {"config": "BuildConfig", "a source": "Source", "a window number": "WindowSpec"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Item(NamedTuple):
    """A definition: its room, names of its module with what they are, syntax, class of a method."""

    room: str
    names: dict[str, str]
    node: ast.AST
    owner: str = ""


class Code:
    """The definitions of a checkout, by dotted name, and the names in each module."""

    def __init__(self, root: Path) -> None:
        self.items: dict[str, Item] = {}
        self.modules: dict[str, dict[str, str]] = {}
        for folder, package in FOLDERS.items():
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to(root / folder).with_suffix("").parts
                if folder != "packprep" or parts[0] not in FOLDERS:  # links to the other folders
                    room = "/".join((folder, *parts[:-1])).removeprefix("packprep/")
                    self._read((package, *parts), room, ast.parse(path.read_text()))

    def _read(self, parts: tuple[str, ...], room: str, tree: ast.Module) -> None:
        module = ".".join(parts).removesuffix(".__init__")
        names = self.modules[module] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = ".".join(parts).split(".")[: -node.level] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                names.update(
                    {each.asname or each.name: f"{source}.{each.name}" for each in node.names}
                )
        for node in tree.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                self._add(module, names, _last(target), Item(room, names, node))
            if isinstance(node, _Function | ast.ClassDef):
                self._add(module, names, node.name, Item(room, names, node))
            if isinstance(node, ast.ClassDef):
                owner = f"{module}.{node.name}"
                methods = [part for part in node.body if isinstance(part, _Function)]
                self.items |= {f"{owner}.{m.name}": Item(room, names, m, owner) for m in methods}

    def _add(self, module: str, names: dict[str, str], name: str, item: Item) -> None:
        names[name] = f"{module}.{name}"
        self.items[names[name]] = item

    def resolve(self, names: dict[str, str], name: str) -> str:
        """Dotted name of a definition or module of the product; "" if it is another name."""
        dotted = names.get(name, "")
        for _ in range(5):  # through `__init__`s that name it again
            if dotted in self.items or dotted in self.modules:
                break
            package, _, last = dotted.rpartition(".")
            dotted = self.modules.get(package, {}).get(last, "")
        return dotted

    def classes(self, names: dict[str, str], annotation: ast.AST | None) -> set[str]:
        """Classes that an annotation names, alone or in a collection."""
        words = set[str]()
        for node in ast.walk(annotation) if annotation is not None else ():
            words.add(_last(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.update(node.value.split(" | "))
        dotted = {self.resolve(names, word) for word in words} & self.items.keys()
        return {name for name in dotted if isinstance(self.items[name].node, ast.ClassDef)}

    def member(self, owner: str, name: str) -> str | tuple[Item, ast.AST]:
        """A method's dotted name, or the annotation of a field, of a class or its bases; or ""."""
        item = self.items.get(owner)
        if item is None or not isinstance(item.node, ast.ClassDef):
            return ""
        if f"{owner}.{name}" in self.items:
            return f"{owner}.{name}"
        types: dict[str, ast.AST | None] = {}
        for part in ast.walk(item.node):
            if isinstance(part, ast.arg):
                types[part.arg] = part.annotation
            elif isinstance(part, ast.AnnAssign) and _last(part.target) == name:
                return item, part.annotation
            elif isinstance(part, ast.Assign):  # self.name = argument
                for target, value in _pairs(part):
                    if _last(target) == name and (kind := types.get(_last(value))) is not None:
                        return item, kind
        for base in item.node.bases:
            if inherited := self.member(self.resolve(item.names, _last(base)), name):
                return inherited
        return ""


def _last(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values, of `a, b = c, d` too."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


class Reading:
    """Definitions that one refers to, in order, and the values that it holds."""

    def __init__(self, code: Code, item: Item) -> None:
        self._code, self._item = code, item
        self._types = {"self": {item.owner}, "cls": {item.owner}}  # classes of local names
        self.refers: list[str] = []
        self.holds = set[str]()
        if not isinstance(item.node, ast.ClassDef):
            self._visit(item.node)

    def _note(self, item: Item, annotation: ast.AST | None, window: bool = False) -> set[str]:
        """Note the values that have this annotation, and return its classes."""
        classes = self._code.classes(item.names, annotation)
        types = {name.rpartition(".")[2] for name in classes}
        self.holds |= {value for value, name in VALUES.items() if name in types}
        if window and annotation is not None and ast.unparse(annotation) == "int":
            self.holds.add("a window number")
        return classes

    def _visit(self, node: ast.AST) -> set[str]:
        """Read a piece of syntax, and return the classes that its value may have."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
                of_windows = ".Window" in self._item.owner or "split" in {a.arg for a in arguments}
                for each in arguments:
                    window = each.arg == "window" or (each.arg == "number" and of_windows)
                    if each.arg not in ("self", "cls"):
                        self._types[each.arg] = self._note(self._item, each.annotation, window)
                self._note(self._item, node.returns)
                for part in node.body:
                    self._visit(part)
            case ast.Assign():
                for target, value in _pairs(node):
                    self._bind(target, self._visit(value))
            case ast.AnnAssign():
                self._bind(node.target, self._code.classes(self._item.names, node.annotation))
                return self._visit(node.value) if node.value is not None else set()
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind(target, self._visit(value))
                for part in [*getattr(node, "ifs", ()), *getattr(node, "body", ())]:
                    self._visit(part)
            case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
                self._bind(target, self._visit(value))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                for generator in node.generators:
                    self._visit(generator)
                return self._visit(node.elt)
            case ast.Name(id=name) if name in self._types:
                return self._types[name]
            case ast.Name(id=name):
                return self._refer(self._code.resolve(self._item.names, name))
            case ast.Attribute(value=owner, attr=name):
                module = self._code.resolve(self._item.names, _last(owner))
                if module in self._code.modules and _last(owner) not in self._types:
                    return self._refer(f"{module}.{name}")
                return set().union(*[self._member(of, name) for of in sorted(self._visit(owner))])
            case _:
                return set().union(*map(self._visit, ast.iter_child_nodes(node)))
        return set()

    def _bind(self, target: ast.AST, classes: set[str]) -> None:
        names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
        self._types.update({name: classes for name in names if name != "self"})

    def _member(self, owner: str, name: str) -> set[str]:
        member = self._code.member(owner, name)
        return (
            self._refer(member)
            if isinstance(member, str)
            else self._note(*member, name == "window")
        )

    def _refer(self, name: str) -> set[str]:
        """Note a reference, and return the classes of its result."""
        item = self._code.items.get(name)
        if item is None:
            return set()
        self.refers.append(name)
        if isinstance(item.node, ast.ClassDef):
            made = [self._code.member(name, each) for each in ("__init__", "__post_init__")]
            self.refers += [each for each in made if isinstance(each, str) and each]
            return {name}
        return self._code.classes(item.names, getattr(item.node, "returns", None))


def walk(code: Code) -> Iterator[tuple[str, str, set[str]]]:
    """Name, room and values of each definition, in the order of reading."""
    waiting, seen = [START], set[str]()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            reading = Reading(code, code.items[name])
            yield name, code.items[name].room, reading.holds
            waiting += reversed(reading.refers)


@click.command(help=__doc__)
@click.argument("root", default=Path(__file__).parents[2], type=click.Path(path_type=Path))
@click.option("--show", type=click.Choice([*VALUES]), help="List the stays of a value.")
def main(root: Path, show: str | None) -> None:
    steps = [*walk(Code(root))]
    click.echo(f"{'':16} functions  stays  rooms  returns")
    for value in VALUES:
        held = [(room, name.rpartition(".")[2]) for name, room, holds in steps if value in holds]
        stays = [(room, [*names]) for room, names in groupby(held, lambda each: each[0])]
        rooms = len({room for room, _ in held})
        click.echo(f"{value:16} {len(held):9} {len(stays):6} {rooms:6} {len(stays) - rooms:8}")
        for room, names in stays if value == show else ():
            click.echo(f"    {room}: {', '.join(name for _, name in names)}")


if __name__ == "__main__":
    main()
