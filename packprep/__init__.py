"""packprep: text datasets in, packed training shards out, every token accounted for.

Names are loaded when first used, so that `import packprep` costs nothing and the command line starts at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

from packprep.version import __version__ as __version__

if TYPE_CHECKING:
    from packprep.config import BuildConfig as BuildConfig
    from packprep.mapping import TokenizeAndPack as TokenizeAndPack
    from packprep.mapping import pack_dataset as pack_dataset
    from packprep.packing import pack_lengths as pack_lengths
    from packprep.pipeline import build as build
    from packprep.plan import PackPlan as PackPlan
    from packprep.sampler import MultipackSampler as MultipackSampler

_HOME = {
    "BuildConfig": "config",
    "MultipackSampler": "sampler",
    "PackPlan": "plan",
    "TokenizeAndPack": "mapping",
    "build": "pipeline",
    "pack_dataset": "mapping",
    "pack_lengths": "packing",
}
__all__ = ["BuildConfig", "MultipackSampler", "PackPlan", "TokenizeAndPack", "build", "pack_dataset", "pack_lengths"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'packprep' has no attribute {name!r}")
    return getattr(importlib.import_module(f"packprep.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
