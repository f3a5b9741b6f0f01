"""Files of an output: names, safe paths, digests, and canonical JSON.

In canonical JSON equal values have equal bytes, so any changed byte is noticed. Keys are sorted by
code point. There are no spaces, no NaN and no escapes that JSON does not require; the text is UTF-8
and ends with a newline.

>>> canonical_json({"b": [1, 2.5], "a": "é"})
b'{"a":"\\xc3\\xa9","b":[1,2.5]}\\n'
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
_OF_ITSELF = "sha256"  # key of an object's own digest


class FormatError(ValueError):
    """A file is damaged, or is not what it claims to be.

    The message is one sentence with the file, the place, what was found and what was expected.
    """


class Files:
    """The files of a folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def list(self) -> list[str]:
        """Paths of all files, with forward slashes, sorted."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in paths)

    def local(self, name: str) -> Path:
        """Path of a file here. Raises FormatError if the name or a link leaves the folder."""
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

    A surrogate that is no character becomes "?". Raises ValueError for anything else.
    """
    options: dict[str, Any] = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False}
    try:
        return json.dumps(value, separators=(",", ":"), **options).encode(errors="replace") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"value has no canonical JSON form: {error}") from None


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
    try:
        value = json.loads(content.decode())
        rest = {key: item for key, item in value.items() if key != _OF_ITSELF}
        same = canonical_json(value) == content and digest_of(rest) == value.get(_OF_ITSELF)
    except (ValueError, RecursionError, AttributeError) as error:
        raise FormatError(
            f"{where} is not JSON that packprep wrote: {error}; restore the file or build again"
        ) from None
    if not same:
        raise FormatError(
            f"{where} has changed since packprep wrote it; restore the file or build again"
        )
    return rest
