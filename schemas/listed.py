"""The files of an output against its manifest: what is missing, changed or surplus."""

import os
from pathlib import Path
from typing import Literal, get_args

from .canonical import file_digest
from .errors import FormatError
from .files import MANIFEST, inside
from .manifest import FileEntry, Manifest, Output

Level = Literal["size", "sha256"]
SURPLUS = "is not in the manifest; expected nothing else in the directory"


def check_file(directory: Output, entry: FileEntry, level: Level = "size") -> Path:
    """The path of one file of an output.

    FormatError if it lies outside, is missing, or has another size or digest.

    One at a URL is fetched first, if it is not in the cache yet, with its digest checked whatever
    the level.
    """
    if level not in get_args(Level):
        raise ValueError(f"level is {level!r}; expected one of {', '.join(get_args(Level))}")
    if isinstance(directory, Path):
        path = inside(directory, entry.path, str(directory / MANIFEST))
    else:
        path = directory.fetch(entry)
    if not path.is_file():
        what = "is not a file" if path.exists() else "is missing"
        raise FormatError(f"{path} {what}; the manifest lists it with {entry.bytes} bytes")
    if (size := path.stat().st_size) != entry.bytes:
        raise FormatError(f"{path} has {size} bytes; expected {entry.bytes}")
    if level == "sha256" and (digest := file_digest(path)) != entry.sha256:
        raise FormatError(f"{path} has sha256 {digest}; expected {entry.sha256}")
    return path


def check_files(directory: Path, manifest: Manifest, level: Level = "size") -> list[str]:
    """Missing, changed and surplus files, a sentence each.

    [] when `directory` holds exactly what the manifest lists.

    level "size" costs a stat per file, "sha256" about 0.6 s of CPU per GB.
    """
    findings = []
    for entry in manifest.all_files:
        try:
            check_file(directory, entry, level)
        except FormatError as error:
            findings.append(str(error))
    return findings + [f"{path} {SURPLUS}" for path in surplus_files(directory, manifest)]


def surplus_files(directory: Path, manifest: Manifest) -> list[Path]:
    """Files in `directory` that are not in the manifest."""
    listed = {MANIFEST, *(entry.path for entry in manifest.all_files)}
    found = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        # A link to a folder is not walked into, so it is a surplus entry itself.
        names += [name for name in folders if Path(folder, name).is_symlink()]
        paths = sorted(Path(folder, name) for name in names)
        found += [path for path in paths if path.relative_to(directory).as_posix() not in listed]
    return found
