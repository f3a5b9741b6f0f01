"""Outputs made from finished outputs: several merged into one, or one cut into other shard sizes.

Packs stay as they are, in the order of the outputs. Only document ids change, so that they are
unique in the merged output. A shard that needs no new ids and no new size is linked, or copied if
the file system has no links. Memory: a few record batches and the length of every pack.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.inspect.histograms import measure_output
from packprep.inspect.policy import Sources
from packprep.inspect.report_file import read_report
from packprep.output.build_facts import build_facts
from packprep.output.directory import publish
from packprep.output.report import percentiles
from packprep.output.shard_folder import LocalShards, link_file
from packprep.output.shard_writer import BATCH_TOKENS, ShardFile, receipt_like, write_batches
from packprep.output.sign_off import file_entry, name_shards, write_common_settings
from packprep.output.staging import staged
from packprep.output.summing import summed, summed_report
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.columns import FILLER, token_type
from packprep.schemas.files import MANIFEST
from packprep.schemas.index_table import TOKENS, IndexTable, joined_tables
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.schemas.names import column_view, stored_schema
from packprep.schemas.report import DocumentsPerPack, Report
from packprep.schemas.storage.writing import write_file, write_manifest
from packprep.schemas.validate import check_batch
from packprep.schemas.views import list_view
from packprep.sources.units import ranges
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.tokens.checked_output import CheckedOutput
from packprep.tokens.index_shards import refuse_index

_DOCUMENT_NUMBERS = ("document_ids", "pair_ids", "row_ids")  # columns of document ids


@dataclass(frozen=True)
class _Part:
    """An output whose packs are merged.

    shift: number that is added to its document ids. windows: number of windows of the index outputs
    before it.
    """

    source: CheckedOutput
    report: Report
    shift: int
    windows: int = 0

    @property
    def path(self) -> Output:
        return self.source.output

    @property
    def manifest(self) -> Manifest:
        return self.source.manifest

    @property
    def renumbered(self) -> bool:
        return (not self.manifest.is_index and self.shift > 0) and any(
            column.name in _DOCUMENT_NUMBERS for column in self.manifest.columns
        )

    def window_of(self, entry: FileEntry) -> int:
        """Window of a shard in the merged index; 0 if the output is none."""
        if not self.manifest.is_index:
            return 0
        shards = [shard.path for shard in self.manifest.files if shard.is_shard]
        return self.windows + self.manifest.index_table.shards[shards.index(entry.path)]

    def batches(self, entry: FileEntry, path: Path) -> Iterator[pa.RecordBatch]:
        """Record batches of a shard at a path, checked, with their new document ids."""
        packs = 0
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                check_batch(
                    batch,
                    self.manifest.columns,
                    max_length=self.manifest.max_length,
                    vocab_size=self.manifest.vocab_size,
                    where=f"{self.path}/{entry.path}",
                    first_pack=packs,
                )
                packs += len(batch)
                yield self._shifted(batch) if self.renumbered else batch

    def _shifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in _DOCUMENT_NUMBERS:
            if name in batch.schema.names:
                view = list_view(batch, name, self.path.name)
                values = np.where(view.values == FILLER, FILLER, view.values + self.shift)
                offsets: pa.Int32Array = pa.array(view.offsets, pa.int32())
                lists = pa.ListArray.from_arrays(offsets, pa.array(values, pa.int64()))
                batch = batch.set_column(
                    batch.schema.get_field_index(name), batch.schema.field(name), lists
                )
        return batch


def merge(
    outputs: Sequence[Output],
    output: Path,
    *,
    shard_size: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Merge the packs of all outputs, in this order, into one output.

    shard_size: bytes of a shard, about; None keeps the shards as they are cut.

    Nothing is done if `output` is this merge already. Raises ConfigError if tokenizer, columns or
    max_length differ or if `output` is anything else, FormatError for damage.
    """
    progress = progress or Silent()
    parts = _parts(outputs)  # refuses outputs that do not fit, before anything is written
    if shard_size is not None:
        refuse_index(outputs[0], parts[0].manifest, "only shards with tokens are cut again")
    with locked(output, f"{output} is being built"):
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            if (made := _merged_before(parts, output, shard_size)) is None:
                raise ConfigError(f"{output} exists already; choose another -o")
            progress.say(f"{output} has these packs already: nothing to do")
            return made
        return merge_locked(outputs, output, shard_size=shard_size, progress=progress)


def _merged_before(parts: Sequence[_Part], output: Path, shard_size: int | None) -> Manifest | None:
    """The manifest of an output that is this merge already; None for any other."""
    if not (output / MANIFEST).exists():
        return None
    made, splits = read_manifest(output), _splits(parts)
    packs = [
        count
        for split in splits
        for epoch in range(parts[0].manifest.epochs)
        for count in _packs_of_shards(_entries(parts, split, epoch), shard_size)
    ]
    same = made.identity == digest_of(_inputs(parts)) and packs == [
        entry.packs for split in splits for entry in made.shards(split)
    ]
    return made if same else None


def _splits(parts: Sequence[_Part]) -> list[str]:
    return list(dict.fromkeys(split for part in parts for split in part.manifest.splits))


def _packs_of_shards(
    sources: Sequence[tuple[_Part, FileEntry]], shard_size: int | None
) -> list[int | None]:
    """Number of packs of each shard that is merged from these."""
    if shard_size is None:
        return [entry.packs for _, entry in sources]
    sizes = np.concatenate([_sizes(source)[0] for source in sources])
    return [last - first for first, last in ranges(sizes, shard_size)]


def merge_locked(
    outputs: Sequence[Output],
    output: Path,
    *,
    shard_size: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Merge outputs; the caller holds the lock of `output`.

    `output` may be one of them; the merged output then replaces it in one step.
    """
    progress = progress or Silent()
    parts = _parts(outputs)
    inputs = _inputs(parts)
    for part in parts:
        part.source.say_caches(progress)
    with staged(output) as staged_output:
        staging = staged_output.path
        facts = build_facts(inputs, tokens="", source_bytes=0)
        signed = staged_output.claim(facts, progress, replaces=output in outputs)
        if signed is not None:
            publish(staging, output)
            return signed
        folder = staging / "shards"
        for left in (folder, staging / TOKENS):  # of a killed merge, which begins again
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        total = sum(part.manifest.num_packs for part in parts)
        shards: list[ShardFile] = []
        for split in _splits(parts):
            written = (
                _kept_shards(parts, split, folder)
                if shard_size is None
                else _recut_shards(parts, split, folder, shard_size)
            )
            for shard in written:
                shards.append(shard)
                progress.advance("merge", sum(done.packs for done in shards), total, "packs")
        entries = name_shards(staging, shards)
        settings = write_common_settings(staging, [part.source for part in parts], output)
        manifest = _sign(staging, parts, inputs, entries, [settings] if settings else [], shards)
        publish(staging, output)
    return manifest


def _parts(outputs: Sequence[Output]) -> list[_Part]:
    parts: list[_Part] = []
    shift = windows = 0
    for path in outputs:
        manifest = read_manifest(path)
        if manifest.phases:
            raise ConfigError(
                f"{path} has phases, and the packs of a merge have no order of phases; build its "
                "sources together instead"
            )
        first = parts[0] if parts else None
        if first is not None and (obstacle := merge_obstacle(first.manifest, manifest)):
            raise ConfigError(
                f"{first.path} and {path} differ in {obstacle}; build one of them again to merge"
            )
        source = CheckedOutput(path, manifest)
        parts.append(_Part(source, read_report(path, manifest), shift, windows))
        windows += len(manifest.index_table.windows) if manifest.is_index else 0
        shift += sum(source["documents"] for source in manifest.data["sources"])
    return parts


def merge_obstacle(one: Manifest, other: Manifest) -> str:
    """Reason why two outputs cannot be merged, in words; "" if there is none."""
    if one.is_index != other.is_index:
        return "materialize: index and shards, which packprep materialize writes"
    if one.names != other.names:
        return f"names: {one.names} and {other.names}, which packprep rename changes"
    for fact, of_one, of_other in (
        ("tokenizer", one.data["inputs"]["tokenizer"], other.data["inputs"]["tokenizer"]),
        (
            "columns",
            [column.name for column in one.columns],
            [column.name for column in other.columns],
        ),
        ("token_type", token_type(one.columns), token_type(other.columns)),
        ("column types", one.data["columns"], other.data["columns"]),
        ("max_length", one.max_length, other.max_length),
        ("epochs", one.epochs, other.epochs),
        ("columns of the index", _index_facts(one), _index_facts(other)),
    ):
        if of_one != of_other:
            return (
                f"{fact}: {of_one} and {of_other}"
                if fact in ("columns", "token_type", "max_length", "epochs")
                else f"{fact}: not the same"
            )
    return ""


def _index_facts(manifest: Manifest) -> Any:
    """Facts that index outputs must share to be merged."""
    if not manifest.is_index:
        return None
    table = manifest.index_table
    return table.columns, table.bos_id, table.pad_id


def _kept_shards(parts: Sequence[_Part], split: str, folder: Path) -> Iterator[ShardFile]:
    """Shards as they are cut now."""
    for epoch in range(parts[0].manifest.epochs):
        for part in parts:
            for entry, reading in part.source.shards(part.manifest.shards(split, epoch)):
                path = folder / f"{split}-{len(list(folder.iterdir())):05d}.arrow"
                with reading as old:
                    if part.renumbered:
                        size, sha256 = _write_renumbered(part, entry, old, path)
                    else:
                        link_file(old, path)
                        size, sha256 = entry.bytes, entry.sha256
                shard = receipt_like(entry, path.name, split, size, sha256)
                yield replace(shard, window=part.window_of(entry))


def _write_renumbered(part: _Part, entry: FileEntry, old: Path, path: Path) -> tuple[int, str]:
    """Write a shard with its new document ids; its bytes and sha256."""
    schema = stored_schema(part.manifest.columns, part.manifest.names)
    batches = part.batches(entry, old)
    return write_batches(LocalShards(path.parent), path.name, batches, schema)


def _entries(parts: Sequence[_Part], split: str, epoch: int) -> list[tuple[_Part, FileEntry]]:
    """Shards of one split and epoch, part by part."""
    return [(part, entry) for part in parts for entry in part.manifest.shards(split, epoch)]


def _recut_shards(
    parts: Sequence[_Part], split: str, folder: Path, shard_size: int
) -> Iterator[ShardFile]:
    """Shards of another size, cut as a build cuts them."""
    for epoch in range(parts[0].manifest.epochs):
        yield from _recut_epoch(parts, split, epoch, folder, shard_size)


def _recut_epoch(
    parts: Sequence[_Part], split: str, epoch: int, folder: Path, shard_size: int
) -> Iterator[ShardFile]:
    sources = _entries(parts, split, epoch)
    sizes, lengths = (np.concatenate(column) for column in zip(*map(_sizes, sources), strict=True))
    rows = _Rows(_batches(parts, split, epoch))
    schema = stored_schema(parts[0].manifest.columns, parts[0].manifest.names)
    for number, (first, last) in enumerate(ranges(sizes, shard_size)):
        name = f"{split}-{epoch:03d}-{number:05d}.arrow"
        cuts = ranges(lengths[first:last], BATCH_TOKENS, at_most=True)
        batches = (rows.take(end - start) for start, end in cuts)
        size, sha256 = write_batches(LocalShards(folder), name, batches, schema)
        yield ShardFile(
            name=name,
            split=split,
            bytes=size,
            sha256=sha256,
            packs=last - first,
            segments=0,
            tokens=int(lengths[first:last].sum()),
            epoch=epoch,
        )
    rows.end()


def _batches(parts: Sequence[_Part], split: str, epoch: int) -> Iterator[pa.RecordBatch]:
    """Record batches of the shards of a split and epoch, part by part."""
    for part in parts:
        for entry, reading in part.source.shards(part.manifest.shards(split, epoch)):
            with reading as path:
                yield from part.batches(entry, path)


def _sizes(source: tuple[_Part, FileEntry]) -> tuple[Int64, Int64]:
    """Bytes and tokens of each pack of a shard, [packs] each."""
    part, entry = source
    sizes, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with (
        part.source.peeking(entry) as path,
        pa.memory_map(str(path)) as file,
        pa.ipc.open_stream(file) as stream,
    ):
        for batch in stream:
            size = np.zeros(len(batch), np.int64)
            for column in part.manifest.columns:
                view = column_view(batch, column.name, entry.path)
                values = np.diff(view.offsets).astype(np.int64)
                size += 4 + values * column.numpy_dtype.itemsize
                if column.name == "tokens":
                    lengths.append(values)
            sizes.append(size)
    return np.concatenate(sizes), np.concatenate(lengths)


class _Rows:
    """A stream of record batches from which any number of rows is taken as one batch."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch:
        slices: list[pa.RecordBatch] = []
        while rows:
            batch = self._rest if self._rest is not None else next(self._batches)
            slices.append(batch.slice(0, rows))
            self._rest = batch.slice(rows) if rows < len(batch) else None
            rows -= len(slices[-1])
        # A single slice is copied too: Arrow would write some bytes past its end.
        joined: pa.RecordBatch = pa.concat_batches(slices)  # type: ignore[attr-defined] # not in the stubs
        return joined

    def end(self) -> None:
        """Read to the end, where the last shard is compared."""
        assert next(self._batches, None) is None


def _inputs(parts: Sequence[_Part]) -> dict[str, Any]:
    """Facts that decide the bytes of the merged output.

    Its options are those that all outputs share; the identity of each generation covers the rest.
    """
    options = [part.manifest.data["inputs"]["options"] for part in parts]
    return {
        "options": {
            key: value
            for key, value in options[0].items()
            if all(o.get(key) == value for o in options)
        },
        "sources": [source for part in parts for source in part.manifest.data["inputs"]["sources"]],
        "tokenizer": parts[0].manifest.data["inputs"]["tokenizer"],
        "generations": [generation for part in parts for generation in generations(part.manifest)],
    }


def _sign(
    staging: Path,
    parts: Sequence[_Part],
    inputs: dict[str, Any],
    entries: list[dict[str, Any]],
    files: list[Path],
    shards: Sequence[ShardFile],
) -> Manifest:
    """Write report.json and the manifest, in which the counts of the parts are added.

    files: other files that the manifest must list. shards: in the order of `entries`.
    """
    first = parts[0].manifest
    report = summed_report([part.report for part in parts], _documents_per_pack(parts), entries)
    write_file(staging / "report.json", canonical_json(report))
    data = first.data | {
        "inputs": inputs,
        "identity": digest_of(inputs),
        "sources": [
            source | {"first_document": source["first_document"] + part.shift}
            for part in parts
            for source in part.manifest.data["sources"]
        ],
        "splits": report["splits"],
        "files": entries,
        "ledger": summed([part.manifest.ledger for part in parts]),
    }
    added = [name for name in first.added if all(name in part.manifest.added for part in parts)]
    data = {key: value for key, value in data.items() if key != "added"}
    data |= {"added": added} if added else {}
    if repeated := [
        part.manifest.data["repeated"] for part in parts if "repeated" in part.manifest.data
    ]:
        data["repeated"] = summed(repeated)
    stores: dict[str, Any] = {}
    if first.is_index:
        data["index"] = _joined_index(parts, shards).to_json()
        for part in parts:
            part.source.compare_store()
            stores |= part.manifest.run.get("stores", {})
            files = [*files, *_token_files(part, staging)]
        stores = {"stores": stores}
    run = (
        parts[-1].manifest.run
        | stores
        | {
            # An output of another writer may lack these: the run part of a manifest is free.
            "source_paths": [name for part in parts for name in Sources(part.manifest).names],
            "verified_documents": sum(
                part.manifest.run.get("verified_documents", 0) for part in parts
            ),
            "files": [file_entry(staging, path) for path in (*files, staging / "report.json")],
        }
    )
    return write_manifest(staging, data, run)


def _joined_index(parts: Sequence[_Part], shards: Sequence[ShardFile]) -> IndexTable:
    """The table of merged index outputs."""
    tables = [part.manifest.index_table.shifted(part.shift) for part in parts]
    return joined_tables(tables, [shard.window for shard in shards])


def _token_files(part: _Part, staging: Path) -> list[Path]:
    """Token files that an index output has itself, linked into `staging`."""
    linked = []
    for entry in part.manifest.all_files:
        if entry.path.startswith(f"{TOKENS}/") and not (staging / entry.path).exists():
            (staging / entry.path).parent.mkdir(parents=True, exist_ok=True)
            link_file(part.source.file(entry), staging / entry.path)
            linked.append(staging / entry.path)
    return linked


def generations(manifest: Manifest) -> list[dict[str, Any]]:
    """Builds that an output was merged from, in order; the output itself if it was not merged."""
    itself = {
        "identity": manifest.identity,
        "documents": sum(source["documents"] for source in manifest.data["sources"]),
        "packs": manifest.num_packs,
    }
    merged_from: list[dict[str, Any]] = manifest.data["inputs"].get("generations", [itself])
    return merged_from


def _documents_per_pack(parts: Sequence[_Part]) -> DocumentsPerPack:
    counts: Counter[int] = Counter()
    for part in parts:
        measured = measure_output(part.path).documents_per_pack
        counts.update(dict(zip(measured.values.tolist(), measured.counts.tolist(), strict=True)))
    return percentiles(counts)
