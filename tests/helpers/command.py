"""Run the command line in this process, which saves the second that a new interpreter takes."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from packprep.cli.main import main

COMPILING = "compiling kernels (first run)\n"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run(*arguments: object, stdin: bytes = b"") -> Result:
    """Run `packprep ARGUMENTS...` and restore the environment."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["packprep", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.dict(os.environ),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
            said = err.getvalue().replace(COMPILING, "")  # if no test came before this one
            return Result(code, out.getvalue(), said)
    raise AssertionError("main returned without an exit code")


def done(*arguments: object) -> Result:
    """Run a command that must end with 0."""
    result = run(*arguments)
    assert result.code == 0, result.err
    return result
