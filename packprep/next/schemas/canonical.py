"""Canonical JSON: equal values have equal bytes, so any changed byte is noticed.

Keys are sorted by code point. There are no spaces, no NaN and no escapes that JSON does not
require; the text is UTF-8 and ends with a newline.

>>> canonical_json({"b": [1, 2.5], "a": "é"})
b'{"a":"\\xc3\\xa9","b":[1,2.5]}\\n'
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .errors import FormatError

OF_ITSELF = "sha256"


def canonical_json(value: Any) -> bytes:
    """Canonical JSON of a value of dicts, lists, text, numbers, bools and None.

    Raises ValueError for anything else.
    """
    options: dict[str, Any] = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False}
    try:
        return json.dumps(value, separators=(",", ":"), **options).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"value has no canonical JSON form: {error}") from None


def digest_of(value: Any) -> str:
    """Hex sha256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def signed_json(value: Mapping[str, Any]) -> bytes:
    """Canonical JSON of an object and the digest of the rest of it, see `parse_signed`."""
    return canonical_json({**value, OF_ITSELF: digest_of(value)})


def parse_signed(content: bytes, where: str) -> dict[str, Any]:
    """The object in the bytes of `signed_json`, without its digest.

    Raises FormatError unless they are exactly what `signed_json` writes.
    """
    try:
        value = json.loads(content.decode())
        rest = {key: item for key, item in value.items() if key != OF_ITSELF}
        same = canonical_json(value) == content and digest_of(rest) == value.get(OF_ITSELF)
    except (ValueError, RecursionError, AttributeError) as error:
        raise FormatError(
            f"{where} is not JSON that packprep wrote: {error}; restore the file or build again"
        ) from None
    if not same:
        raise FormatError(
            f"{where} has changed since packprep wrote it; restore the file or build again"
        )
    return rest
