"""Files of an output directory: their names, safe paths, and the list in state.json."""

import json
import re
from pathlib import Path, PurePosixPath

from .errors import FormatError

MANIFEST = "manifest.json"
SUFFIX = ".incomplete"  # of the directory in which an output is made, next to it
BUILD = "build.json"  # in that directory: what is built there

# Characters of a file or folder name. File systems allow 255 bytes, and our names are short.
_LONGEST_NAME = 200
_SPLIT = re.compile(r"\w+([.-]\w+)*", re.ASCII)


def shard_name(shard: int, shards: int) -> str:
    """Name of a shard, such as data-00003-of-00010.arrow.

    At least five digits, so that names sort in order.
    """
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def check_path(path: str, where: str = MANIFEST) -> PurePosixPath:
    """Check a path of a file; raise FormatError for a bad one.

    It must be relative, with forward slashes, and stay inside its directory. The disk is not read.
    """
    bad = (
        not isinstance(path, str)
        or not path
        or "\\" in path
        or "\0" in path
        or ":" in path  # C:file is relative on Linux and on a drive on Windows
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
    """Check the name of a split, which is also its directory; raise FormatError for a bad one."""
    if not isinstance(split, str) or not _SPLIT.fullmatch(split):
        raise FormatError(
            f"{where} names the split {split!r}; expected letters, digits and _, joined by '.' or "
            "'-'"
        )
    return split


def inside(directory: Path, path: str, where: str = MANIFEST) -> Path:
    """`directory / path`. Raises FormatError if the path or a link in it leaves the directory."""
    joined = directory / check_path(path, where)
    try:
        stays = joined.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):  # links in a circle
        stays = False
    if not stays:
        raise FormatError(
            f"{where} names the file {path!r}, which is a link out of {directory}; replace the "
            "link with a copy of the file"
        )
    return joined


def saved_files(directory: Path) -> tuple[Path, ...]:
    """The Arrow files of any saved dataset, in row order, from its state.json.

    Raises FormatError if the directory is not a saved dataset.
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
