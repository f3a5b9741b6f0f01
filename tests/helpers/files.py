"""Compressed files, and options as a Python user writes them."""

import gzip
from collections.abc import Callable
from typing import Any

import zstandard

from packprep import BuildConfig

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
}


def config(**options: Any) -> BuildConfig:
    """BuildConfig for mypy: also with paths, lists and sizes as text."""
    return BuildConfig(**options)
