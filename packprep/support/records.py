"""Files that are written whole or not at all, and receipts.

A receipt is a dataclass in a file of canonical JSON with a digest of itself.
"""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, TypeVar, Union, get_args, get_origin, get_type_hints

from ..schemas.files import Files, parse_signed, signed_json

_Value = TypeVar("_Value")


@contextmanager
def writing(path: Path, *, synced: bool = True) -> Iterator[BinaryIO]:
    """A file that appears, complete and on disk, at the end of the block, or never.

    Its temporary name has host and process, so that two processes may write it. The error of a full
    disk names the folder. synced: False for a file that a power cut may damage, because its digest
    is checked before it is used.
    """
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = str(path.parent)
        raise
    temporary.replace(path)
    if synced:
        sync_folder(path.parent)


def write_file(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Write a file whole or not at all. synced: see `writing`."""
    with writing(path, synced=synced) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_record(path: Path, value: Any, *, synced: bool = True) -> None:
    """Write a dataclass whole or not at all. synced: see `writing`."""
    write_file(path, signed_json(json.loads(json.dumps(asdict(value)))), synced=synced)


def read_record(files: Files, name: str, kind: type[_Value]) -> _Value | None:
    """What `write_record` wrote; None if that is missing, damaged or of another form."""
    try:
        made: _Value = _made(kind, parse_signed(files.read(name), name))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return made


def _made(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind in (Any, object):
        return value
    if origin in (UnionType, Union):
        return None if value is None else _made(inner[0], value)
    hints: Any
    if hasattr(origin, "__dataclass_fields__"):
        hints = get_type_hints(origin)
        return origin(**{name: _made(hints[name], item) for name, item in value.items()})
    if issubclass(origin, tuple):
        if hints := getattr(origin, "__annotations__", None):  # a named tuple
            return origin(*(_made(k, v) for k, v in zip(hints.values(), value, strict=True)))
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_made(k, v) for k, v in zip(kinds, value, strict=True))
    if inner:  # a mapping
        # JSON has keys as text, and 10 is before 2 there.
        return dict(sorted((inner[0](key), _made(inner[1], item)) for key, item in value.items()))
    if type(value) is not origin and (origin, type(value)) != (float, int):
        raise ValueError(f"{value!r} is not of type {origin.__name__}")
    return value
