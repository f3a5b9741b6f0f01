"""Files of an output: names, safe paths, digests, and canonical JSON.

In canonical JSON equal values have equal bytes, so any changed byte is noticed. Keys are sorted by
code point. There are no spaces, no NaN and no escapes that JSON does not require; the text is UTF-8
and ends with a newline.

>>> canonical_json({"b": [1, 2.5], "a": "é"})
b'{"a":"\\xc3\\xa9","b":[1,2.5]}\\n'
"""

import hashlib
import importlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
_OF_ITSELF = "sha256"  # key of an object's own digest


class FormatError(ValueError):
    """A file is damaged, or is not what it claims to be.

    The message is one sentence with the file, the place, what was found and what was expected.
    """


class StoreError(Exception):
    """A store refuses, or does not answer: one sentence with the URL. again: trying may help."""

    def __init__(self, sentence: str, *, again: bool = False) -> None:
        super().__init__(sentence)
        self.again = again


class Files:
    """The files of a folder. `files_at` gives those of a URL too, as `remote.RemoteFiles`.

    drafts: folder in which files are written before `put`.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = self.drafts = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def list(self) -> list[str]:
        """Paths of all files, with forward slashes, sorted."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in paths)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        path = self.local(name)
        return path.stat().st_size if path.is_file() else None

    def has(self, name: str, size: int, digest: str = "") -> bool:
        """True if a file is there with this size and digest; of a URL, that is compared later."""
        same = self.size(name) == size
        return same and (not digest or digest_like(digest, self.local(name)) == digest)

    def put(self, *names: str) -> None:
        """Let files appear that are in `drafts`, in this order: in a folder they are there."""

    def local(self, name: str, digest: str = "") -> Path:
        """Path of a file here. Raises FormatError if the name or a link leaves the folder.

        digest: of the file, sha256 or xxh3-128; compared when it is fetched from a URL.
        """
        path = self.root / check_path(name)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise FormatError(
                f"{name} is a link out of {self.root}; replace the link with a copy of the file"
            )
        return path

    def read(self, name: str) -> bytes:
        """Content of a file. Raises FormatError if there is none."""
        try:
            return self.local(name).read_bytes()
        except OSError as error:
            raise FormatError(
                f"{self.root / name} cannot be read: {error.strerror}; expected the finished "
                "output of packprep"
            ) from None


def is_url(place: object) -> bool:
    """True for s3://bucket/packed, False for a file or folder of this machine."""
    return isinstance(place, str) and "://" in place


def files_at(place: str | Path, **of_url: Any) -> Files:
    """The files of a folder, or of a URL. of_url: more arguments of `remote.RemoteFiles`."""
    if not is_url(place):
        return Files(place)
    from .remote import RemoteFiles

    return RemoteFiles(str(place), **of_url)


def shard_name(shard: int, shards: int) -> str:
    """Name of a shard: data-00003-of-00010.arrow; at least five digits, so that names sort."""
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def check_path(path: str) -> PurePosixPath:
    """A relative path with forward slashes that stays in its folder; FormatError for others."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or not parts or {*path} & {*"\\\0:"} or {"..", "/"} & {*parts}:
        raise FormatError(
            f"{path[:200]!r} is not a path of a file in an output; expected a relative path with "
            "forward slashes"
        )
    return PurePosixPath(path)


def file_digest(path: Path, hasher: Any = hashlib.sha256) -> str:
    """Hex digest of the bytes of a file."""
    with path.open("rb", buffering=0) as file:
        return str(hashlib.file_digest(file, hasher).hexdigest())


def digest_like(digest: str, path: Path) -> str:
    """Digest of a file, of the kind of another one: xxh3-128 if that has 32 digits, or sha256."""
    hasher = importlib.import_module("xxhash").xxh3_128 if len(digest) == 32 else hashlib.sha256
    return file_digest(path, hasher)


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of any saved dataset, in row order. Raises FormatError if it is none."""
    try:
        state = json.loads((folder / "state.json").read_bytes())
        names = [entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"{folder / 'state.json'} lists no _data_files; expected what save_to_disk writes"
        ) from None
    if state.get("_indices_data_files"):
        raise FormatError(
            f"{folder} was saved with an indices mapping; call flatten_indices() and save it again"
        )
    return [Files(folder).local(name) for name in names]


def canonical_json(value: Any) -> bytes:
    """Canonical JSON of a value of dicts, lists, text, numbers, bools and None.

    A surrogate that is no character becomes "?". Raises TypeError or ValueError for anything else.
    """
    options: dict[str, Any] = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False}
    return json.dumps(value, separators=(",", ":"), **options).encode(errors="replace") + b"\n"


def digest_of(value: Any) -> str:
    """Hex sha256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def signed_json(value: Mapping[str, Any]) -> bytes:
    """Canonical JSON of an object and the digest of the rest of it, see `parse_signed`."""
    return canonical_json({**value, _OF_ITSELF: digest_of(value)})


def parse_signed(content: bytes, where: str) -> dict[str, Any]:
    """The object in the bytes of `signed_json`, without its digest.

    Raises FormatError unless they are exactly what `signed_json` writes.
    """
    with suppress(ValueError, RecursionError, AttributeError):  # not JSON, or not an object
        value = json.loads(content.decode())
        rest = {key: item for key, item in value.items() if key != _OF_ITSELF}
        if signed_json(rest) == content:
            return rest
    raise FormatError(
        f"{where} has changed since packprep wrote it; restore the file or build again"
    )
