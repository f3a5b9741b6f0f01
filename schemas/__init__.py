"""The contract between the writer and every reader: columns, manifest, files and checks."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .canonical import canonical_json as canonical_json
    from .canonical import digest_of as digest_of
    from .columns import FILLER as FILLER
    from .columns import NO_LOSS as NO_LOSS
    from .columns import STANDARD_COLUMNS as STANDARD_COLUMNS
    from .columns import Column as Column
    from .columns import check_schema as check_schema
    from .columns import shard_schema as shard_schema
    from .errors import FormatError as FormatError
    from .findings import Finding as Finding
    from .findings import Findings as Findings
    from .ledger import check_ledger as check_ledger
    from .listed import check_files as check_files
    from .manifest import FORMAT_VERSION as FORMAT_VERSION
    from .manifest import FileEntry as FileEntry
    from .manifest import Manifest as Manifest
    from .manifest import SplitCounts as SplitCounts
    from .manifest import read_manifest as read_manifest
    from .storage.remote import RemoteOutput as RemoteOutput
    from .storage.store_errors import StoreError as StoreError
    from .validate import check_batch as check_batch
    from .validate import sound_parts as sound_parts

# To colour an error, numba replaces sys.stdout and sys.stderr for a moment, and raises and catches
# hundreds while it loads and compiles. That is in another thread than the one that writes.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

# Module of each public name, loaded when the name is first used.
_HOME = {
    "FILLER": "columns",
    "FORMAT_VERSION": "manifest",
    "NO_LOSS": "columns",
    "STANDARD_COLUMNS": "columns",
    "Column": "columns",
    "FileEntry": "manifest",
    "Finding": "findings",
    "Findings": "findings",
    "FormatError": "errors",
    "Manifest": "manifest",
    "RemoteOutput": "storage.remote",
    "SplitCounts": "manifest",
    "StoreError": "storage.store_errors",
    "canonical_json": "canonical",
    "check_batch": "validate",
    "check_files": "listed",
    "check_ledger": "ledger",
    "check_schema": "columns",
    "digest_of": "canonical",
    "read_manifest": "manifest",
    "shard_schema": "columns",
    "sound_parts": "validate",
}
__all__ = [
    "FILLER",
    "FORMAT_VERSION",
    "NO_LOSS",
    "STANDARD_COLUMNS",
    "Column",
    "FileEntry",
    "Finding",
    "Findings",
    "FormatError",
    "Manifest",
    "RemoteOutput",
    "SplitCounts",
    "StoreError",
    "canonical_json",
    "check_batch",
    "check_files",
    "check_ledger",
    "check_schema",
    "digest_of",
    "read_manifest",
    "shard_schema",
    "sound_parts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'packprep.schemas' has no attribute {name!r}")
    return getattr(importlib.import_module(f"packprep.schemas.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
