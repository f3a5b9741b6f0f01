"""The files of `packprep export` against their export.json: missing, changed or surplus."""

from pathlib import Path

from packprep.inspect.verdict import Verdict
from packprep.schemas.canonical import file_xxh3
from packprep.schemas.errors import FormatError
from packprep.schemas.files import inside
from packprep.schemas.findings import Finding
from packprep.schemas.listed import is_cache
from packprep.schemas.storage.export_manifest import EXPORT, ExportManifest, read_export
from packprep.support.progress import Progress


def check_exported(directory: Path, verdict: Verdict, progress: Progress) -> None:
    """Compare every file with export.json. Packs are counted as export.json counts them."""
    try:
        manifest = read_export(directory)
    except FormatError as error:
        what = f"it {str(error).removeprefix(f'{directory / EXPORT} ')}"
        verdict.findings.add(Finding(kind="manifest", file=EXPORT, what=what))
        verdict.not_checked.append("everything else: without export.json nothing is known of it")
        return
    if manifest is None:
        return
    for number, (name, receipt) in enumerate(manifest.files.items(), 1):
        try:
            problem = _problem(inside(directory, name), receipt["bytes"], receipt["xxh3_128"])
        except (FormatError, OSError) as error:
            problem = f"it cannot be read: {error}"
        if problem:
            verdict.findings.add(Finding(kind="file", file=name, what=problem))
        progress.advance("digests", number, len(manifest.files), "files")
    for name in _surplus(directory, manifest):
        what = "it is not in export.json; expected nothing else in the directory"
        verdict.findings.add(Finding(kind="surplus", file=name, what=what))
    verdict.files = len(manifest.files) + 1
    verdict.bytes = sum(receipt["bytes"] for receipt in manifest.files.values())
    for counts in manifest.splits.values():
        verdict.packs += counts["packs"]
        verdict.segments += counts["segments"]
        verdict.tokens += counts["tokens"]
    verdict.not_checked.append("packs, documents and the ledger: export.json has digests of files")


def _problem(path: Path, size: int, digest: str) -> str:
    if not path.is_file():
        return f"it is missing; export.json lists it with {size} bytes"
    if (actual := path.stat().st_size) != size:
        return f"it has {actual} bytes; expected {size}"
    if (found := file_xxh3(path)) != digest:
        return f"it has xxh3_128 {found}; expected {digest}"
    return ""


def _surplus(directory: Path, manifest: ExportManifest) -> list[str]:
    listed = {EXPORT, *manifest.files}
    names = (path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file())
    return [
        name.as_posix()
        for name in names
        if name.as_posix() not in listed
        and not any(part.startswith(".") for part in name.parts)
        and not is_cache(name.name)
    ]
