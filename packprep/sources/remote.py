"""Sources in a store: s3://bucket/key, a folder or a glob.

JSON, CSV and text are streamed each time they are read. Readers of Parquet, Arrow, saved datasets
and token files need random access, so these are copied into scratch when they are read, and removed
afterwards: at most one for each process that reads. An object is the same while its version (an
ETag) is. A build stops if one of its objects is replaced.
"""

import glob
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packprep.schemas.storage.stores import Store, Stored
from packprep.sources.digests import (
    digest_of_stream,
    hash_in_threads,
    known_digest,
    remember,
    together,
)
from packprep.sources.empty_files import without_empty
from packprep.sources.formats.datasets_rows import SAVED, chosen_split, data_files
from packprep.sources.formats.raw_files import opened
from packprep.sources.formats.registry import format_of, known_endings, known_format
from packprep.sources.source import Source
from packprep.sources.split_names import of_splits
from packprep.sources.token_files.names import token_sources, tokens_name
from packprep.support.errors import InputError, asked
from packprep.support.progress import Progress
from packprep.support.redact import redacted

_Find = Callable[[str], Stored | None]
_BLOCK = 4 << 20
_AT_ONCE = 8  # objects hashed at a time
_HTTP = ("http", "https", "file", "ftp")


def expand_url(url: str, split: str | None, output: str, progress: Progress) -> list[Source]:
    """Objects that a URL means, sorted bytewise, with their digests; InputError if none.

    A URL that means nothing may end with the splits to read, as in s3://bucket/data#train. split:
    of a saved dataset. output: no source, even if it is in a folder of them.
    """
    protocol, _, rest = url.partition("://")
    if protocol in _HTTP:
        raise InputError(
            f"{url} is an address; packprep reads files, so download it first, or pipe it into "
            "packprep build -"
        )
    if "@" in rest.partition("/")[0]:
        raise InputError(
            f"{url} holds credentials; put them into the environment or the configuration of "
            "the store"
        )
    with asked(InputError):
        found = _expanded(url, split, None, output, progress)
        if found is None and "#" in url:
            name, _, splits = url.rpartition("#")
            found = _expanded(name, splits or split, splits, output, progress)
    if found is not None:
        return found
    if glob.has_magic(url):
        raise InputError(f"no file matches {url}; check the pattern")
    raise InputError(f"{url}: there is no such object and no such folder; check the address")


def _expanded(
    url: str, split: str | None, chosen: str | None, output: str, progress: Progress
) -> list[Source] | None:
    """The sources that a URL means; None if it means nothing.

    split: of a saved dataset. chosen: splits of files, by their names.
    """
    store, start = Store(url), _fixed(url)
    find: _Find = _find
    files: Mapping[str, Stored | None]
    alone = None if url.endswith("/") else store.find("")
    listing = store.list() if alone is None else {}
    if alone is not None:
        start = url.rpartition("/")[0]
        tokens = tokens_name(url, _exists)
        files = {tokens: alone if tokens == url else _find(tokens)}
    elif {"state.json", "dataset_dict.json"} & set(listing):
        return [_saved(store, listing, split)]
    elif listing:
        listed = {store.where(name): stored for name, stored in listing.items()}
        files, find = _folder(store, listed, output), listed.get
    elif glob.has_magic(url):
        files = _matches(url)
    elif _exists(f"{url}.idx"):  # Megatron names both files by what they share
        files = {f"{url}.bin": _find(f"{url}.bin")}
    else:
        return None
    if not files:
        return None

    def is_empty(name: str) -> bool:
        stored = files[name]
        return stored is not None and stored.bytes == 0

    inside = {name.removeprefix(start): name for name in files}
    found = of_splits(inside, url, chosen, progress.say)
    full = without_empty({name: name for name in found}, url, is_empty, progress.say)
    return _sources({name: files[name] for name in full or found}, find)


def _fixed(url: str) -> str:
    """The address of a folder, or of the folder of a pattern before its first sign."""
    return "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), url.split("/")))


def _folder(store: Store, listed: Mapping[str, Stored], output: str) -> dict[str, Stored | None]:
    """All files of a known format in a folder.

    Except hidden files and the output, which may be next to the sources. listed: by URL.
    """
    output_prefix = (
        tuple(f"{output.rstrip('/')}{suffix}/" for suffix in ("", ".incomplete")) if output else ()
    )
    files = [
        url
        for url in listed
        if format_of(url) is not None
        and not _hidden(url.removeprefix(store.url))
        and not url.startswith(output_prefix or "\0")
    ]
    names = token_sources(files, listed.__contains__, lone=False)
    if not names:
        raise InputError(f"{store.url} holds no file of a known format; expected {known_endings()}")
    return {name: listed[name] for name in names}


def _matches(pattern: str) -> dict[str, Stored | None]:
    """Objects of a glob; as on a disk, * and ** skip names that begin with a dot."""
    parts = pattern.split("/")
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    store, rest = Store("/".join(parts[:first])), "/".join(parts[first:])
    dotted = any(part.startswith(".") for part in parts[first:])
    matching = {
        store.where(name): stored
        for name, stored in store.glob(rest).items()
        if dotted or not _hidden(name)
    }
    names = token_sources([*matching], _exists, lone=True)
    return {name: matching.get(name) or _find(name) for name in names}


def _find(url: str) -> Stored | None:
    return Store(url).find("")


def _exists(url: str) -> bool:
    return _find(url) is not None


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _sources(files: Mapping[str, Stored | None], find: _Find) -> list[Source]:
    """Sources of these objects. find: looks up an object by its URL."""
    size = sum(stored.bytes for stored in files.values() if stored is not None)
    return hash_in_threads(lambda file: _source(*file, find), list(files.items()), size, _AT_ONCE)


def _source(url: str, stored: Stored | None, find: _Find) -> Source:
    format_ = known_format(url)
    if stored is None:
        raise InputError(f"{url} does not exist, and its index does; copy both")
    if stored.bytes == 0:
        raise InputError(f"{url} is empty; expected at least one document")
    objects = {url: stored}
    if format_.beside is not None:
        for name in format_.beside(url, lambda name: find(name) is not None):
            if (other := find(name)) is not None:
                objects[name] = other
    return Source(
        redacted(url),
        format_.name,
        url,
        sum(object_.bytes for object_ in objects.values()),
        together([_digest(name, object_) for name, object_ in objects.items()]),
        version="\n".join(object_.version for object_ in objects.values()),
    )


def _digest(url: str, stored: Stored) -> str:
    """sha256 of an object; read only if it is not remembered."""
    key = f"{url} {stored.bytes} {stored.version}"
    if stored.version and (known := known_digest(key)) is not None:
        return known
    with opened(url, stored.version) as file:
        digest = digest_of_stream(file, stored.bytes)
    if stored.version:
        remember(key, digest)
    return digest


def _saved(store: Store, listing: Mapping[str, Stored], asked: str | None) -> Source:
    """A folder that `save_to_disk` has written, or one split of it. asked: this split."""
    prefix = ""
    if "dataset_dict.json" in listing:
        splits = [
            name.partition("/")[0] for name in listing if re.fullmatch("[^/]+/state.json", name)
        ]
        prefix, asked = chosen_split(store.url, sorted(splits), asked) + "/", None
    files = _data_files(store, prefix, listing, asked)
    return Source(
        redacted(store.url),
        SAVED.name,
        store.where(prefix.rstrip("/")),
        sum(listing[name].bytes for name in files),
        together([_digest(store.where(name), listing[name]) for name in files]),
        version="\n".join(listing[name].version for name in files),
    )


def _data_files(
    store: Store, prefix: str, listing: Mapping[str, Stored], asked: str | None = None
) -> list[str]:
    """Names of the data files of a saved dataset. asked: see `data_files`."""
    state = f"{prefix}state.json"
    names = data_files(store.read(state), store.where(state), store.url, asked)
    files = [prefix + name for name in names]
    if missing := [name for name in files if name not in listing]:
        raise InputError(f"{store.url} is incomplete: {missing[0]} is missing")
    return files


@contextmanager
def fetched(source: Source, scratch: Path) -> Iterator[Path]:
    """A copy of a saved dataset's folder in `scratch`, with the data files of its digest."""
    store = Store(str(source.path))
    files = _data_files(store, "", store.list())
    versions = dict(zip(files, source.version.split("\n"), strict=True))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for name in [*files, "state.json", "dataset_info.json"]:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in versions:
                _copy(store.where(name), versions[name], path)
            else:
                path.write_bytes(store.read(name))
        yield Path(folder)


@contextmanager
def fetched_tokens(source: Source, scratch: Path) -> Iterator[Path]:
    """A copy in `scratch` of a file of token ids, with the files beside it."""
    url = str(source.path)
    assert source.format.beside is not None
    names = [url, *source.format.beside(url, _exists)]
    versions = source.version.split("\n")
    if len(names) != len(versions):
        raise InputError(
            f"{source.name} has changed since the build began: files beside it are new or gone; "
            "build again from the start"
        )
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        paths = [Path(folder, name.rpartition("/")[2]) for name in names]
        for name, version, path in zip(names, versions, paths, strict=True):
            _copy(name, version, path)
        yield paths[0]


def _copy(url: str, version: str, path: Path) -> None:
    with path.open("wb") as copy, opened(url, version) as file:
        while block := file.read(_BLOCK):
            copy.write(block)
