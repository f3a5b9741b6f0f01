"""One build of a bad source: it leaves a whole output or none, and a refusal is one sentence."""

import json
import sys
from pathlib import Path

from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer

SETTINGS = ("--max-length", "64", "--engine", "hf")


def build(folder: Path, *arguments: object) -> Result:
    """`packprep build ARGUMENTS...` of the tiny tokenizer into folder/out."""
    tokenizer = save_tokenizer(folder / "tokenizer")
    result = run("build", *arguments, "-o", folder / "out", "--tokenizer", tokenizer, *SETTINGS)
    assert (folder / "out").exists() == (result.code == 0), result
    left = (
        folder / "out.incomplete"
    )  # where any text was tokenized; the next command may start over
    assert not left.exists() or (
        result.code and "failed" in json.loads((left / "build.json").read_bytes())
    )
    return result


def refused(folder: Path, *arguments: object) -> str:
    """The one sentence of a build that is refused."""
    result = build(folder, *arguments, "-q")  # not with "compiling kernels (first run)"
    assert (result.code, result.out) == (2, ""), result
    assert result.err.startswith("packprep: "), result.err
    assert result.err.count("\n") == 1, result.err
    return result.err.removeprefix("packprep: ").rstrip("\n")


def command_line(folder: Path, *arguments: object) -> list[str]:
    """The same build as a command of its own."""
    tokenizer = save_tokenizer(folder / "tokenizer")
    where = ("-o", folder / "out", "--tokenizer", tokenizer, *SETTINGS)
    return [sys.executable, "-m", "packprep", "build", *map(str, arguments), *map(str, where)]
