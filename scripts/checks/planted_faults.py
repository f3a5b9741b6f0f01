"""Plant small faults in the product, one at a time, and count those that the tests find.

    planted_faults.py draw --seed 1 --count 230 > faults.json
    planted_faults.py run faults.json --contexts .coverage > found.json
    planted_faults.py run faults.json --contexts .coverage --marks "not long" > found.json

`draw` chooses operators, constants, conditions and calls of packprep, loaders and schemas. `run`
needs a data file of coverage that knows which test touched a line (`pytest --cov-branch
--cov-context=test`). Each fault is tried only on tests that touched its line, the most special ones
first, until one fails or 60 seconds of CPU are used. At the end the tests that found faults run
without any; where one fails, its faults are tried again without it. `run` changes files of the
working tree and puts them back: use a clean clone.

A fault is found again in another version of the sources by its function and the text of its line.
One whose line is gone is reported as "gone", and counts for neither version.
"""

import ast
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
from coverage.numbits import numbits_to_nums

ROOMS = ("packprep", "loaders", "schemas")
PER_FILE = 3
MOST_TESTS = 1500  # of one command
COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
COMPUTED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}


class Fault(NamedTuple):
    """One change of a line: `old`, at `column` of the stripped `text`, becomes `new`."""

    path: str
    function: str
    line: int
    text: str
    column: int
    old: str
    new: str


class _Sites(ast.NodeVisitor):
    """Collect the places of one file where a fault can stand."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.lines = path, source.splitlines()
        self.names: list[str] = []
        self.faults: list[Fault] = []

    def _add(self, line: int, column: int, old: str, new: str) -> None:
        whole = self.lines[line - 1]
        indent = len(whole) - len(whole.lstrip())
        function = ".".join(self.names)
        self.faults.append(
            Fault(self.path, function, line, whole.strip(), column - indent, old, new)
        )

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        if left.end_lineno != right.lineno or not self.lines[right.lineno - 1].isascii():
            return
        assert left.end_col_offset is not None
        gap = self.lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if found := re.fullmatch(rf"([\s)]*)({re.escape(old)})([\s(]*)", gap):
            self._add(right.lineno, left.end_col_offset + found.start(2), old, new)

    def _named(self, node: Any) -> None:
        self.names.append(node.name)
        for child in node.body:
            self.visit(child)
        self.names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _named  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave sentences alone."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave words alone."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave types alone."""
        if node.value:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Leave what only a type checker reads."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            self._between(left, right, *COMPARED[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (node.left, node.right)
        words = any(isinstance(t, ast.Constant) and isinstance(t.value, str) for t in texts)
        if type(node.op) in COMPUTED and not words:
            self._between(node.left, node.right, *COMPUTED[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not) and self.lines[node.lineno - 1].isascii():
            self._add(node.lineno, node.col_offset, "not ", "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool | int) and self.lines[node.lineno - 1].isascii():
            old = self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            opposite = str(not node.value) if isinstance(node.value, bool) else f"({old} + 1)"
            self._add(node.lineno, node.col_offset, old, opposite)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and node.lineno == node.end_lineno and self.names:
            line = self.lines[node.lineno - 1]
            self._add(node.lineno, node.col_offset, line[node.col_offset :], "pass")
        self.generic_visit(node)


def draw(root: Path, seed: int, count: int) -> list[Fault]:
    """`count` faults of the sources below `root`, at most three in one file."""
    faults: list[Fault] = []
    for path in sorted(p for room in ROOMS for p in (root / room).rglob("*.py")):
        if path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
            continue  # packprep/loaders is loaders
        source = path.read_text()
        sites = _Sites(str(path.relative_to(root)), source)
        sites.visit(ast.parse(source))
        faults += sites.faults
    random.Random(seed).shuffle(faults)
    chosen: list[Fault] = []
    taken: dict[str, int] = defaultdict(int)
    for fault in faults:
        if taken[fault.path] < PER_FILE and len(chosen) < count:
            taken[fault.path] += 1
            chosen.append(fault)
    return chosen


def _functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*names, child.name)
                yield ".".join(inner), child.lineno, child.end_lineno or child.lineno
                yield from walk(child, inner)

    yield from walk(tree, ())


class Tree:
    """A working tree, and which of its tests touch which line."""

    def __init__(self, root: Path, contexts: Path, marks: str, pytest: list[str]) -> None:
        self.root, self.pytest = root, pytest
        self._touched: dict[str, dict[int, set[int]]] = {}
        self._data = sqlite3.connect(contexts)
        collected = self._collected(marks)
        self._tests: dict[int, str] = {}
        for number, context in self._data.execute("select id, context from context"):
            test = context.rpartition("|")[0]
            if test in collected:
                self._tests[number] = test
        self._width: dict[str, int] = defaultdict(int)  # files that a test touches
        for number, files in self._data.execute(
            "select context_id, count(distinct file_id) from arc group by context_id"
        ):
            if number in self._tests:
                self._width[self._tests[number]] += files

    def _collected(self, marks: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", marks]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        return {line for line in done.stdout.splitlines() if "::" in line}

    def place(self, fault: Fault) -> Fault | None:
        """The fault where it is in this tree; None if its line is gone."""
        path = self.root / fault.path
        if not path.exists():
            return None
        source = path.read_text()
        spans = [(1, len(source.splitlines()))]
        if fault.function:
            tree = ast.parse(source)
            spans = [(a, b) for name, a, b in _functions(tree) if name == fault.function]
        lines = source.splitlines()
        for start, end in spans:
            for number in range(start, end + 1):
                if lines[number - 1].strip() == fault.text:
                    return fault._replace(line=number)
        return None

    def _lines(self, path: str) -> dict[int, set[int]]:
        """Contexts of each line of a file that a test touched."""
        if path not in self._touched:
            touched: dict[int, set[int]] = defaultdict(set)
            query = (
                "select a.context_id, a.fromno, a.tono from arc a join file f on f.id = a.file_id"
                " where f.path like ?"
            )
            for number, *ends in self._data.execute(query, (f"%/{path}",)):
                for line in ends:
                    if line > 0 and number in self._tests:
                        touched[line].add(number)
            bits = (
                "select b.context_id, b.numbits from line_bits b join file f on f.id = b.file_id"
                " where f.path like ?"
            )
            for number, numbits in self._data.execute(bits, (f"%/{path}",)):
                for line in numbits_to_nums(numbits) if number in self._tests else ():
                    touched[line].add(number)
            self._touched[path] = touched
        return self._touched[path]

    def tests(self, fault: Fault) -> list[str]:
        """Tests that touch the line of a fault, the most special first.

        A compiled kernel, and what ran in another process, has no contexts: then the tests that
        touch a line which names the function, or else those that touch its file.
        """
        lines = self._lines(fault.path)
        numbers = set(lines.get(fault.line, set()))
        name, seen = fault.function.rpartition(".")[2], set[str]()
        while not numbers and name and name not in seen:
            seen.add(name)
            numbers, name = self._callers(name)
        if not numbers:
            numbers = set().union(*lines.values())
        names = {self._tests[number] for number in numbers}
        return sorted(names, key=lambda test: (self._width[test], test))

    def _callers(self, name: str) -> tuple[set[int], str]:
        """Contexts of the lines that name a function, and one function that they stand in."""
        found, outer = set[int](), ""
        for path in sorted(p for room in ROOMS for p in (self.root / room).rglob("*.py")):
            source = path.read_text()
            if not re.search(rf"\b{name}\b", source):
                continue
            functions = list(_functions(ast.parse(source)))
            touched = self._lines(str(path.relative_to(self.root)))
            for number, line in enumerate(source.splitlines(), 1):
                if re.search(rf"\b{name}\b", line) and not line.lstrip().startswith(
                    ("def ", "import ", "from ")
                ):
                    found |= touched.get(number, set())
                    inside = [n for n, start, end in functions if start <= number <= end]
                    outer = inside[-1].rpartition(".")[2] if inside else outer
        return found, outer

    def try_fault(
        self, fault: Fault, seconds: float, without: Collection[str] = ()
    ) -> tuple[str, str]:
        """("found", the test), ("missed", ""), or ("gone", "")."""
        placed = self.place(fault)
        if placed is None:
            return "gone", ""
        tests = [test for test in self.tests(placed) if test not in without]
        path = self.root / placed.path
        sound = path.read_bytes()
        lines = sound.decode().splitlines(keepends=True)
        line = lines[placed.line - 1]
        at = len(line) - len(line.lstrip()) + placed.column
        assert line[at : at + len(placed.old)] == placed.old, placed
        lines[placed.line - 1] = line[:at] + placed.new + line[at + len(placed.old) :]
        try:
            path.write_text("".join(lines))
            code, failed = self._run(["-x", *tests[:MOST_TESTS]], seconds)
        finally:
            path.write_bytes(sound)
        if not tests or code in (0, None):
            return "missed", ""
        return "found", failed[0] if failed else "import"

    def unsound(self, tests: Iterable[str]) -> set[str]:
        """Those of the tests that fail without a fault."""
        names = sorted(tests)
        return set(self._run(names, 30.0 * len(names))[1]) if names else set()

    def _run(self, arguments: list[str], seconds: float) -> tuple[int | None, list[str]]:
        """Exit code, None if the time was up, and the tests that failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE"]
        process = subprocess.Popen(
            [*command, *self.pytest, *arguments],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        started = time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            if _used(process.pid) > seconds or time.monotonic() - started > 5 * seconds + 60:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None, []
        assert process.stdout is not None
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", process.stdout.read(), re.M)
        return process.returncode, failed


def _used(group: int) -> float:
    """CPU seconds of the processes of a group, with those of the children they waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@click.group(help=__doc__.partition("\n")[0])
def main() -> None:
    """Run one of the commands below."""


@main.command("draw")
@click.option("--seed", default=1, show_default=True, help="Of the choice.")
@click.option("--count", default=200, show_default=True, help="Number of faults.")
def draw_command(seed: int, count: int) -> None:
    """Choose faults; JSON to stdout."""
    print(json.dumps([fault._asdict() for fault in draw(Path.cwd(), seed, count)], indent=0))


@main.command()
@click.argument("faults", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--contexts", required=True, type=click.Path(exists=True, path_type=Path), help="Of coverage."
)
@click.option("--marks", default="", help='Tests to use, as in pytest -m ("not long").')
@click.option("--pytest", "arguments", default="", help="More arguments of pytest.")
@click.option("--seconds", default=60.0, show_default=True, help="Of CPU, for each fault.")
@click.option("--part", default="1/1", show_default=True, help="i/n: every n-th fault.")
@click.option("--first", default=0, help="Leave out the faults before this one.")
def run(
    faults: Path, contexts: Path, marks: str, arguments: str, seconds: float, part: str, first: int
) -> None:
    """Try faults on the tests; a line of JSON for each, the last one of a fault counts."""
    tree = Tree(Path.cwd(), contexts, marks, arguments.split())
    number_of, parts = map(int, part.split("/"))
    rows = json.loads(faults.read_text())
    unsound, found = set[str](), dict[int, str]()

    def try_one(number: int) -> None:
        started = time.monotonic()
        result, test = tree.try_fault(Fault(**rows[number]), seconds, unsound)
        found[number] = test
        took = round(time.monotonic() - started, 1)
        print(json.dumps({"fault": number, "result": result, "test": test, "s": took}), flush=True)

    for number in range(number_of - 1, len(rows), parts):
        if number >= first:
            try_one(number)
    while more := tree.unsound({test for test in found.values() if "::" in test} - unsound):
        unsound |= more
        for number in [number for number, test in found.items() if test in more]:
            try_one(number)


if __name__ == "__main__":
    main()
