"""packprep: text datasets in, packed training shards out, with every token accounted for.

Names are loaded when first used, so that `import packprep` and the command line start fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

from packprep.support.version import __version__ as __version__

if TYPE_CHECKING:
    from packprep.config.build_config import BuildConfig as BuildConfig
    from packprep.execute.map_stage import TokenizeAndPack as TokenizeAndPack
    from packprep.execute.map_stage import pack_dataset as pack_dataset
    from packprep.execute.pipeline import build as build
    from packprep.execute.stored import pack as pack
    from packprep.execute.stored import tokenize as tokenize
    from packprep.in_trainer import dataset as dataset
    from packprep.in_trainer import shards as shards
    from packprep.packing.api import pack_lengths as pack_lengths
    from packprep.packing.plan import PackPlan as PackPlan
    from packprep.packing.sampler import MultipackSampler as MultipackSampler
    from packprep.support.errors import ConfigError as ConfigError
    from packprep.support.errors import InputError as InputError
    from packprep.support.errors import PackprepError as PackprepError
    from packprep.support.errors import StoppedError as StoppedError

_HOME = {
    "BuildConfig": "config.build_config",
    "ConfigError": "support.errors",
    "InputError": "support.errors",
    "MultipackSampler": "packing.sampler",
    "PackPlan": "packing.plan",
    "PackprepError": "support.errors",
    "StoppedError": "support.errors",
    "TokenizeAndPack": "execute.map_stage",
    "build": "execute.pipeline",
    "dataset": "in_trainer",
    "pack": "execute.stored",
    "pack_dataset": "execute.map_stage",
    "pack_lengths": "packing.api",
    "shards": "in_trainer",
    "tokenize": "execute.stored",
}
__all__ = [
    "BuildConfig",
    "ConfigError",
    "InputError",
    "MultipackSampler",
    "PackPlan",
    "PackprepError",
    "StoppedError",
    "TokenizeAndPack",
    "build",
    "dataset",
    "pack",
    "pack_dataset",
    "pack_lengths",
    "shards",
    "tokenize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'packprep' has no attribute {name!r}")
    return getattr(importlib.import_module(f"packprep.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
