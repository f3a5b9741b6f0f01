"""Progress of a build, running or stopped, read from its files.

Nothing is changed or locked.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from packprep.output.build_output import output_target
from packprep.output.directory import LocalTarget
from packprep.output.staging import (
    BUILD,
    CLAIMS,
    appended_path,
    join_path,
    staging_path,
    task_locks,
)
from packprep.output.target import Target
from packprep.schemas.canonical import read_object
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.support.errors import InputError
from packprep.support.file_lock import holder


def build_progress(name: str | Path, work_dir: str | None = None) -> dict[str, object] | None:
    """Facts of an unfinished build of an output; None if there is none.

    state: running, stopped, starting (no build.json yet), or waiting (an array without a running
    task). stage: tokenize, pack, sign off or merge. For an append these are facts of the new part;
    `documents_there` and `packs_there` are counts of the output it extends. work_dir: of the build,
    for an output in a store. Raises InputError if its record is damaged.
    """
    if str(name).startswith("hf://"):
        return None  # nothing is built there
    output = output_target(name, work_dir)
    if isinstance(output, LocalTarget):
        new = appended_path(output.path)
        if output.replaces and (new.exists() or staging_path(new).exists()):
            return _appended(output.path, new)
        if output.path.is_symlink() or output.path.is_file():  # which no build makes
            return None
    return _unfinished(output)


def _unfinished(output: Target[Manifest]) -> dict[str, object] | None:
    staging = staging_path(output.path)
    build = read_object(staging / BUILD)
    owner = output.holder()
    tasks = _tasks_at_work(staging)
    running = tasks or (owner is not None and owner.alive)
    if not running and (not staging.exists() or (not build and output.finished() is not None)):
        return None
    left = "waiting" if tasks is not None else "stopped"
    facts: dict[str, object] = {"state": ("running" if build else "starting") if running else left}
    if owner is not None and owner.alive:
        facts |= {"host": owner.host, "pid": owner.pid}
    if tasks:
        facts["tasks_at_work"] = tasks
    if not build:
        return facts
    if not isinstance(build.get("tokens"), str) or not isinstance(build.get("source_bytes"), int):
        raise InputError(
            f"{staging / BUILD} is damaged; expected the record of an unfinished build, so delete "
            f"{staging} and build again"
        )
    return facts | _facts(staging, Path(build["tokens"]), build)


def _tasks_at_work(staging: Path) -> int | None:
    """Number of running tasks of an array; None if no task has ever joined."""
    if not (staging / CLAIMS).exists():
        return None
    locked = [lock.with_suffix("") for lock in task_locks(staging)] or [join_path(staging)]
    return sum((owner := holder(path)) is not None and owner.alive for path in locked)


def _appended(output: Path, new: Path) -> dict[str, object]:
    """Progress of an append, whose new part is built at `new`."""
    there = read_manifest(output)
    facts = _unfinished(output_target(new))
    if facts is None:  # finished, but not yet merged into the output
        owner, part = holder(output), read_manifest(new)
        facts = {
            "state": "running" if owner is not None and owner.alive else "stopped",
            "stage": "merge",
            "documents": part.num_documents,
            "tokens": part.num_tokens,
            "packs": part.num_packs,
        }
    return facts | {"documents_there": there.num_documents, "packs_there": there.num_packs}


def _facts(staging: Path, tokens: Path, build: Mapping[str, object]) -> dict[str, object]:
    files = [facts for path in tokens.glob("unit-*.json") if (facts := read_object(path))]
    shards = [
        shard
        for path in (staging / "receipts").glob("*.arrow.json")
        if (shard := read_object(path))
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
        "text_bytes": _sum(files, "text_bytes"),
        "source_bytes": build["source_bytes"],
        "documents": _sum(files, "documents"),
        "tokens": _sum(files, "tokens"),
        "token_files": len(files),
        "windows": len(windows),
        "shards": len(shards),
        "packs": _sum(shards, "packs"),
        "seconds_since_last_file": round(max(time.time() - newest, 0.0), 1),
    }


def _sum(receipts: Iterable[Mapping[str, object]], name: str) -> int:
    """Sum over receipts, without damaged ones, which a build does again."""
    counts = (receipt.get(name) for receipt in receipts)
    return sum(count for count in counts if isinstance(count, int))
