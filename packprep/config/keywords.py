"""Answers to unknown keywords of BuildConfig and of functions that take one."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from packprep.config.options import Options

_NAMES = tuple(spec.name for spec in fields(Options))
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def unknown_option(name: str) -> TypeError:
    """The error for a keyword of BuildConfig that is no option."""
    near = _nearest(name)
    return TypeError(
        f"BuildConfig has no option {name!r}" + (f"; did you mean {near!r}?" if near else "")
    )


def takes_config(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Decorate a function of a BuildConfig: TypeError for an option says where options go."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        for name in keywords:
            if name not in known:
                near = _nearest(name)
                option = f"{near}=..." if near else "..."
                raise TypeError(
                    f"{function.__name__} has no argument {name!r}; options are those of "
                    f"BuildConfig: {function.__name__}(BuildConfig({option}))"
                )
        return function(*arguments, **keywords)

    return checked


def _nearest(name: str) -> str:
    """The option of this or a similar name; "" if there is none."""
    return name if name in _NAMES else next(iter(get_close_matches(name, _NAMES, n=1)), "")
