"""The contract between the writer and every reader: columns, manifest, files, checks. README.md is the format."""

from .canonical import canonical_json, digest_of, file_digest, same_file
from .columns import FILLER, NO_LOSS, STANDARD_COLUMNS, Column, DType, Kind, check_columns, check_schema, shard_schema
from .errors import FormatError
from .files import (
    MANIFEST,
    check_file,
    check_files,
    check_path,
    inside,
    shard_name,
    sync_directory,
    temporary_name,
    write_dataset_dict,
    write_dataset_files,
    write_file,
)
from .ledger import LEDGER_KEYS, check_ledger
from .manifest import FORMAT_VERSION, FileEntry, Manifest, SplitCounts, parse_manifest, read_manifest, write_manifest
from .validate import check_batch, check_boundaries
from .views import ListView, list_view

__all__ = [
    "FILLER",
    "FORMAT_VERSION",
    "LEDGER_KEYS",
    "MANIFEST",
    "NO_LOSS",
    "STANDARD_COLUMNS",
    "Column",
    "DType",
    "FileEntry",
    "FormatError",
    "Kind",
    "ListView",
    "Manifest",
    "SplitCounts",
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
    "inside",
    "list_view",
    "parse_manifest",
    "read_manifest",
    "same_file",
    "shard_name",
    "shard_schema",
    "sync_directory",
    "temporary_name",
    "write_dataset_dict",
    "write_dataset_files",
    "write_file",
    "write_manifest",
]
