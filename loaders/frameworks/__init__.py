"""Shards or a loader for another loading library, and metrics of batches for its training loop."""

# Each imports its library when it is used. Resuming and sharding are those of the library where it
# reads packs by number (Grain, torchtitan), else those of PackedLoader.

from .iterable import to_iterable_dataset
from .lightning import to_data_module
from .maxtext import MaxTextSource
from .metrics import PackMetrics
from .nodes import to_node
from .torchtitan import TorchtitanSource
from .trainer_metrics import log_pack_metrics

__all__ = [
    "MaxTextSource",
    "PackMetrics",
    "TorchtitanSource",
    "log_pack_metrics",
    "to_data_module",
    "to_iterable_dataset",
    "to_node",
]
