"""Options that several commands have: their metavar says what their value is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from packprep.cli.amount_types import CountType, ShareType, SizeType
from packprep.cli.completion import of_paths

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

VALUES: Mapping[str, Mapping[str, Any]] = {
    "DIR": {"shell_complete": of_paths("dir")},
    "DIR|URL": {"shell_complete": of_paths("dir")},
    "FILE": {"type": click.Path(path_type=Path)},
    "PATH|NAME": {"shell_complete": of_paths()},
    "N": {"type": CountType(1)},
    "SHARE": {"type": ShareType()},
    "SIZE": {"type": SizeType()},
}
"""Type and completion of a value, by its metavar."""


def value_option(metavar: str, *names: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Decorator that adds an option with a value of `VALUES`. settings: for `click.option`."""
    return click.option(*names, metavar=metavar, **{**VALUES[metavar], **settings})


STORE_OPTION = value_option(
    "DIR",
    "--store",
    multiple=True,
    help="Token store of an index, if it has moved; repeat it for several stores.",
)
QUIET_OPTION = click.option("-q", "--quiet", is_flag=True, help="Print no progress and no table.")


def json_option(what: str = "JSON") -> Callable[[Decorated], Decorated]:
    """Decorator that adds --json. what: it prints, for the help."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what}.")
