"""Comparison of the files of an output with its manifest: missing, changed or surplus."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from .canonical import file_digest
from .errors import FormatError
from .files import MANIFEST, inside
from .manifest import FileEntry, Manifest, Output

Level = Literal["size", "sha256"]
# Of a repository on the Hugging Face hub and of its client, beside the files of an output.
_HUB_FILES, _HUB_FOLDER = (".gitattributes", "README.md"), ".cache/huggingface/"
# Results of `map` and `filter` on an opened dataset, and their files while they are written.
_CACHE = re.compile(r"cache-[\w.-]+\.arrow|tmp[a-z0-9_]{8}", re.ASCII)
SURPLUS = "is not in the manifest; expected nothing else in the directory"


def check_file(directory: Output, entry: FileEntry, level: Level = "size") -> Path:
    """The path of one file of an output.

    Raises FormatError if it is outside the directory, missing, or has another size or digest. A
    file at a URL is first fetched into the cache, with its digest checked at any level.
    """
    if level not in get_args(Level):
        raise ValueError(f"level is {level!r}; expected one of {', '.join(get_args(Level))}")
    if isinstance(directory, Path):
        path = inside(directory, entry.path, str(directory / MANIFEST))
    else:
        path = directory.fetch(entry)
    if not path.is_file():
        problem = "is not a file" if path.exists() else "is missing"
        raise FormatError(f"{path} {problem}; the manifest lists it with {entry.bytes} bytes")
    if (size := path.stat().st_size) != entry.bytes:
        raise FormatError(f"{path} has {size} bytes; expected {entry.bytes}")
    if level == "sha256" and (digest := file_digest(path)) != entry.sha256:
        raise FormatError(f"{path} has sha256 {digest}; expected {entry.sha256}")
    return path


def check_files(directory: Path, manifest: Manifest, level: Level = "size") -> list[str]:
    """A sentence for each missing, changed or surplus file; [] if there is none.

    level: "size" costs a stat per file, "sha256" about 0.6 s of CPU per GB.
    """
    findings = []
    for entry in manifest.all_files:
        try:
            check_file(directory, entry, level)
        except FormatError as error:
            findings.append(str(error))
    surplus = surplus_names(names_in(directory), manifest)
    return findings + [f"{directory / name} {SURPLUS}" for name in surplus]


def surplus_names(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Names that are not in the manifest, without caches, and those of a repository on the hub."""
    listed = {MANIFEST, *_HUB_FILES, *(entry.path for entry in manifest.all_files)}
    return [
        name
        for name in names
        if name not in listed and not name.startswith(_HUB_FOLDER) and not is_cache(name)
    ]


def is_cache(name: str) -> bool:
    """True for the name of a file in which `datasets` keeps what it computed of a dataset."""
    return _CACHE.fullmatch(name.rpartition("/")[2]) is not None


def cache_note(names: Sequence[str]) -> str:
    """A sentence about such files of a directory."""
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return (
        f"{names[0]}{more}: datasets keeps results of map there; they are no part of this output "
        "and may be deleted"
    )


def names_in(directory: Path) -> list[str]:
    """Every file below a directory, and links to folders, which are not followed."""
    found: list[str] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        # os.walk does not follow a link to a folder, so the link itself is surplus.
        names += [name for name in folders if Path(folder, name).is_symlink()]
        paths = sorted(Path(folder, name) for name in names)
        found += [path.relative_to(directory).as_posix() for path in paths]
    return found
