"""An output, written in the format of another trainer.

Shards are read one after another and written at once; memory is a record batch, and of documents
also the pieces that wait for their last one. The result is absent or complete: it is made in
OUT.incomplete, and its export.json comes last. The same command resumes an interrupted export after
the last finished shard.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from packprep.config.grammar.spellings import gone_format
from packprep.exports.documents import JoinedDocuments
from packprep.exports.folder import PROGRESS, ExportFolder
from packprep.exports.packs import read_packs
from packprep.exports.registry import EXPORT_FORMATS, ExportFormat
from packprep.output.directory import target_at
from packprep.output.staging import staging_path
from packprep.output.target import Publishable, Target
from packprep.schemas.canonical import digest_of
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.storage.export_manifest import (
    EXPORT,
    VERSION,
    ExportManifest,
    parse_export,
)
from packprep.schemas.storage.reader import Reader
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, nearest
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.support.version import __version__
from packprep.tokens.reading import reader, say_left_out

EXPORTED = Publishable(
    name="an export",
    activity="is being written",
    work="the export is made",
    last=EXPORT,
    parse=parse_export,
    sizes=lambda manifest: {name: each["bytes"] for name, each in manifest.files.items()},
    parts=(PROGRESS,),
    marks=(PROGRESS, EXPORT),
)


def export(
    source: Output,
    output: str,
    to: str,
    *,
    epoch: int | None = None,
    unshared: bool = False,
    work_dir: str | None = None,
    unproven_store: bool = False,
    progress: Progress | None = None,
) -> ExportManifest:
    """Write the packs of `source` to `output`, a directory or URL, in a format of `EXPORT_FORMATS`.

    Some formats have documents and not packs.

    epoch: the packing to write, if documents are packed for several epochs. unshared: write the
    rows of trees, see `packprep.exports.unshared`; an output with trees needs it. work_dir: for a
    URL, directory in which the export is made before it is sent. unproven_store: write to a store
    that the tests have not run with. Raises ConfigError if `output` exists or the format cannot
    express the packs, FormatError for damage.
    """
    progress = progress or Silent()
    if answer := gone_format(to):
        raise ConfigError(answer)
    if to not in EXPORT_FORMATS:
        raise ConfigError(f"format is {to!r}{nearest(to, EXPORT_FORMATS)}")
    manifest = read_manifest(source)
    if manifest.has_trees and not unshared:
        raise ConfigError(
            f"{source} has trees, which no other format can express; give --unshared to write each "
            "row with its whole prefix"
        )
    if unshared and not manifest.has_trees:
        raise ConfigError(
            f"{source} has no trees, so nothing is shared in it; leave out --unshared"
        )
    target = target_at(EXPORTED, output, work_dir, unproven_store=unproven_store)
    staging = staging_path(target.path)
    EXPORTED.check_staging(staging)
    facts = _facts(manifest, to)
    if unshared:
        facts["unshared"] = True
    if manifest.epochs > 1 or epoch:
        manifest, facts = _of_epoch(manifest, epoch, source), facts | {"epoch": epoch}
    same = partial(_check_same, target, facts)
    with locked(target.path, f"{target} is being written"), target.held(None):
        if (existing := target.existing(same, progress)) is not None:
            same(existing)
            target.tidy()
            shutil.rmtree(staging, ignore_errors=True)
            progress.say(f"{target} is this export already: nothing to do")
            return existing
        start = time.monotonic()
        folder = ExportFolder(staging, facts)
        try:
            checked = reader(source, manifest, "digests")
            say_left_out(checked, progress)
            _write(folder, checked, EXPORT_FORMATS[to], progress)
        except ConfigError:  # the same command would never finish
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        finally:
            folder.close()
        files = dict(sorted(folder.done.complete.items()))
        export_manifest = ExportManifest(
            data=facts | {"splits": folder.done.counts, "files": files},
            run={
                "packprep": __version__,
                "source": str(source),
                "seconds": round(time.monotonic() - start, 3),
            },
        )
        write_file(staging / EXPORT, export_manifest.to_json())
        return target.publish(staging, progress)


def _facts(manifest: Manifest, to: str) -> dict[str, object]:
    """Facts that decide the bytes of an export."""
    source = {"identity": manifest.identity, "sha256": digest_of(manifest.data)}
    return {
        "export_version": VERSION,
        "format": to,
        "source": source,
        "max_length": manifest.max_length,
        "vocab_size": manifest.vocab_size,
    }


def _of_epoch(manifest: Manifest, epoch: int | None, source: Output) -> Manifest:
    """The manifest with the shards of one epoch."""
    if epoch is None:
        raise ConfigError(
            f"{source} has {manifest.epochs} packings of the same documents, one for each epoch; "
            f"choose --epoch, 0 to {manifest.epochs - 1}"
        )
    if epoch >= manifest.epochs:
        raise ConfigError(f"{source} has no epoch {epoch}; it has {manifest.epochs}, from 0")
    data = manifest.data
    kept = {"files": [entry for entry in data["files"] if entry.get("epoch", 0) == epoch]}
    if manifest.is_index:
        epochs = [entry.epoch or 0 for entry in manifest.files if entry.is_shard]
        windows = zip(data["index"]["shards"], epochs, strict=True)
        shards = [window for window, of_epoch in windows if of_epoch == epoch]
        kept["index"] = data["index"] | {"shards": shards}
    return replace(manifest, data=data | kept)


def _check_same(
    target: Target[ExportManifest], facts: Mapping[str, object], existing: ExportManifest
) -> None:
    changed = [key for key, value in facts.items() if existing.data.get(key) != value]
    if changed:
        raise ConfigError(
            f"{target} is an export with another {changed[0]}; choose another -o, or delete it"
        )


def _write(folder: ExportFolder, source: Reader, format_: ExportFormat, progress: Progress) -> None:
    """Write all splits, from the first shard that is not finished."""
    manifest, skipped, done = source.manifest, folder.done.shards, 0
    total = sum(entry.tokens or 0 for entry in manifest.files)
    for split in manifest.splits:
        entries = manifest.shards(split)
        if split in folder.done.splits:
            skipped -= len(entries)
            done += sum(entry.tokens or 0 for entry in entries)
            continue
        writer = format_.open(folder, manifest, split)
        documents = JoinedDocuments(source, entries) if format_.of_documents else None
        finished, skipped = min(skipped, len(entries)), max(0, skipped - len(entries))
        done += sum(entry.tokens or 0 for entry in entries[:finished])
        for number, entry in enumerate(source.ahead(entries[finished:]), finished):
            packs = documents.of_shard(number) if documents else read_packs(source, entry)
            writer.write_shard(number, folder.counted(split, packs))
            folder.finish_shard()
            done += entry.tokens or 0
            progress.advance("export", done / 1e6, total / 1e6, "M tokens")
        writer.finish()
        folder.finish_split(split)
