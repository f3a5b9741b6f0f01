"""Canonical JSON: equal values have equal bytes, so any changed byte is noticed.

Keys are sorted by code point. There are no spaces, no NaN and no escapes that JSON does not
require; the text is UTF-8 and ends with a newline.

>>> canonical_json({"b": [1, 2.5], "a": "é"})
b'{"a":"\\xc3\\xa9","b":[1,2.5]}\\n'
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .errors import FormatError


def canonical_json(value: Any) -> bytes:
    """Canonical JSON of a value.

    value: dict with string keys, list, tuple, str, int, float, bool or None. Raises ValueError for
    anything else.
    """
    _check_keys([value])
    try:
        text = json.dumps(
            value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"value has no canonical JSON form: {error}") from None


def digest_of(value: Any) -> str:
    """Hex sha256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def parse_canonical(content: bytes, where: str) -> Any:
    """Parse `content`; raise FormatError unless it is exactly what `canonical_json` writes."""
    try:
        value = json.loads(content.decode())
        same = canonical_json(value) == content
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where} is not JSON that packprep wrote: {error}; restore the file or build again"
        ) from None
    if not same:
        # Such as a repeated key, or keys in another order.
        raise FormatError(
            f"{where} is JSON but not in the canonical form that packprep writes; another program "
            "has rewritten it, so restore the file"
        )
    return value


def parse_json(content: bytes | str) -> Any:
    """Value of JSON in any form. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if it is missing or damaged."""
    try:
        loaded = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def file_digest(file: Path | IO[bytes], hasher: Callable[[], Any] = hashlib.sha256) -> str:
    """Hex digest of a file's bytes, or of the rest of an open one.

    Costs about 0.6 s of CPU per GB with sha256.
    """
    if isinstance(file, Path):
        with file.open("rb", buffering=0) as opened:
            return file_digest(opened, hasher)
    return str(hashlib.file_digest(file, hasher).hexdigest())  # type: ignore[arg-type]


def file_xxh3(path: Path) -> str:
    """Hex xxh3_128 of a file's bytes, for token files; as fast as the file can be read."""
    try:
        import xxhash
    except ImportError:
        raise ImportError(
            "xxhash is needed to compare token files with their digests; pip install xxhash, or "
            "leave out verify=True"
        ) from None
    return file_digest(path, xxhash.xxh3_128)


def file_size(path: Path) -> int | None:
    """Bytes of a file; None if it does not exist."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_keys(value: Any) -> None:
    """Raise ValueError for a key that is no string, in a dict, list or tuple."""
    # json.dumps would turn the key 1 into "1", so two values would have one form.
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"value has no canonical JSON form: key {key!r} is not a string")
        value = value.values()
    for item in value:
        if isinstance(item, dict | list | tuple):
            _check_keys(item)
