"""The files of `packprep export` against their export.json: missing, changed or surplus."""

from collections.abc import Iterable

import xxhash

from packprep.inspect.verdict import Verdict
from packprep.schemas.canonical import file_digest
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Finding
from packprep.schemas.listed import is_cache
from packprep.schemas.storage.export_manifest import EXPORT, ExportManifest, parse_export
from packprep.schemas.storage.places import Files
from packprep.support.progress import Progress


def check_exported(files: Files, verdict: Verdict, progress: Progress) -> None:
    """Compare every file with export.json. Packs are counted as export.json counts them."""
    try:
        manifest = parse_export(files.read(EXPORT), files.where(EXPORT))
    except FormatError as error:
        what = f"it {str(error).removeprefix(f'{files.where(EXPORT)} ')}"
        verdict.findings.add(Finding(kind="manifest", file=EXPORT, what=what))
        verdict.not_checked.append("everything else: without export.json nothing is known of it")
        return
    for number, (name, receipt) in enumerate(manifest.files.items(), 1):
        try:
            problem = _problem(files, name, receipt["bytes"], receipt["xxh3_128"])
        except (FormatError, OSError) as error:
            problem = f"it cannot be read: {error}"
        if problem:
            verdict.findings.add(Finding(kind="file", file=name, what=problem))
        progress.advance("digests", number, len(manifest.files), "files")
    for name in _surplus(files.list(), manifest):
        what = "it is not in export.json; expected nothing else in the directory"
        verdict.findings.add(Finding(kind="surplus", file=name, what=what))
    verdict.files = len(manifest.files) + 1
    verdict.bytes = sum(receipt["bytes"] for receipt in manifest.files.values())
    for counts in manifest.splits.values():
        verdict.packs += counts["packs"]
        verdict.segments += counts["segments"]
        verdict.tokens += counts["tokens"]
    verdict.not_checked.append("packs, documents and the ledger: export.json has digests of files")


def _problem(files: Files, name: str, size: int, digest: str) -> str:
    if (stored := files.find(name)) is None:
        return f"it is missing; export.json lists it with {size} bytes"
    if stored.bytes != size:
        return f"it has {stored.bytes} bytes; expected {size}"
    with files.open(name) as file:
        found = file_digest(file, xxhash.xxh3_128)
    if found != digest:
        return f"it has xxh3_128 {found}; expected {digest}"
    return ""


def _surplus(names: Iterable[str], manifest: ExportManifest) -> list[str]:
    listed = {EXPORT, *manifest.files}
    return [
        name
        for name in names
        if name not in listed
        and not any(part.startswith(".") for part in name.split("/"))
        and not is_cache(name)
    ]
