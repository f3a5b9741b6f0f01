#!/usr/bin/env python3
"""Number of product files that have a word in their code, which is not docstrings and comments.

\b
scripts/checks/word_spread.py                  phase, epoch, tree, pair and turn, and their plurals
scripts/checks/word_spread.py window --files   another word, and the files that have it
"""

import ast
import re
import subprocess
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
WORDS = ("phase", "epoch", "tree", "pair", "turn")


@click.command(help=__doc__)
@click.argument("words", nargs=-1)
@click.option("--files", is_flag=True, help="List the files too.")
def main(words: tuple[str, ...], files: bool) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "packprep/*.py", "loaders/*.py", "schemas/*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    code = {name: code_of((ROOT / name).read_text()) for name in listed}
    total = 0
    for word in words or WORDS:
        found = [name for name in listed if re.search(rf"\b{word}s?\b", code[name], re.IGNORECASE)]
        total += len(found)
        click.echo(f"{len(found):4} {word}")
        for name in found if files else ():
            click.echo(f"       {name}")
    click.echo(f"{total:4} in all")


def code_of(source: str) -> str:
    """The source without comments and strings that are statements."""
    module = ast.parse(source)
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(module)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


if __name__ == "__main__":
    main()
