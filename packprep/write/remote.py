"""An output at a URL, where nothing can be renamed.

URL.incomplete/job.json                 what is made; the build that creates it goes on
URL.incomplete/IDENTITY/shards/         shards, sent once their window is packed
URL.incomplete/IDENTITY/receipts/       the receipt of each window, sent after its shards
URL.incomplete/IDENTITY/published.json  text of all small files, of the first build that signed
All else is in NAME.incomplete of the working directory, see `output`.

At the end the store copies the shards to their final names, the small files are written, and
manifest.json is created where there is none: readers see the output from then on. Builds of one
identity write equal bytes, so that each step may be done twice.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..schemas.files import MANIFEST, FormatError, StoreError, canonical_json
from ..schemas.manifest import parse_manifest, read_manifest
from ..schemas.remote import RemoteFiles, asked, opened
from ..support.ahead import ahead
from ..support.errors import ConfigError
from .output import JOB, LEFT, NAMES, unfinished

_PUBLISHED = "published.json"
_LAST = ("state.json", "dataset_dict.json")
"""Files by which `datasets` opens an output, written last but for the manifest."""
_AT_ONCE = 8  # requests


def _unfinished(output: str, identity: str = "") -> RemoteFiles:
    return RemoteFiles(str(unfinished(output, identity)))


def begin(output: str, identity: str, *, overwrite: bool) -> None:
    """Claim a URL for this identity, or resume.

    Raises ConfigError if another build has left its work there, unless it is to be replaced; for a
    store that overwrites what it is asked to create; and if other files are there.
    """
    files, work, mine = RemoteFiles(output), _unfinished(output), canonical_json(identity)
    if "/" not in files.url.partition("://")[2]:
        raise ConfigError(f"{output} is a bucket; give a folder in it, such as {output}/packed")
    if _created(work, JOB, mine):
        names, overwrites = files.list(), _created(work, JOB, mine)
        if names or overwrites:
            _delete(work, [JOB])
        if overwrites:
            raise ConfigError(
                f"{output} is in a store that overwrites a file when it is asked to create one, so "
                "that two builds would mix; build in a folder, and copy it there"
            )
        if names:
            raise ConfigError(f"{output} has {names[0]} of another making; choose another -o")
    elif work.read(JOB) != mine:
        if not overwrite:
            raise ConfigError(f"{work} {LEFT}")
        work.call("pipe_file", JOB, mine)
        _delete(work, [name for name in work.list() if name != JOB])
        _delete(files, files.list())


def publish(staging: Path, output: str) -> None:
    """Give the signed output its names, unless another build has; then delete what is left."""
    content = (staging / MANIFEST).read_bytes()
    manifest = parse_manifest(content, MANIFEST)
    files, work = RemoteFiles(output), _unfinished(output, manifest.identity)
    moves = json.loads((staging / NAMES).read_bytes())
    names = {entry.path for entry in manifest.files} - {*moves.values()}
    texts = {name: (staging / name).read_text() for name in (*names, MANIFEST)}
    try:
        if _unfinished(output).read(JOB) == canonical_json(manifest.identity):
            _created(work, _PUBLISHED, canonical_json(texts))
            texts = json.loads(work.read(_PUBLISHED))
            _each(moves, lambda name: _copy(work, name, files, moves[name]))
            for name in sorted(names, key=lambda name: (name.endswith(_LAST), -name.count("/"))):
                files.call("pipe_file", name, texts[name].encode())
            (staging / JOB).unlink()  # what is here is not needed any more
            _created(files, MANIFEST, texts[MANIFEST].encode())
    except (FileNotFoundError, FormatError):
        pass  # another build has published, and has deleted what it was made of
    if MANIFEST not in files.list() or read_manifest(files).identity != manifest.identity:
        raise ConfigError(f"{output} was made by another build meanwhile; choose another -o")
    clean(output, manifest.identity)
    shutil.rmtree(staging)


def clean(output: str, identity: str) -> None:
    """Delete what builds of this identity have left, their claim last."""
    work, mine = _unfinished(output), canonical_json(identity)
    names = work.list()
    is_mine = JOB in names and work.read(JOB) == mine
    _delete(work, [name for name in names if name != JOB and (is_mine or identity[:16] in name)])
    if is_mine:
        _delete(work, [JOB])


def _delete(files: RemoteFiles, names: Iterable[str]) -> None:
    def delete(name: str) -> None:
        with suppress(FileNotFoundError):  # another process has deleted it
            files.call("rm_file", name)

    _each(names, delete)


def _each(names: Iterable[str], do: Callable[[str], None]) -> None:
    for _ in ahead(do, names, _AT_ONCE):
        pass


def _created(files: RemoteFiles, name: str, content: bytes) -> bool:
    """Write an object only if there is none; of several that try, one gets True."""
    try:
        files.call("pipe_file", name, content, mode="create")
    except FileExistsError:
        return False
    except StoreError:  # S3 has answers for this that clients do not know
        if name not in files.list():
            raise
        return False
    return True


def _copy(work: RemoteFiles, name: str, files: RemoteFiles, to: str) -> None:
    """Copy an object inside the store. Raises FileNotFoundError if it is not there."""
    with asked(f"{work}/{name}"):
        system, root = opened(str(work))
        target = f"{opened(str(files))[1]}/{to}"
        system.cp_file(f"{root}/{name}", target)
        if hasattr(system, "service_client"):
            _await(system, target)


def _await(system: Any, path: str) -> None:
    """Wait for a copy in Azure, which adlfs only begins."""
    from fsspec.asyn import sync

    container, blob, _ = system.split_path(path)

    async def state() -> str:
        async with system.service_client.get_blob_client(container, blob) as client:
            return str((await client.get_blob_properties()).copy.status)

    while (found := sync(system.loop, state)) == "pending":
        time.sleep(0.2)
    if found != "success":
        raise OSError(f"a copy to {path} ended with status {found}")
