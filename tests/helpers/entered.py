"""Modules that a command enters, and code lines of what it calls, in all of its processes.

A module is entered if a function, or the body of a class, of it runs. Counted are the code lines of
the functions and lambdas that are called, and of modules that run other than by an import. Kernels
that are compiled count by their Python wrapper; a small build runs them as plain Python.
"""

import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
Calls = set[tuple[str, int]]  # name and first line of what was called
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
# Python runs this before all else. Each line of the log is written at once, so that nothing is lost
# in a process that is forked or killed.
_TRACER = """
import json, os, sys, threading
seen, log = {}, os.open(os.environ["ENTERED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(os.environ["ENTERED_UNDER"]):
        if code not in seen:
            seen[code] = None
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            imported = code.co_name == "<module>" and "importlib" in caller
            if not imported:
                fact = [code.co_filename, code.co_name, code.co_firstlineno]
                os.write(log, (json.dumps(fact) + "\\n").encode())
threading.setprofile(profile)
sys.setprofile(profile)
"""


def code_lines(path: Path) -> set[int]:
    """Numbers of the lines with code: not blank, no comment and no docstring."""
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return lines - docstring_lines(ast.parse(text))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of the docstrings of a module, of its classes and functions."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            lines |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    return lines


def entered(module: str, arguments: Sequence[str], folder: Path) -> dict[str, int]:
    """Code lines of what `python -m MODULE ARGUMENTS` calls, by module of packprep.

    folder: an empty one, for the tracer and its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "calls"
    log.unlink(missing_ok=True)
    (folder / "sitecustomize.py").write_text(_TRACER)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "ENTERED_LOG": str(log),
        "ENTERED_UNDER": str(ROOT / "packprep"),
    }
    subprocess.run([sys.executable, "-m", module, *arguments], env=environment, check=True)
    calls: dict[Path, Calls] = {}
    for line in log.read_text().splitlines():
        path, name, first = json.loads(line)
        if name not in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"):
            calls.setdefault(Path(path).resolve(), set()).add((name, first))
    return {
        str(path.relative_to(ROOT)): len(code_lines(path) & {*_lines_called(path, of_module)})
        for path, of_module in sorted(calls.items())
    }


def _lines_called(path: Path, calls: Calls) -> Iterator[int]:
    """Lines of the functions and lambdas that were called, and of a module that was run."""
    tree = ast.parse(path.read_text())
    if "<module>" in {name for name, _ in calls}:
        yield from range(1, len(path.read_text().splitlines()) + 1)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            name = node.name
        elif isinstance(node, ast.Lambda):
            first, name = node.lineno, "<lambda>"
        else:
            continue
        if (name, first) in calls:
            yield from range(first, (node.end_lineno or first) + 1)
