"""Shards or a loader in; a source, dataset, node or data module of another loading library out."""

# Each imports its library when it is used. Resuming and sharding are those of the library where it
# reads packs by number (Grain, torchtitan), else those of PackedLoader.

from .iterable import to_iterable_dataset
from .lightning import to_data_module
from .maxtext import MaxTextSource
from .nodes import to_node
from .torchtitan import TorchtitanSource

__all__ = [
    "MaxTextSource",
    "TorchtitanSource",
    "to_data_module",
    "to_iterable_dataset",
    "to_node",
]
