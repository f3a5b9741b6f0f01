"""Compressed files, contents of folders, and options as a Python user writes them."""

import gzip
from collections.abc import Callable
from pathlib import Path
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


def bytes_in(folder: str | Path, *, without: str = "") -> dict[str, bytes]:
    """Contents of all files in a folder, by path; but for those of a name.

    An export.json has the seconds of its run.
    """
    files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in files
        if path.name != without
    }
