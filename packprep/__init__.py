"""Text datasets in, packed training shards out, with every token accounted for.

Names are loaded when they are first used, so that the command line starts fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.options import BuildConfig as BuildConfig
    from .in_trainer import dataset as dataset
    from .in_trainer import shards as shards
    from .packing.api import pack_lengths as pack_lengths
    from .packing.plan import PackPlan as PackPlan
    from .packing.sampler import MultipackSampler as MultipackSampler
    from .run.build import build as build
    from .run.build import pack as pack
    from .run.build import tokenize as tokenize
    from .run.map import TokenizeAndPack as TokenizeAndPack
    from .run.map import pack_dataset as pack_dataset
    from .support.errors import ConfigError as ConfigError
    from .support.errors import InputError as InputError
    from .support.errors import PackprepError as PackprepError
    from .support.errors import StoppedError as StoppedError

_HOME = {
    "BuildConfig": "config.options",
    "ConfigError": "support.errors",
    "InputError": "support.errors",
    "MultipackSampler": "packing.sampler",
    "PackPlan": "packing.plan",
    "PackprepError": "support.errors",
    "StoppedError": "support.errors",
    "TokenizeAndPack": "run.map",
    "build": "run.build",
    "dataset": "in_trainer",
    "pack": "run.build",
    "pack_dataset": "run.map",
    "pack_lengths": "packing.api",
    "shards": "in_trainer",
    "tokenize": "run.build",
}
__all__ = [*_HOME]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
