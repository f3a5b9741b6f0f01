"""Progress of a build, running or stopped, from the files it left on disk.

Nothing is changed and nothing is locked.
"""

import json
import time
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.output.directory import whole_output
from packprep.output.staging import (
    BUILD,
    CLAIMS,
    appended_path,
    join_path,
    staging_path,
    task_locks,
)
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.schemas.storage.stores import is_url
from packprep.support.errors import ConfigError
from packprep.support.file_lock import holder


def status(name: str | Path, work_dir: str | None = None) -> dict[str, Any]:
    """Facts that `packprep status` shows; ConfigError where there is no build.

    state: finished, running, stopped, starting (no build.json yet), or waiting: of an array, no
    task is at work. stage: tokenize, pack or sign off. Of an append it is how far what is new is;
    `documents_there` and `packs_there` are those it is appended to.
    """
    if not is_url(name) and (appended := _appended(Path(name))) is not None:
        return appended
    output = whole_output(BuildConfig(output=str(name), work_dir=work_dir))
    staging = staging_path(output.path)
    build = _read(staging / BUILD)
    by = output.holder()
    tasks = _tasks_at_work(staging)
    running = tasks or (by is not None and by.alive)
    if not running and not build and (manifest := output.finished()) is not None:
        found = {"state": "finished", "documents": _documents(manifest)}
        builds = len(manifest.data["inputs"].get("generations", ()))
        put_together = {"builds": builds} if builds else {}
        return found | {"tokens": manifest.num_tokens, "packs": manifest.num_packs} | put_together
    if not running and not staging.exists():
        raise ConfigError(
            f"{output} is no output and {staging} no unfinished build; check the path"
        )
    left = "waiting" if tasks is not None else "stopped"
    found = {"state": ("running" if build else "starting") if running else left}
    if by is not None and by.alive:
        found |= {"host": by.host, "pid": by.pid}
    if tasks:
        found["tasks_at_work"] = tasks
    if not build:
        return found
    return found | _progress(staging, Path(build["tokens"]), build)


def _tasks_at_work(staging: Path) -> int | None:
    """Number of tasks of an array at work; None where no task has ever joined."""
    if not (staging / CLAIMS).exists():
        return None
    locked = [lock.with_suffix("") for lock in task_locks(staging)] or [join_path(staging)]
    return sum((by := holder(path)) is not None and by.alive for path in locked)


def _appended(output: Path) -> dict[str, Any] | None:
    """Progress of an append; None where there is none under way."""
    new = appended_path(output)
    if not (output / MANIFEST).exists() or not (new.exists() or staging_path(new).exists()):
        return None
    there = read_manifest(output)
    found = status(new)
    if found["state"] == "finished":  # and not yet put together with what is there
        by = holder(output)
        found["state"] = "running" if by is not None and by.alive else "stopped"
        found["stage"] = "merge"
    return found | {"documents_there": _documents(there), "packs_there": there.num_packs}


def _documents(manifest: Manifest) -> int:
    return sum(source["documents"] for source in manifest.data["sources"])


def _progress(staging: Path, tokens: Path, build: dict[str, Any]) -> dict[str, Any]:
    receipts = [_read(path) for path in tokens.glob("unit-*.json")]
    files = [receipt for receipt in receipts if receipt]
    shards = [
        shard for path in (staging / "receipts").glob("*.arrow.json") if (shard := _read(path))
    ]
    windows = [path for path in (staging / "receipts").glob("*.json") if path.name.count(".") == 1]
    packing = (tokens / "files.json").exists()
    signing = (staging / MANIFEST).exists() or (staging / "names.json").exists()
    newest = max(
        (path.stat().st_mtime for path in (staging, tokens, staging / "receipts") if path.exists()),
        default=0,
    )
    return {
        "stage": "sign off" if signing else "pack" if packing else "tokenize",
        "text_bytes": sum(file["text_bytes"] for file in files),
        "source_bytes": build["source_bytes"],
        "documents": sum(file["documents"] for file in files),
        "tokens": sum(file["tokens"] for file in files),
        "token_files": len(files),
        "windows": len(windows),
        "shards": len(shards),
        "packs": sum(shard["packs"] for shard in shards),
        "seconds_since_last_file": round(max(time.time() - newest, 0.0), 1),
    }


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where it is not there (a running build may take it away)."""
    try:
        loaded = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
