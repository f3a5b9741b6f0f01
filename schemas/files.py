"""The files of an output directory: names, safe paths, whole writes, and the JSON `datasets` needs.

A file is written under a temporary name, synced and renamed, so a name in the directory always
means whole contents.
"""

import json
import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from .canonical import canonical_json
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


def write_file(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all: temporary name, sync, rename, sync of the directory."""
    temporary = temporary_name(path)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def temporary_name(path: Path) -> Path:
    """Name of a file until it is whole.

    Another one in each process, for two may write the same file.
    """
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_dataset_files(
    directory: Path, files: Sequence[str], *, fingerprint: str, split: str | None
) -> None:
    """state.json and dataset_info.json, which make `directory` open with `datasets.load_from_disk`.

    files: names of the shards in `directory`, in row order, one at least. fingerprint: lower-case
    hex, at most 64 characters, of the content: `datasets` names its caches by it. split: e.g.
    "train", or None.
    """
    if not files:
        raise FormatError(
            f"{directory} has no shards; datasets opens no dataset without one, so write one with "
            "0 packs"
        )
    for name in files:
        if len(check_path(name, str(directory / "state.json")).parts) != 1:
            raise FormatError(
                f"{directory / 'state.json'} names the file {name!r}; expected a name in the same "
                "directory"
            )
    if not re.fullmatch(r"[0-9a-f]{1,64}", fingerprint):
        raise FormatError(
            f"fingerprint is {fingerprint!r}; expected up to 64 lower-case hex characters"
        )
    if split is not None:
        check_split(split, str(directory / "state.json"))
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_file(directory / "state.json", canonical_json(state))
    # No features: they are inferred from the Arrow types, which every version reads alike.
    write_file(directory / "dataset_info.json", canonical_json({}))


def write_dataset_dict(directory: Path, splits: Iterable[str]) -> None:
    """Write dataset_dict.json, which makes `directory` a DatasetDict.

    Of the sub-directories named, in this order.
    """
    path = directory / "dataset_dict.json"
    write_file(
        path, canonical_json({"splits": [check_split(split, str(path)) for split in splits]})
    )


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
