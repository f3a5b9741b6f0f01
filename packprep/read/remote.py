"""Sources at URLs: a mirror of their names in a folder of this machine, filled as files are read.

MIRROR/s3/bucket/data/a.jsonl is s3://bucket/data/a.jsonl. It begins as an empty file of the same
size that nobody may read, so that all that finds files works as on a disk; it is fetched when it is
read. The least recently used files are deleted beyond `CACHE_SIZE` bytes, and fetched again.
"""

import glob
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..schemas.files import check_path
from ..schemas.remote import CACHE_SIZE, RemoteFiles, asked, cached, fetch, opened
from ..support.errors import InputError
from .sources import content_digest
from .types import Source

_OF_DATASETS = ("state.json", "dataset_dict.json")
_TOKENS = re.compile(r"\.(bin|idx|npy|ds)$")
Found = Sequence[tuple[str, Sequence[Path]]]


def files_of(url: str, output: str, mirror: Path, find: Callable[[str], Found]) -> Found:
    """The files that a URL means: those of each source, after its URL.

    find: what a name on this machine means. Files of the output are none. Raises InputError.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("http", "https", "ftp", "file"):
        raise InputError(f"{url} is an address; download it, or pipe it into packprep build -")
    place, sign, split = rest.partition("#")
    root, own = mirror / scheme, tuple(f"{output}{end}/" for end in ("", ".incomplete") if output)
    where, listing = str(RemoteFiles(f"{scheme}://{place}")), dict[str, Any]()
    with asked(where), suppress(FileNotFoundError):  # of a bucket
        files, path = opened(f"{scheme}://{place}")
        wide = _TOKENS.sub(".*", path)  # with the files beside those of token ids
        listing = files.glob(wide, detail=True) or {}
        if not glob.has_magic(path) and not any(f["type"] == "file" for f in listing.values()):
            listing = files.find(path, detail=True) or files.glob(f"{path}.*", detail=True) or {}
    for path, facts in listing.items():
        name = path.strip("/")
        if facts["type"] == "file" and not f"{scheme}://{name}".startswith((*own, "\0")):
            here = root / check_path(name)
            _stand_for(here, facts["size"] or 0)
            if here.name in _OF_DATASETS:
                fetch(f"{scheme}://{name}", here)
    try:
        sources = find(f"{root}/{place}{sign}{split}")
    except InputError as error:
        raise InputError(str(error).replace(f"{root}/", f"{scheme}://")) from None
    return [(name.replace(f"{root}/", f"{scheme}://"), paths) for name, paths in sources]


def _stand_for(path: Path, size: int) -> None:
    """Make an empty file, unless an earlier name has made it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, size)
        path.chmod(0)


def make_ready(source: Source) -> None:
    """Fetch the files of a source that are not here. Raises InputError if they have changed."""
    mirror, fetched = Path(source.mirror), False
    for path in map(Path, source.paths):
        url = path.relative_to(mirror).as_posix().replace("/", "://", 1)
        fetched |= cached(url, path, mirror, CACHE_SIZE)
    if fetched and source.digest and content_digest(source) != source.digest:
        raise InputError(f"{source.name} has changed since the build began; build again")
