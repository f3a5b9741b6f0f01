"""Sign-off, the end of a build: final names of shards, files for `datasets`, report, manifest."""

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from packprep.config.grammar.source_names import hub_tokenizer
from packprep.config.stages import Reading, Tokenizing
from packprep.output.build_facts import BuildInputs
from packprep.output.report import Packed
from packprep.output.shard_writer import ShardFile, ShardLayout
from packprep.output.staging import NAMES
from packprep.packing.account import Sums
from packprep.schemas.canonical import (
    canonical_json,
    digest_of,
    file_digest,
    file_xxh3,
    parse_json,
)
from packprep.schemas.columns import Column
from packprep.schemas.files import shard_name
from packprep.schemas.index_table import IndexTable
from packprep.schemas.manifest import NEWEST_VERSION, FileEntry, Manifest, format_version
from packprep.schemas.report import InputReport, Report, ReportFiles
from packprep.schemas.storage.places import Directory, Files
from packprep.schemas.storage.writing import (
    write_dataset_dict,
    write_dataset_files,
    write_file,
    write_manifest,
)
from packprep.support import memory
from packprep.support.errors import StoppedError
from packprep.support.version import __version__
from packprep.tokens.read_back import read_back
from packprep.tokens.store import TokenFile, rows_of_sources
from packprep.windows.index_rows import store_facts

SETTINGS = "build.yaml"
TOKENIZER = "tokenizer.json"  # only of a tokenizer that was converted to it


@dataclass(frozen=True, kw_only=True)
class NamedShards:
    """Shards under their final names.

    folder: that they were written to. entries: in the manifest, of them and of the files that
    `datasets` reads.
    """

    staging: Path
    folder: Files
    entries: list[FileEntry]

    def open(self, path: str) -> BufferedReader:
        """A shard as a file to read. path: its final one."""
        if self.folder.directory is not None:
            return (self.staging / path).open("rb")
        moves = parse_json((self.staging / NAMES).read_bytes())
        working = next(name for name, final in moves.items() if final == path)
        return self.folder.open(Path(working).name)


def name_shards(
    staging: Path,
    shards: Sequence[ShardFile],
    folder: Files | None = None,
    *,
    phased: bool = False,
) -> NamedShards:
    """Move shards to their final names and write the files that `datasets` reads.

    The new names are recorded first, so that `Staging.claim` can undo the moves. folder: of the
    shards; if it is in a store, the record is enough. None for that of the staging directory.
    phased: True if runs are phases.
    """
    folder = folder or Directory(staging / "shards")
    splits = list(dict.fromkeys(shard.split for shard in shards))
    by_split = {split: [shard for shard in shards if shard.split == split] for split in splits}
    names = {
        split: [shard_name(number, len(of_split)) for number in range(len(of_split))]
        for split, of_split in by_split.items()
    }
    folders = {split: staging / split if len(splits) > 1 else staging for split in splits}
    moves = {
        f"shards/{shard.name}": (folders[split] / name).relative_to(staging).as_posix()
        for split, of_split in by_split.items()
        for shard, name in zip(of_split, names[split], strict=True)
    }
    write_file(staging / NAMES, canonical_json(moves))
    entries: list[FileEntry] = []
    for split, of_split in by_split.items():
        folders[split].mkdir(exist_ok=True)
        for shard in of_split:
            path = moves[f"shards/{shard.name}"]
            if folder.directory is not None:
                (staging / "shards" / shard.name).rename(staging / path)
            entries.append(
                FileEntry(
                    path=path,
                    bytes=shard.bytes,
                    sha256=shard.sha256,
                    packs=shard.packs,
                    tokens=shard.tokens,
                    split=split,
                    epoch=None if phased else shard.run,
                    phase=shard.run if phased else None,
                )
            )
        fingerprint = digest_of([split, *(shard.sha256 for shard in of_split)])[:16]
        write_dataset_files(folders[split], names[split], fingerprint=fingerprint, split=split)
        entries += [
            file_entry(staging, folders[split] / name)
            for name in ("state.json", "dataset_info.json")
        ]
    if len(splits) > 1:
        write_dataset_dict(staging, splits)
        entries.append(file_entry(staging, staging / "dataset_dict.json"))
    return NamedShards(staging=staging, folder=folder, entries=entries)


def write_settings(staging: Path, options: str, inputs: BuildInputs, tokenizer: object) -> None:
    """Write build.yaml, the resolved options.

    `packprep build -c OUT/build.yaml -o ELSEWHERE` builds the same bytes again. options: of
    `to_yaml`. tokenizer: only its name is among them, not an object.
    """
    lines = [
        f"# Every option of this output, as packprep {__version__} resolved it.",
        "# The same bytes again, from the folder of the first build: packprep build -c THIS_FILE "
        "-o ELSEWHERE",
    ]
    if not isinstance(tokenizer, str):
        lines.append(
            f"# The tokenizer was an object (sha256 {inputs['tokenizer']['sha256']}): add "
            "--tokenizer."
        )
    if "planner" in inputs["options"]:
        lines.append(
            f"# The packer was {inputs['options']['planner']}: only packprep.build(..., planner=) "
            "runs it."
        )
    if rows := sum(len(source.get("skip_rows", ())) for source in inputs["sources"]):
        lines.append(
            f"# skip_rows listed {rows:,} rows. If its file has moved or changed, give this output "
            "in its place: --skip-rows DIR."
        )
    write_file(staging / SETTINGS, "\n".join([*lines, options]).encode())


def write_report(shards: NamedShards, of_inputs: InputReport, seconds: dict[str, float]) -> Report:
    """report.json, and the same as a dict. of_inputs: see `make_report`."""
    report: Report = {
        **of_inputs,
        **figures_of_files(shards.entries),
        "seconds": seconds,
        "tokens_per_second": Sums.of_ledger(of_inputs["tokens"]).tokens_per_second(seconds),
        "peak_memory_bytes": memory.peak(),
    }
    write_file(shards.staging / "report.json", canonical_json(report))
    return report


def figures_of_files(entries: Sequence[FileEntry]) -> ReportFiles:
    """Figures of a report that depend on the bytes. entries: of the manifest."""
    sizes = [entry.bytes for entry in entries if entry.is_shard]
    digest = digest_of([entry.sha256 for entry in entries])
    return {"bytes": sum(sizes), "shards": len(sizes), "sha256": digest}


def sign(
    shards: NamedShards,
    inputs: BuildInputs,
    layout: ShardLayout,
    packed: Packed,
    report: Report,
    run: Mapping[str, object],
    index: IndexTable | None = None,
    tokens: Path | None = None,
) -> Manifest:
    """Write the manifest, which completes the output.

    Raises FormatError if the ledger does not balance, or if the output cannot be read.

    run: how the build ran, besides what the report says. index, tokens: table of an index output,
    and the folder of its token files.
    """
    staging, account = shards.staging, packed.account
    sources, files = packed.sources, packed.files
    rows, sums = rows_of_sources(files, len(sources)), Sums.total(account.sources)
    data = {
        "format_version": format_version([column.name for column in layout.columns]),
        "inputs": inputs,
        "identity": digest_of(inputs),
        "columns": described(layout.stored_columns),
        "max_length": layout.max_length,
        "vocab_size": layout.vocab_size,
        "sources": [
            {
                "sha256": source.sha256,
                "bytes": source.bytes,
                "first_document": first,
                "documents": count,
            }
            for source, first, count in zip(sources, first_documents(rows), rows, strict=True)
        ],
        "splits": report["splits"],
        "files": [entry.to_json() for entry in shards.entries],
        "ledger": sums.ledger,
    }
    data |= {"added": list(layout.added)} if layout.added else {}
    data |= {"epochs": len(account.runs)} if account.runs and not account.asked else {}
    if account.asked:
        data["phases"] = [
            {**asked, "splits": of_report["splits"]}
            for asked, of_report in zip(account.asked, report["phases"], strict=True)
        ]
    if account.mix is not None:
        data["repeated"] = {"documents": sums.repeated_documents, "tokens": sums.repeated_tokens}
    own = [staging / SETTINGS, staging / "report.json"]
    own += [staging / TOKENIZER] if (staging / TOKENIZER).exists() else []
    if index is not None and tokens is not None:
        data |= {"format_version": NEWEST_VERSION, "index": index.to_json()}
        stores, written = store_facts(staging, tokens)
        _check_written(written, files)
        own += written
        run = {**run, "stores": stores}
    facts = {
        "verified_documents": sum(file.verified for file in files),
        "versions": _versions(),
        "seconds": report["seconds"],
        "peak_memory_bytes": report["peak_memory_bytes"],
        "source_paths": [source.name for source in sources],
        "files": [file_entry(staging, path).to_json() for path in own],
    }
    return write_manifest(
        staging, data, {**run, **facts}, lambda manifest: read_back(staging, manifest, shards.open)
    )


def _check_written(paths: Sequence[Path], files: Sequence[TokenFile]) -> None:
    """Raise StoppedError for a token file that is not as it was written: it would be signed."""
    written = {file.name: file.xxh3 for file in files}
    for path in paths:
        if (digest := file_xxh3(path)) != written.get(path.name):
            raise StoppedError(
                f"{path} has xxh3 {digest}; it was written with {written.get(path.name)}: check "
                "the disk, then run the same command, which writes it again"
            )


def described(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Entries of columns in the manifest."""
    return [{"name": c.name, "kind": c.kind, "dtype": c.dtype} for c in columns]


def named_inputs(reading: Reading, tokenizing: Tokenizing) -> dict[str, str]:
    """Names and paths of inputs of which `data` has only a digest, for commands that read them."""
    given = reading.entries()[0].given._asdict()
    names = {**given, "chat_template": tokenizing.chat_template, "renderer": tokenizing.renderer}
    if isinstance(tokenizer := tokenizing.tokenizer, str):
        name, revision = hub_tokenizer(tokenizer)
        names["tokenizer_path" if Path(tokenizer).exists() else "tokenizer_name"] = name
        names["tokenizer_revision"] = revision
    return {name: value for name, value in names.items() if isinstance(value, str)}


def first_documents(rows: Sequence[int]) -> list[int]:
    """Number of the first document of each source. rows: number of rows of each source."""
    return [sum(rows[:number]) for number in range(len(rows))]


def file_entry(staging: Path, path: Path) -> FileEntry:
    """Entry of a file in the manifest."""
    name = path.relative_to(staging).as_posix()
    return FileEntry(path=name, bytes=path.stat().st_size, sha256=file_digest(path))


def _versions() -> dict[str, str]:
    names = ("datasets", "numba", "numpy", "pyarrow", "tokenizers")
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "packprep": __version__} | {
        name: importlib.metadata.version(name) for name in names
    }
