"""Sign-off, the end of a build: final names of shards, files for `datasets`, report, manifest."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..schemas.files import MANIFEST, canonical_json, digest_of, file_digest, shard_name
from ..schemas.gather import Layout
from ..schemas.manifest import FORMAT_VERSION, TERMS, manifest_json
from ..support.records import write_file
from .output import NAMES
from .shards import ShardFile


def sign(
    staging: Path,
    shards: Sequence[ShardFile],
    layout: Layout,
    facts: Mapping[str, Any],
    report: Mapping[str, Any],
    settings: str,
    run: Mapping[str, Any],
) -> None:
    """Name the shards, write all other files, and the manifest last.

    facts: `inputs`, `sources`, `draw` and `plan` of the manifest. settings: build.yaml. run: how
    the build ran. Signing again after a crash gives the same files.
    """
    splits = list(dict.fromkeys(shard.split for shard in shards))
    moves, entries = dict[str, str](), list[dict[str, Any]]()
    for split in splits:
        folder = f"{split}/" if len(splits) > 1 else ""
        of_split = [shard for shard in shards if shard.split == split]
        for number, shard in enumerate(of_split):
            path = folder + shard_name(number, len(of_split))
            moves[f"shards/{shard.name}"] = path
            entry = {key: value for key, value in vars(shard).items() if key != "name"}
            entries.append({**entry, "path": path})
    write_file(staging / NAMES, canonical_json(moves))
    for working, final in moves.items():
        (staging / final).parent.mkdir(exist_ok=True)
        if (staging / working).exists():
            (staging / working).replace(staging / final)
    for split in splits:
        place = staging / split if len(splits) > 1 else staging
        written = [entry for entry in entries if entry.get("split") == split]
        names = [entry["path"].rpartition("/")[2] for entry in written]
        fingerprint = digest_of([split, *(entry["sha256"] for entry in written)])[:16]
        write_dataset_files(place, names, fingerprint, split)
    beside = ["state.json", "dataset_info.json"]
    if len(splits) > 1:
        beside = [f"{split}/{name}" for split in splits for name in beside]
        write_file(staging / "dataset_dict.json", canonical_json({"splits": splits}))
        beside.append("dataset_dict.json")
    others = [file_entry(staging, name) for name in beside]
    write_file(staging / "build.yaml", settings.encode())
    whole = {
        **report,
        "bytes": sum(shard.bytes for shard in shards),
        "shards": len(shards),
        "sha256": digest_of([entry["sha256"] for entry in entries]),
    }
    write_file(staging / "report.json", canonical_json(whole))
    data = {
        "format_version": FORMAT_VERSION,
        "identity": digest_of(facts["inputs"]),
        **vars(layout),
        "columns": [vars(column) for column in layout.columns],
        "splits": report["splits"],
        "files": [*entries, *others],
        "ledger": {key: report["tokens"][key] for key in (*TERMS, "dropped")},
        **facts,
    }
    run = {**run, "files": [file_entry(staging, name) for name in ("build.yaml", "report.json")]}
    write_file(staging / MANIFEST, manifest_json(data, run))


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    """Entry of a file in the manifest."""
    path = folder / name
    return {
        "path": name,
        "bytes": path.stat().st_size,
        "sha256": file_digest(path, hashlib.sha256),
    }


def write_dataset_files(
    folder: Path, files: list[str], fingerprint: str, split: str | None
) -> None:
    """Write what `datasets.load_from_disk` opens a folder by.

    files: names of the shards, in row order, at least one. fingerprint: hex digest of what decides
    the content. Every version of datasets infers the same features from the Arrow types.
    """
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint[:64],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_file(folder / "state.json", canonical_json(state))
    write_file(folder / "dataset_info.json", canonical_json({}))
