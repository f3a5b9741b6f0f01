"""An output, written in the format of another trainer.

Shards are read one after another and written at once; memory is a record batch. The result is
absent or complete: it is made in OUT.incomplete, and its export.json comes last. The same command
resumes an interrupted export after the last finished shard.
"""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from packprep.config.spellings import gone_format
from packprep.exports.folder import PROGRESS, ExportFolder
from packprep.exports.packs import read_packs
from packprep.exports.registry import EXPORT_FORMATS, ExportFormat
from packprep.output.remote_lock import check_proven, store_locked
from packprep.output.staging import SUFFIX
from packprep.schemas.canonical import canonical_json, digest_of, parse_json
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.storage.export_manifest import (
    EXPORT,
    VERSION,
    ExportManifest,
    parse_export,
    read_export,
)
from packprep.schemas.storage.stores import Store, is_url
from packprep.schemas.storage.writing import sync_directory, write_file
from packprep.support.errors import ConfigError, asked, nearest
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.support.version import __version__
from packprep.tokens.checked_output import CheckedOutput

SENT = "sent.json"  # versions of the objects that are in the store already
_AT_ONCE = 4  # uploads at a time
_BLOCK = 16 << 20


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
    destination = (
        _StoreDestination(output, work_dir, unproven_store)
        if is_url(output)
        else _LocalDestination(output)
    )
    facts = _facts(manifest, to)
    if unshared:
        facts["unshared"] = True
    if manifest.epochs > 1 or epoch:
        manifest, facts = _of_epoch(manifest, epoch, source), facts | {"epoch": epoch}
    with destination.held():
        if (existing := destination.existing()) is not None:
            return _same_export(existing, facts, output, progress)
        start = time.monotonic()
        folder = ExportFolder(destination.staging, facts)
        try:
            checked = CheckedOutput(source, manifest)
            checked.say_caches(progress)
            _write(folder, checked, EXPORT_FORMATS[to], progress)
        except ConfigError:  # the same command would never finish
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        finally:
            folder.close()
        files = dict(sorted(folder.complete.items()))
        export_manifest = ExportManifest(
            data=facts | {"splits": folder.counts, "files": files},
            run={
                "packprep": __version__,
                "source": str(source),
                "seconds": round(time.monotonic() - start, 3),
            },
        )
        destination.publish(export_manifest, progress)
    return export_manifest


def _facts(manifest: Manifest, to: str) -> dict[str, Any]:
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


def _same_export(
    existing: ExportManifest, facts: dict[str, Any], output: str, progress: Progress
) -> ExportManifest:
    changed = [key for key, value in facts.items() if existing.data.get(key) != value]
    if changed:
        raise ConfigError(
            f"{output} is an export with another {changed[0]}; choose another -o, or delete it"
        )
    progress.say(f"{output} is this export already: nothing to do")
    return existing


def _write(
    folder: ExportFolder, source: CheckedOutput, format_: ExportFormat, progress: Progress
) -> None:
    """Write all splits, from the first shard that is not finished."""
    manifest, skipped, done = source.manifest, folder.shards, 0
    total = sum(entry.tokens or 0 for entry in manifest.files)
    for split in manifest.splits:
        entries = manifest.shards(split)
        if split in folder.splits:
            skipped -= len(entries)
            done += sum(entry.tokens or 0 for entry in entries)
            continue
        writer = format_.open(folder, manifest, split)
        finished, skipped = min(skipped, len(entries)), max(0, skipped - len(entries))
        done += sum(entry.tokens or 0 for entry in entries[:finished])
        for number, (entry, reading) in enumerate(source.shards(entries[finished:]), finished):
            with reading as path:
                batches = read_packs(source, entry, path)
                writer.write_shard(number, folder.counted(split, batches))
            folder.finish_shard()
            done += entry.tokens or 0
            progress.advance("export", done / 1e6, total / 1e6, "M tokens")
        writer.finish()
        folder.finish_split(split)


class _LocalDestination:
    """A directory that appears with one rename."""

    def __init__(self, output: str) -> None:
        self.path = Path(output)
        self.staging = self.path.with_name(self.path.name + SUFFIX)
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is not a directory; choose another -o")
        known = {PROGRESS, SENT, EXPORT}
        # The very first file may have been cut off before it got its name.
        files = [*self.staging.iterdir()] if self.staging.exists() else []
        names = {file.name for file in files if file.suffix != ".tmp"}
        if names and not known & names:
            raise ConfigError(
                f"{self.staging}, in which the export is made, has files of something else; choose "
                "another -o"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the directory."""
        with locked(self.path, f"{self.path} is being written"):
            yield

    def existing(self) -> ExportManifest | None:
        """The export that is here; ConfigError if there is something else."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return None
        if (existing := read_export(self.path)) is None:
            raise ConfigError(f"{self.path} exists and is not an export; choose another -o")
        return existing

    def publish(self, export_manifest: ExportManifest, progress: Progress) -> None:
        """Write export.json, and rename the directory."""
        write_file(self.staging / EXPORT, export_manifest.to_json())
        (self.staging / PROGRESS).unlink(missing_ok=True)
        sync_directory(self.staging)
        if self.path.exists():
            self.path.rmdir()
        self.staging.rename(self.path)
        sync_directory(self.path.absolute().parent)


class _StoreDestination:
    """A folder of a store. It is made in a directory, and sent; export.json is created last."""

    def __init__(self, output: str, work_dir: str | None, unproven_store: bool) -> None:
        self.url = output.rstrip("/")
        check_proven(self.url, accepted=unproven_store)
        name = self.url.rpartition("/")[2]
        if not self.url.partition("://")[2].partition("/")[2]:
            raise ConfigError(
                f"{self.url} is a bucket; give a folder in it, such as {self.url}/exported"
            )
        self.local = _LocalDestination(str(Path(work_dir or ".", name)))
        self.staging = self.local.staging
        with asked():
            self.store = Store(self.url)
            self.work = Store(self.url + SUFFIX)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the locks of the directory and of the store."""
        owner = digest_of([self.url, str(self.staging.absolute())])[:16]
        with (
            self.local.held(),
            asked(),
            store_locked(self.work, f"{self.url} is being written", owner, shared=False),
        ):
            yield

    def existing(self) -> ExportManifest | None:
        """The export that is here; ConfigError if there is something else."""
        try:
            content = self.store.read(EXPORT)
        except FileNotFoundError:
            sent = self._sent()
            for name, stored in self.store.list().items():
                if name not in sent and not (self.staging / PROGRESS).exists():
                    raise ConfigError(
                        f"{self.store.where(name)} exists ({stored.bytes:,} bytes) and is not of "
                        "this export; delete it, or choose another -o"
                    ) from None
            return None
        return parse_export(content, self.store.where(EXPORT))

    def _sent(self) -> dict[str, str]:
        try:
            sent: dict[str, str] = parse_json((self.staging / SENT).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return sent

    def publish(self, export_manifest: ExportManifest, progress: Progress) -> None:
        """Send all files, then export.json."""
        sent = self._sent()
        files = export_manifest.files

        def send(name: str) -> str:
            stored = self.store.find(name) if name in sent else None
            if stored is None or not stored.version or stored.version != sent[name]:
                with (self.staging / name).open("rb") as file, self.store.writing(name) as upload:
                    while block := file.read(_BLOCK):
                        upload.write(block)
                stored = self.store.find(name)
            return stored.version if stored is not None else ""

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, (name, version) in enumerate(
                zip(files, pool.map(send, files), strict=True), 1
            ):
                sent[name] = version
                write_file(self.staging / SENT, canonical_json(sent), sync=False)
                progress.advance("send", number, len(files), "files")
        if not self.store.create(EXPORT, export_manifest.to_json()):
            theirs = parse_export(self.store.read(EXPORT), self.store.where(EXPORT))
            if theirs.data != export_manifest.data:
                raise ConfigError(f"{self.url} was written by another export; choose another -o")
        shutil.rmtree(self.staging)
