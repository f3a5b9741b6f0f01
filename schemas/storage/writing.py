"""Writing of whole files: the JSON of an output, or any other content.

A file is written under a temporary name, synced and renamed. So a file under its final name is
always complete.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, check_path, check_split
from packprep.schemas.manifest import Manifest, parse_manifest


@contextmanager
def writing_file(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file that appears, complete, at the end of the `with` block, or never if that raises.

    It has a temporary name, is synced and renamed, and its directory is synced. Without sync, a
    power failure may leave it empty.
    """
    temporary = temporary_name(path)
    with errors_named(temporary), temporary.open("wb") as file:
        try:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    temporary.replace(path)
    if sync:
        sync_directory(path.parent)


def write_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write `path` whole or not at all; see `writing_file`."""
    with writing_file(path, sync=sync) as file:
        file.write(content)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Give errors of the system the path of the file that the block writes: writing has none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def temporary_name(path: Path) -> Path:
    """Name of a file until it is complete, different in each process that may write it."""
    return path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` survive a power failure."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_dataset_files(
    directory: Path, files: Sequence[str], *, fingerprint: str, split: str | None
) -> None:
    """Write state.json and dataset_info.json, so that `datasets.load_from_disk` opens `directory`.

    files: names of the shards in `directory`, in row order, at least one. fingerprint: lower-case
    hex digest of the content, at most 64 characters; `datasets` names its caches by it. split: such
    as "train", or None.
    """
    if not files:
        raise FormatError(
            f"{directory} has no shards, and datasets needs at least one; write a shard with 0 "
            "packs"
        )
    for name in files:
        if len(check_path(name, str(directory / "state.json")).parts) != 1:
            raise FormatError(
                f"{directory / 'state.json'} names the file {name!r}; expected a name in the same "
                "directory"
            )
    if not re.fullmatch(r"[0-9a-f]{1,64}", fingerprint):
        raise FormatError(
            f"fingerprint is {fingerprint!r}; expected up to 64 lower-case hex characters"
        )
    if split is not None:
        check_split(split, str(directory / "state.json"))
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_file(directory / "state.json", canonical_json(state))
    # No features: every version of datasets infers the same ones from the Arrow types.
    write_file(directory / "dataset_info.json", canonical_json({}))


def write_dataset_dict(directory: Path, splits: Iterable[str]) -> None:
    """Write dataset_dict.json, which makes `directory` a DatasetDict of these subdirectories."""
    path = directory / "dataset_dict.json"
    write_file(
        path, canonical_json({"splits": [check_split(split, str(path)) for split in splits]})
    )


def write_manifest(
    directory: Path,
    data: Mapping[str, object],
    run: Mapping[str, object],
    check: Callable[[Manifest], None] | None = None,
) -> Manifest:
    """Write directory/manifest.json after the checks of `read_manifest`.

    check: called before anything is written, to refuse the manifest. Raises FormatError if the
    checks fail.
    """
    path = directory / MANIFEST
    rest = {"data": dict(data), "run": dict(run)}
    content = canonical_json(rest | {"sha256": digest_of(rest)})
    manifest = parse_manifest(content, str(path))
    if check is not None:
        check(manifest)
    write_file(path, content)
    return manifest
