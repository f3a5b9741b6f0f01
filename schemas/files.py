"""The files of an output directory: their names, safe paths, and what `datasets` lists of them."""

import json
import re
from pathlib import Path, PurePosixPath

from .errors import FormatError

MANIFEST = "manifest.json"

# of a file or folder, in characters; no system takes more than 255 bytes, and ours are short
_LONGEST_NAME = 200
_SPLIT = re.compile(r"\w+([.-]\w+)*", re.ASCII)


def shard_name(shard: int, shards: int) -> str:
    """data-00003-of-00010.arrow. Five digits at least, so that names sort in order."""
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def check_path(path: str, where: str = MANIFEST) -> PurePosixPath:
    """A relative path with forward slashes that stays inside its directory, else FormatError.

    Ignores the disk.
    """
    bad = (
        not isinstance(path, str)
        or not path
        or "\\" in path
        or "\0" in path
        or ":" in path  # C:file is relative for us and a drive elsewhere
        or any(part in ("", ".", "..") for part in path.split("/"))
        or any(len(part) > _LONGEST_NAME for part in path.split("/"))
    )
    if bad:
        raise FormatError(
            f"{where} names the file {str(path)[:_LONGEST_NAME]!r}; "
            "expected a relative path inside its directory, with forward slashes"
        )
    return PurePosixPath(path)


def check_split(split: str, where: str = MANIFEST) -> str:
    """The split's name, which is that of its directory too, else FormatError."""
    if not isinstance(split, str) or not _SPLIT.fullmatch(split):
        raise FormatError(
            f"{where} names the split {split!r}; expected letters, digits and _, joined by '.' or "
            "'-'"
        )
    return split


def inside(directory: Path, path: str, where: str = MANIFEST) -> Path:
    """`directory / path`, or FormatError if the path or a link on the way leaves the directory."""
    found = directory / check_path(path, where)
    try:
        stays = found.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):  # links in a circle
        stays = False
    if not stays:
        raise FormatError(
            f"{where} names the file {path!r}, which is a link out of {directory}; copy the file "
            "in its place"
        )
    return found


def saved_files(directory: Path) -> tuple[Path, ...]:
    """The Arrow files of any saved dataset, in row order, from its state.json.

    FormatError if it is not one.
    """
    state_file = directory / "state.json"
    try:
        state = json.loads(state_file.read_bytes())
        names = [entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"{state_file} lists no _data_files; expected what save_to_disk writes"
        ) from None
    if state.get("_indices_data_files"):
        raise FormatError(
            f"{directory} was saved with an indices mapping; call flatten_indices() and save it "
            "again"
        )
    return tuple(inside(directory, name, str(state_file)) for name in names)
