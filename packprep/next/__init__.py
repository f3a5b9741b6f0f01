"""The second edition, in the making: `python -m packprep.next`; not in wheels, pages or help.

Names are loaded when they are first used, so that the command line starts fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.options import BuildConfig as BuildConfig
    from .packing.api import pack_lengths as pack_lengths
    from .run.build import build as build
    from .run.build import pack as pack
    from .run.build import tokenize as tokenize

_HOME = {
    "BuildConfig": "config.options",
    "build": "run.build",
    "pack": "run.build",
    "pack_lengths": "packing.api",
    "tokenize": "run.build",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
