"""The contract between the writer and every reader: columns, manifest, files and checks."""

from .canonical import canonical_json, digest_of, file_digest, file_size, same_file
from .columns import (
    FILLER,
    NO_LOSS,
    STANDARD_COLUMNS,
    Column,
    DType,
    Kind,
    check_columns,
    check_schema,
    shard_schema,
)
from .errors import FormatError
from .files import (
    MANIFEST,
    check_path,
    inside,
    saved_files,
    shard_name,
    sync_directory,
    temporary_name,
    write_dataset_dict,
    write_dataset_files,
    write_file,
)
from .findings import Finding, Findings
from .ledger import LEDGER_KEYS, check_ledger
from .listed import SURPLUS, check_file, check_files, surplus_files
from .manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    Output,
    SplitCounts,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from .remote import RemoteOutput
from .stores import Store, Stored, StoreError, is_url
from .validate import BatchView, check_batch, check_boundaries, sound_parts
from .views import ListView, list_view

__all__ = [
    "FILLER",
    "FORMAT_VERSION",
    "LEDGER_KEYS",
    "MANIFEST",
    "NO_LOSS",
    "STANDARD_COLUMNS",
    "SURPLUS",
    "BatchView",
    "Column",
    "DType",
    "FileEntry",
    "Finding",
    "Findings",
    "FormatError",
    "Kind",
    "ListView",
    "Manifest",
    "Output",
    "RemoteOutput",
    "SplitCounts",
    "Store",
    "StoreError",
    "Stored",
    "canonical_json",
    "check_batch",
    "check_boundaries",
    "check_columns",
    "check_file",
    "check_files",
    "check_ledger",
    "check_path",
    "check_schema",
    "digest_of",
    "file_digest",
    "file_size",
    "inside",
    "is_url",
    "list_view",
    "parse_manifest",
    "read_manifest",
    "same_file",
    "saved_files",
    "shard_name",
    "shard_schema",
    "sound_parts",
    "surplus_files",
    "sync_directory",
    "temporary_name",
    "write_dataset_dict",
    "write_dataset_files",
    "write_file",
    "write_manifest",
]
