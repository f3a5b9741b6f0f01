"""Plant small faults in the product, one at a time, and tell which of them the tests find.

\b
    planted_faults.py --contexts .coverage --seed 1 --count 230 --marks "not long" > found.json

Chooses operators, constants, conditions and calls of packprep, loaders and schemas. Needs a data
file of coverage of this tree that knows which test touched a line (`pytest --cov-branch
--cov-context=test`). Each fault is tried only on tests that touched its line, the most special ones
first, until one fails or 60 seconds of CPU are used. At the end the tests that found faults run
without any; where one fails, its faults are tried again without it. Prints a line of JSON for each
fault, of which the last counts. Files of the working tree are changed and put back: use a clean
clone.
"""

import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
from coverage import CoverageData

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
    """One change of a line: `old`, at `column`, becomes `new`."""

    path: str
    function: str
    line: int
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
        function = ".".join(self.names)
        self.faults.append(Fault(self.path, function, line, column, old, new))

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


class Tree:
    """A working tree, and which of its tests touch which line."""

    def __init__(self, root: Path, contexts: Path, marks: str) -> None:
        self.root = root
        self._touched: dict[str, dict[int, set[str]]] = defaultdict(dict)
        self._width: dict[str, int] = defaultdict(int)  # files that a test touches
        collected, data = self._collected(marks), CoverageData(str(contexts))
        data.read()
        for path in data.measured_files():
            tests = {
                line: {context.rpartition("|")[0] for context in found} & collected
                for line, found in data.contexts_by_lineno(path).items()
            }
            self._touched[os.path.relpath(os.path.realpath(path), root)] = tests
            for test in set().union(*tests.values()):
                self._width[test] += 1

    def _collected(self, marks: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", marks]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        return {line for line in done.stdout.splitlines() if "::" in line}

    def tests(self, fault: Fault) -> list[str]:
        """Tests that touch the line of a fault, the most special first.

        A compiled kernel, and what ran in another process, has no contexts: then the tests that
        touch a line which names the function, or else those that touch its file.
        """
        lines = self._touched[fault.path]
        found = lines.get(fault.line) or self._callers(fault.function.rpartition(".")[2])
        found = found or set().union(*lines.values())
        return sorted(found, key=lambda test: (self._width[test], test))

    def _callers(self, name: str) -> set[str]:
        """Tests that touch the lines that name a function."""
        found = set[str]()
        for path in sorted(p for room in ROOMS for p in (self.root / room).rglob("*.py") if name):
            touched = self._touched[str(path.relative_to(self.root))]
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(rf"\b{name}\b", line) and not re.match(r"\s*(def|import|from) ", line):
                    found |= touched.get(number, set())
        return found

    def try_fault(
        self, fault: Fault, seconds: float, without: Collection[str] = ()
    ) -> tuple[str, str]:
        """("found", the test), or ("missed", "")."""
        path = self.root / fault.path
        sound = path.read_bytes()
        lines = sound.decode().splitlines(keepends=True)
        line, at = lines[fault.line - 1], fault.column
        tests = [test for test in self.tests(fault) if test not in without]
        if not tests:
            return "missed", ""
        lines[fault.line - 1] = line[:at] + fault.new + line[at + len(fault.old) :]
        try:
            path.write_text("".join(lines))
            code, failed = self._run(["-x", *tests[:MOST_TESTS]], seconds)
        finally:
            path.write_bytes(sound)
        if code in (0, None):
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
            [*command, *arguments],
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


@click.command(help=__doc__)
@click.option(
    "--contexts", required=True, type=click.Path(exists=True, path_type=Path), help="Of coverage."
)
@click.option("--seed", default=1, show_default=True, help="Of the choice.")
@click.option("--count", default=200, show_default=True, help="Number of faults.")
@click.option("--marks", default="", help='Tests to use, as in pytest -m ("not long").')
@click.option("--seconds", default=60.0, show_default=True, help="Of CPU, for each fault.")
@click.option("--part", default="1/1", show_default=True, help="i/n: every n-th fault.")
def main(contexts: Path, seed: int, count: int, marks: str, seconds: float, part: str) -> None:
    tree, faults = Tree(Path.cwd(), contexts, marks), draw(Path.cwd(), seed, count)
    number_of, parts = map(int, part.split("/"))
    unsound, found = set[str](), dict[int, str]()

    def try_one(number: int) -> None:
        started = time.monotonic()
        result, test = tree.try_fault(faults[number], seconds, unsound)
        found[number] = test
        row = {"fault": number, **faults[number]._asdict(), "result": result, "test": test}
        print(json.dumps(row | {"s": round(time.monotonic() - started, 1)}), flush=True)

    for number in range(number_of - 1, len(faults), parts):
        try_one(number)
    while more := tree.unsound({test for test in found.values() if "::" in test} - unsound):
        unsound |= more
        for number in [number for number, test in found.items() if test in more]:
            try_one(number)


if __name__ == "__main__":
    main()
