"""Reads what packprep wrote, with numpy and pyarrow alone."""

from .shards import Pack, PackedShards, Segment

__all__ = ["Pack", "PackedShards", "Segment"]
