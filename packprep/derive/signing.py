"""The account of an output made from outputs: report, build.yaml and manifest.

Of one output in another form, they are those of the build with that form. Of several outputs, or of
shards of another size, counts are added, and the manifest lists each build under `generations`.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.config.recorded import first_defaults
from packprep.config.yaml_file import from_output, to_yaml
from packprep.derive.parts import OutputPart
from packprep.derive.shards import link_file
from packprep.derive.summing import summed_report
from packprep.inspect.histograms import measure_output
from packprep.output.build_facts import BuildInputs
from packprep.output.report import percentiles, summed
from packprep.output.shard_writer import ShardFile
from packprep.output.sign_off import SETTINGS, figures_of_files, file_entry, name_shards
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.index_table import TOKENS, joined_tables
from packprep.schemas.manifest import FileEntry, Manifest
from packprep.schemas.report import CountTable
from packprep.schemas.sources import Sources
from packprep.schemas.storage.writing import write_file, write_manifest

_REPORT = "report.json"


def sign_one(staging: Path, part: OutputPart, shards: Sequence[ShardFile]) -> Manifest:
    """Sign one output in another form: the build of the same packs with that form.

    staging: directory of the result, with its shards under their working names.
    """
    made = part.made
    entries = name_shards(staging, shards, phased=bool(made.phases)).entries
    files: list[Path] = []
    for value in part.manifest.run.get("files", []):
        if value["path"].startswith(f"{TOKENS}/"):
            continue
        path = staging / value["path"]
        old = part.source.file(FileEntry(**value))
        if value["path"] == SETTINGS and part.changes_form:
            write_file(path, _settings_in_form(old, made))
        elif value["path"] == _REPORT:
            report = json.loads(old.read_bytes()) | figures_of_files(entries)
            write_file(path, canonical_json(report))
        else:
            write_file(path, old.read_bytes())
        files.append(path)
    run = dict(part.manifest.run)
    if made.is_index:
        part.source.compare_tokens()
        files += _link_tokens(part, staging)
    else:
        run.pop("stores", None)
    run["files"] = [file_entry(staging, path).to_json() for path in files]
    listed = [entry.to_json() for entry in entries]
    return write_manifest(staging, made.data | {"files": listed}, run)


def _settings_in_form(old: Path, made: Manifest) -> bytes:
    """build.yaml with the options of the new form, under the comments that it begins with."""
    comments = [*takewhile(lambda line: line.startswith("#"), old.read_text().splitlines())]
    return "\n".join([*comments, to_yaml(_config_in_form(old, made))]).encode()


def _config_in_form(settings: Path, made: Manifest) -> BuildConfig:
    return replace(
        BuildConfig(**first_defaults() | from_output(settings)),
        names=made.names,
        materialize="index" if made.is_index else "shards",
    )


def sign_merged(
    staging: Path,
    output: Path,
    parts: Sequence[OutputPart],
    inputs: BuildInputs,
    shards: Sequence[ShardFile],
) -> Manifest:
    """Sign several outputs as one, whose counts are added, or one whose shards are cut again.

    staging: directory of the result, with its shards under their working names. output: where it
    will be. inputs: from `merged_inputs`.
    """
    first, entries = parts[0].made, name_shards(staging, shards).entries
    files = _write_common_settings(staging, parts, output)
    report = summed_report([part.report for part in parts], _documents_per_pack(parts), entries)
    write_file(staging / _REPORT, canonical_json(report))
    data = first.data | {
        "inputs": inputs,
        "identity": digest_of(inputs),
        "sources": [
            source | {"first_document": source["first_document"] + part.shift}
            for part in parts
            for source in part.manifest.data["sources"]
        ],
        "splits": report["splits"],
        "files": [entry.to_json() for entry in entries],
        "ledger": summed([part.manifest.ledger for part in parts]),
    }
    added = [name for name in first.added if all(name in part.made.added for part in parts)]
    data = {key: value for key, value in data.items() if key != "added"}
    data |= {"added": added} if added else {}
    if repeated := [
        part.manifest.data["repeated"] for part in parts if "repeated" in part.manifest.data
    ]:
        data["repeated"] = summed(repeated)
    run = {key: value for key, value in parts[-1].manifest.run.items() if key != "stores"}
    if first.is_index:
        tables = [part.manifest.index_table.shifted(part.shift) for part in parts]
        data["index"] = joined_tables(tables, [shard.window for shard in shards]).to_json()
        run["stores"] = {}
        for part in parts:
            part.source.compare_tokens()
            run["stores"] |= part.manifest.run.get("stores", {})
            files += _link_tokens(part, staging)
    run |= {
        # An output of another writer may lack these: the run part of a manifest is free.
        "source_paths": [name for part in parts for name in Sources(part.manifest).names],
        "verified_documents": sum(part.manifest.run.get("verified_documents", 0) for part in parts),
        "files": [file_entry(staging, path).to_json() for path in (*files, staging / _REPORT)],
    }
    return write_manifest(staging, data, run)


def _write_common_settings(staging: Path, parts: Sequence[OutputPart], output: Path) -> list[Path]:
    """Write build.yaml of merged outputs: their common options and the sources of all.

    Returns its path; nothing, without a file, if their options differ or are unknown, or if sources
    were mixed.
    """
    paths = [(part.source.find(SETTINGS), part.made) for part in parts]
    configs = [_config_in_form(path, made) for path, made in paths if path is not None]
    known = len(configs) == len(parts) and not any(config.is_mix for config in configs)
    if not known or any(config.identity() != configs[0].identity() for config in configs):
        return []
    sources: list[Any] = []
    for config in configs:
        sources += [source for source in config.sources if source not in sources]
    lines = [
        "# The options of this output and all of its sources. Merged from several builds.",
        "# To add sources with the same options: packprep build [SOURCE...] -c THIS_FILE --append",
    ]
    common = replace(configs[-1], sources=tuple(sources), output=str(output))
    write_file(staging / SETTINGS, "\n".join([*lines, to_yaml(common)]).encode())
    return [staging / SETTINGS]


def _link_tokens(part: OutputPart, staging: Path) -> list[Path]:
    """Link the token files that an index output has itself into `staging`."""
    linked = []
    for entry in part.manifest.all_files:
        if entry.path.startswith(f"{TOKENS}/") and not (staging / entry.path).exists():
            (staging / entry.path).parent.mkdir(parents=True, exist_ok=True)
            link_file(part.source.file(entry), staging / entry.path)
            linked.append(staging / entry.path)
    return linked


def _documents_per_pack(parts: Sequence[OutputPart]) -> CountTable:
    counts: Counter[int] = Counter()
    for part in parts:
        measured = measure_output(part.source.output).documents_per_pack
        counts.update(dict(zip(measured.values.tolist(), measured.counts.tolist(), strict=True)))
    return percentiles(counts)
