"""OUT.incomplete, where an output is made, and OUT, which is absent or complete.

job.json     what is made, so that the next command can resume it
tokens/      token files, unless they are in a store
shards/      shards under the names of their windows; receipts/ has a receipt for each window
manifest.json is there once the output is complete: what remains is to delete all of the above and
to rename the folder.
"""

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..schemas.files import MANIFEST, Files, FormatError, canonical_json, files_at, is_url
from ..schemas.manifest import Manifest, parse_manifest, read_manifest
from ..support.errors import ConfigError
from ..support.limits import locked
from ..support.records import sync_folder, write_file

SUFFIX, _OLD = ".incomplete", ".old"
JOB, NAMES = "job.json", "names.json"
LEFT = "is an unfinished build of other settings or sources; repeat its command, or add --overwrite"
_HERE, _BOTH = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
PARTS = ("tokens", "shards", "receipts", "scratch", NAMES, JOB)


def staging_of(output: str | Path) -> Path:
    """Folder in which an output is made: beside it, or for a URL in the working directory."""
    path = Path(str(output).rstrip("/").rpartition("/")[2] if is_url(output) else output)
    return path.with_name(path.name + SUFFIX)


def unfinished(output: str, identity: str = "") -> Files:
    """Files of an output that is made; of a URL those of one identity, or without it of all."""
    of_url = f"{output.rstrip('/')}{SUFFIX}/{identity[:16]}"
    return files_at(of_url if is_url(output) else staging_of(output), drafts=staging_of(output))


def _at_url() -> Any:
    from . import remote

    return remote


def finished(
    place: str, identity: str, options: Mapping[str, Any], *, overwrite: bool
) -> Manifest | None:
    """The manifest of the output that is there, if it has this identity; None if it must be made.

    options: those that decide bytes. Raises ConfigError for an output of other settings, unless it
    is to be replaced, and for a folder that is no output.
    """
    files, output, remote = files_at(place), Path(place), is_url(place)
    if remote and files.size(MANIFEST) is None:
        return None
    try:
        manifest = read_manifest(files)
    except FormatError as error:
        if output.is_dir() and not any(output.iterdir()):
            return None
        if (output / MANIFEST).exists() and overwrite:
            return None
        raise ConfigError(f"{files} is there, and is no output of packprep: {error}") from None
    if manifest.identity == identity:
        _clean(place, identity)
        return manifest
    if remote or not overwrite:
        cure = "delete it, as nothing at a URL is replaced" if remote else "add --overwrite"
        raise ConfigError(
            f"{files} is an output of other settings or sources"
            f"{_changed(manifest.data['inputs']['options'], options)}; choose another -o, or {cure}"
        )
    return None


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The options that differ, for a sentence."""
    now = json.loads(json.dumps(now))  # lists, as in the file
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    each = (f"{n} was {before.get(n, 'default')}, now {now.get(n, 'default')}" for n in names)
    return f" ({', '.join(each)})" if names else ""


def check_outside(place: str) -> None:
    """Raise ConfigError for a place in an output, where `verify` would call it surplus."""
    parent = Path(place).absolute().parent
    if not is_url(place) and (parent / MANIFEST).exists() and (parent / "report.json").exists():
        raise ConfigError(f"{place} is in the finished output {parent}; choose another -o")


def claim(
    output: str, facts: Mapping[str, Any], *, overwrite: bool = False, alone: bool = True
) -> bool:
    """Begin in the staging folder, or resume. Returns True if only the last rename is missing.

    facts: of the job, with its `identity`. alone: no other process works there. Raises ConfigError
    if another build has left finished work there, unless it is to be replaced.
    """
    check_outside(output)
    staging = staging_of(output)
    if staging.exists():
        if _is_complete(staging, facts["identity"]):
            return True
        _resume(staging, facts, overwrite=overwrite, alone=alone)
    for name in ("shards", "receipts"):
        (staging / name).mkdir(parents=True, exist_ok=True)
    write_file(staging / JOB, canonical_json(facts))
    if is_url(output):
        _at_url().begin(output, facts["identity"], overwrite=overwrite)
    return False


def _resume(staging: Path, facts: Mapping[str, Any], *, overwrite: bool, alone: bool) -> None:
    """Leave what a killed build of this identity has finished, and nothing else."""
    before = _read(staging / JOB) or (_read(staging / MANIFEST) or {}).get("data", {})
    if before.get("identity") != facts["identity"]:
        made = ("tokens/tokens-*.json", "receipts/*.json", MANIFEST)
        if before and any(any(staging.glob(name)) for name in made) and not overwrite:
            options = (each["inputs"]["options"] for each in (before, facts))
            raise ConfigError(f"{staging} {LEFT}{_changed(*options)}")
        for path in staging.iterdir():
            if path.name != "scratch":  # standard input is there
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in staging.rglob("*.tmp") if alone else ():
        path.unlink(missing_ok=True)
    for working, final in (_read(staging / NAMES) or {}).items():
        if (staging / final).exists():
            (staging / final).replace(staging / working)
    (staging / NAMES).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        value = json.loads(path.read_bytes())
        return value if isinstance(value, dict) else None
    return None


def _is_complete(staging: Path, identity: str) -> bool:
    """True if a sound manifest is there, and every file that it lists."""
    try:
        manifest = parse_manifest((staging / MANIFEST).read_bytes(), MANIFEST)
    except (OSError, FormatError):
        return False
    sizes = [(staging / file.path, file.bytes) for file in manifest.files]
    whole = all(path.exists() and path.stat().st_size == size for path, size in sizes)
    return whole and manifest.identity == identity


def publish(place: str) -> None:
    """Give the finished output its name; an output that is there is replaced."""
    staging, output = staging_of(place), Path(place)
    if is_url(place):
        _at_url().publish(staging, place)
        return
    for path in [*staging.iterdir()]:
        if path.name.removesuffix(_OLD) not in PARTS:
            continue
        if path.is_dir():  # a part that comes late may write until it has another name
            shutil.rmtree(path if path.suffix == _OLD else path.rename(f"{path}{_OLD}"))
        else:
            path.unlink()
    for path in staging.rglob("*.tmp"):
        path.unlink()
    sync_folder(staging)  # before it has its name, nothing else may be in it
    if output.exists():
        _replace(output, staging)
    else:
        staging.rename(output)
    sync_folder(output.absolute().parent)
    for old in (staging, _replaced(output)):
        shutil.rmtree(old, ignore_errors=True)


def _replace(output: Path, staging: Path) -> None:
    if not _exchange(staging, output):
        shutil.rmtree(_replaced(output), ignore_errors=True)
        output.rename(_replaced(output))
        staging.rename(output)


def _exchange(one: Path, two: Path) -> bool:
    """Exchange two names in one step, so that both are always there; False where none can."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (os.fsencode(one), os.fsencode(two))
    return call is not None and call(_HERE, names[0], _HERE, names[1], _BOTH) == 0


def _replaced(output: Path) -> Path:
    return output.with_name(output.name + ".replaced")


def _clean(place: str, identity: str) -> None:
    """Remove what lies beside a finished output, if its build was killed after the rename.

    Nothing is removed while another build works there.
    """
    if is_url(place):
        _at_url().clean(place, identity)
    staging, output = staging_of(place), Path(place)
    lock = staging.with_name(staging.name + ".lock")
    left = [_replaced(output), *([] if (staging / JOB).exists() else [staging])]
    if any(path.exists() for path in (lock, *left)):
        with suppress(ConfigError), locked(staging, "another build runs"):
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
