"""Verification of an output against its manifest: all files, all invariants, all documents.

All findings are reported, not only the first.

fast   reads each byte once, hashes and checks it, one file per thread. Speed: that of sha256,
       1.5 GB per second and core. Memory: one record batch per thread, and the counts of
       `packprep.inspect.coverage`.
full   also tokenizes a sample of documents again (`packprep.inspect.retokenize`).

An export is compared with the digests of its export.json (`packprep.inspect.exported`). A dataset
without a manifest, saved by TRL or another packer, is checked for the invariants only
(`packprep.inspect.unsigned`).
"""

import contextlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import pyarrow as pa

from packprep.inspect.coverage import Coverage
from packprep.inspect.moved import IN_PLACE, Moved
from packprep.inspect.shard_files import (
    Checked,
    OnRead,
    Opened,
    check_in_threads,
    read_file,
    read_shard,
)
from packprep.inspect.verdict import Verdict
from packprep.schemas.columns import WHOLE_ROW, check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST
from packprep.schemas.findings import Finding, Findings
from packprep.schemas.listed import SURPLUS, cache_note, is_cache, surplus_names
from packprep.schemas.manifest import FileEntry, Manifest, Output
from packprep.schemas.report import Report
from packprep.schemas.storage.export_manifest import EXPORT
from packprep.schemas.storage.places import Files, files_at
from packprep.schemas.storage.reader import Reader
from packprep.schemas.trees import rows_view
from packprep.schemas.validate import sound_parts
from packprep.support.errors import InputError, asked
from packprep.support.progress import Progress, Silent
from packprep.tokens.reading import reader

if TYPE_CHECKING:
    from packprep.inspect.retokenize import Sample

VerifyLevel = Literal["fast", "full"]


def verify(
    output: str | Path,
    *,
    level: VerifyLevel = "fast",
    sample: int = 1000,
    seed: int = 0,
    moved: Moved = IN_PLACE,
    vocab_size: int | None = None,
    max_findings: int = 20,
    progress: Progress | None = None,
) -> Verdict:
    """Verify the output of a build, an export, or packs of others that `save_to_disk` wrote.

    sample, seed: number and choice of documents to tokenize again, at level full. moved: where its
    inputs are now. vocab_size: bound of the ids if there is no manifest. max_findings: number of
    findings to keep of each kind; all are counted. A fault is a finding; raises InputError if there
    is nothing to verify.
    """
    files, progress = files_at(output), progress or Silent()
    verdict = Verdict(output=str(output), level=level, findings=Findings(max_findings))
    try:
        with asked(InputError):
            has_manifest = files.find(MANIFEST) is not None
    except FormatError:  # a link out of the output, which reading it refuses
        has_manifest = True
    if not has_manifest:
        if level == "full":
            raise InputError(
                f"{output} has no {MANIFEST}, so its sources are not known; omit --level full"
            )
        _verify_without_manifest(files, verdict, vocab_size, moved, progress)
        return verdict
    try:
        found_output, manifest = moved.opened(output)
        coverage = Coverage(manifest)
    except FormatError as error:
        what = str(error).removeprefix(f"{output}/{MANIFEST} ")
        verdict.findings.add(Finding(kind="manifest", file=MANIFEST, what=f"it {what}"))
        verdict.not_checked.append("everything else: without a manifest nothing is known of it")
        return verdict
    retokenized = None
    if level == "full":
        from packprep.inspect.retokenize import Sample, compare

        retokenized = Sample(coverage, sample, seed)
    checked = _check_files(files, found_output, manifest, coverage, retokenized, verdict, progress)
    report = _report(files, manifest, verdict.findings)
    _check_dataset_files(files, manifest, verdict.findings)
    if all(result.complete for result in checked):
        coverage.finish(report, verdict.findings)
        _report_repeated(found_output, coverage, verdict.findings)
    else:
        verdict.not_checked.append("the ledger and lost documents: not every shard could be read")
    _list_not_checked(coverage, verdict)
    verdict.packs, verdict.segments, verdict.tokens = (
        coverage.totals[key] for key in ("packs", "segments", "tokens_packed")
    )
    verdict.sources = _rates(coverage)
    if retokenized is not None:
        compare(retokenized, verdict, moved, progress)
    return verdict


def _verify_without_manifest(
    files: Files, verdict: Verdict, vocab_size: int | None, moved: Moved, progress: Progress
) -> None:
    """Check an export, or a dataset of packs that `save_to_disk` wrote into a directory."""
    if files.find(EXPORT) is not None:
        from packprep.inspect.exported import check_exported

        check_exported(files, verdict, progress)
    elif files.directory is None:
        raise InputError(
            f"{verdict.output} has no {MANIFEST} and no {EXPORT}; a dataset without them is "
            "verified in a directory only"
        )
    else:
        from packprep.inspect.unsigned import verify_unsigned

        if vocab_size is None and moved.tokenizer is not None:
            from packprep.engines.tokenizer import load_tokenizer

            vocab_size = load_tokenizer(moved.tokenizer, bos="none", eos="none").vocab_size
        verify_unsigned(files.directory, verdict, vocab_size, progress)
    if caches := [*filter(is_cache, files.list())]:
        verdict.not_checked.append(cache_note(caches))


def _check_files(
    files: Files,
    output: Output,
    manifest: Manifest,
    coverage: Coverage,
    sample: "Sample | None",
    verdict: Verdict,
    progress: Progress,
) -> list[Checked]:
    """Check the files that the manifest lists, and report any others."""
    entries = manifest.all_files
    numbers = {name: number for number, name in enumerate(coverage.shards)}
    packs = reader(output, manifest)

    def check(entry: FileEntry, on_read: OnRead) -> Checked:
        if entry.is_shard:
            return _check_shard(files, packs, entry, numbers[entry.path], coverage, sample, on_read)
        return _check_file(files, entry, on_read)

    checked = check_in_threads(check, entries, sum(entry.bytes for entry in entries), progress)
    by_digest = {entry.sha256: entry.path for entry in entries}
    for entry, result in zip(entries, checked, strict=True):
        if result.digest not in (None, entry.sha256):
            other = by_digest.get(str(result.digest))
            what = f"it has the content of {other}" if other else f"it has sha256 {result.digest}"
            what = f"{what}; expected sha256 {entry.sha256}"
            verdict.findings.add(Finding(kind="sha256", file=entry.path, what=what))
        verdict.findings.update(result.findings)
    if packs.index is not None:
        for name, what in packs.index.store.changed():
            verdict.findings.add(Finding(kind="token store", file=name, what=what))
    names = [*files.list()]
    for name in surplus_names(names, manifest):
        verdict.findings.add(Finding(kind="surplus file", file=name, what=f"it {SURPLUS}"))
    if caches := [*filter(is_cache, names)]:
        verdict.not_checked.append(cache_note(caches))
    verdict.files, verdict.bytes = len(entries) + 1, sum(result.bytes for result in checked)
    _check_phases(manifest, checked, verdict.findings)
    segments = dict.fromkeys(manifest.splits, 0)
    for entry, result in zip(entries, checked, strict=True):
        if entry.split is not None:
            segments[entry.split] += result.segments
    # Packs and tokens of a split are checked with the manifest: they are sums of its entries.
    for split, count in segments.items():
        expected = manifest.splits[split].segments
        if count != expected and all(result.complete for result in checked):
            what = f"split {split} has {expected:,} segments, its shards have {count:,}"
            verdict.findings.add(Finding(kind="ledger", file=MANIFEST, what=what))
    return list(checked)


def _check_phases(manifest: Manifest, checked: Sequence[Checked], findings: Findings) -> None:
    """Compare the segments of each phase with the manifest; `read_manifest` compares the rest."""
    for number, phase in enumerate(manifest.phases):
        for split, counts in phase.splits.items():
            of_phase = [
                result
                for entry, result in zip(manifest.all_files, checked, strict=True)
                if (entry.phase, entry.split) == (number, split)
            ]
            count = sum(result.segments for result in of_phase)
            if count != counts.segments and all(result.complete for result in of_phase):
                what = (
                    f"phase {number + 1} has {counts.segments:,} segments of {split}, its shards "
                    f"have {count:,}"
                )
                findings.add(Finding(kind="ledger", file=MANIFEST, what=what))


def _check_file(files: Files, entry: FileEntry, on_read: OnRead) -> Checked:
    checked = Checked()
    if (opened := _find(files, entry, checked)) is not None:
        read_file(opened, entry.path, checked, on_read)
    return checked


def _find(files: Files, entry: FileEntry, checked: Checked) -> Opened | None:
    """Function that opens a file; None if the file is missing.

    A wrong size is a finding, and the file is still read.
    """
    what, stored = "", None
    try:
        stored = files.find(entry.path)
    except FormatError as error:
        what = str(error)
    else:
        if stored is None:
            what = f"is missing; the manifest lists it with {entry.bytes} bytes"
        elif stored.bytes != entry.bytes:
            what = f"has {stored.bytes} bytes; expected {entry.bytes}"
    if what:
        checked.findings.add(Finding(kind="file", file=entry.path, what=f"it {what}"))
    checked.complete = stored is not None
    return None if stored is None else partial(files.open, entry.path)


def _check_shard(
    files: Files,
    packs: Reader,
    entry: FileEntry,
    number: int,
    coverage: Coverage,
    sample: "Sample | None",
    on_read: OnRead,
) -> Checked:
    """Check one shard: digest, schema, invariants of all packs, end of stream, and counts."""
    checked, manifest = Checked(), coverage.manifest
    if (opened := _find(files, entry, checked)) is None:
        return checked

    def take(batch: pa.RecordBatch) -> None:
        for view in sound_parts(
            packs.gathered(entry, batch, checked.packs, entry.path),
            manifest.columns,
            max_length=manifest.longest(entry),
            vocab_size=manifest.vocab_size,
            where=entry.path,
            first_pack=checked.packs,
            findings=checked.findings,
        ):
            checked.count(view)
            if "tree" in checked.findings.counts:  # its rows are not known
                checked.complete = False
                continue
            carried = () if sample is None else sample.carried
            rows = None if view.pack_rows is None else rows_view(view, carried)
            coverage.add(view, number, checked.findings, rows)
            if sample is not None:
                sample.add(rows or view, coverage.epochs[number])

    read_shard(
        opened,
        entry.path,
        checked,
        on_read,
        lambda schema: check_schema(schema, manifest.file_columns, entry.path),
        take,
    )
    counts = [("packs", checked.packs, entry.packs)]
    # Packs with wrong boundaries are not counted.
    counts += (
        [("tokens", checked.tokens, entry.tokens)]
        if "boundaries" not in checked.findings.counts
        else []
    )
    for name, count, expected in counts:
        if checked.complete and count != expected:
            what = f"it has {count:,} {name}; the manifest says {expected:,}"
            checked.findings.add(Finding(kind="counts", file=entry.path, what=what))
    return checked


def _report(files: Files, manifest: Manifest, findings: Findings) -> Report | None:
    """Read report.json and compare it with the manifest; None if it is missing or no report."""
    try:
        report = json.loads(files.read("report.json"))
        pairs = {key: (report["tokens"][key], count) for key, count in manifest.ledger.items()}
        pairs |= {"splits": (report["splits"], manifest.data["splits"])}
        pairs |= {"packs": (report["packs"], manifest.num_packs)}
        pairs |= {
            f"phase {number}": (of_report["splits"], of_manifest["splits"])
            for number, (of_report, of_manifest) in enumerate(
                zip(report.get("phases", []), manifest.data.get("phases", []), strict=True), 1
            )
        }
        pairs |= {"sources": (len(report["sources"]), len(manifest.data["sources"]))}
    except OSError:
        return None  # a missing file is a finding already, if the manifest lists it
    except (ValueError, KeyError, TypeError, RecursionError):
        findings.add(
            Finding(kind="report", file="report.json", what="it is not a report of packprep")
        )
        return None
    for key, (value, expected) in pairs.items():
        if value != expected:
            what = f"it has {key} {value}; the manifest says {expected}"
            findings.add(Finding(kind="report", file="report.json", what=what))
    return cast("Report", report) if isinstance(report, dict) else None


def _check_dataset_files(files: Files, manifest: Manifest, findings: Findings) -> None:
    """Check that each state.json, which `datasets` reads, lists the shards in their order."""
    for split in manifest.splits:
        shards = manifest.shards(split)
        state = Path(shards[0].path).parent / "state.json" if shards else Path("state.json")
        try:
            listed = json.loads(files.read(state.as_posix()))["_data_files"]
            names = [(state.parent / file["filename"]).as_posix() for file in listed]
        except OSError:
            continue  # a finding already
        except (ValueError, KeyError, TypeError, RecursionError):
            names = []
        if names != [shard.path for shard in shards]:
            what = (
                f"it lists {', '.join(names) or 'no files'}; the manifest lists other shards "
                f"of {split}"
            )
            findings.add(Finding(kind="state.json", file=state.as_posix(), what=what))


def _report_repeated(output: Output, coverage: Coverage, findings: Findings) -> None:
    """Report documents that begin in several places.

    Their places are found in a second pass over the document_ids.
    """
    if not coverage.repeated or coverage.policy.repeated:
        return  # the copies of a mix were counted and compared
    from packprep.inspect.lookup import find_documents

    documents = np.unique(np.concatenate(coverage.repeated))
    places: dict[int, list[str]] = {}
    with contextlib.suppress(FormatError):  # a damaged shard is a finding already
        rows = np.unique(coverage.rows_of(documents[: findings.keep]))
        for segment in find_documents(output, coverage.manifest, rows.tolist()):
            if (segment.start == 0 or coverage.policy.one_piece) and segment.document is not None:
                turn = WHOLE_ROW if segment.turn is None else segment.turn
                key = coverage.keys(np.array(segment.document), turn, segment.place.epoch)
                where = (
                    f"{segment.place.shard} pack {segment.place.pack_in_shard} segment "
                    f"{segment.place.segment}"
                )
                places.setdefault(int(key), []).append(where)

    def finding(document: int) -> Finding:
        begins = places.get(document, [])
        where = f": {' and '.join(begins)}" if begins else ""
        what = f"{coverage.name(document)} is in the packs more than once{where}"
        return Finding(kind="repeated document", what=what)

    findings.many("repeated document", documents, finding)


def _list_not_checked(coverage: Coverage, verdict: Verdict) -> None:
    if not coverage.knows_documents:
        verdict.not_checked.append(
            "documents, BOS and EOS: the shards have no document_ids and document_starts"
        )
    elif not coverage.policy.says_ends:
        verdict.not_checked.append("BOS and EOS: the manifest does not say what they are")
    if coverage.knows_documents and not coverage.policy.says_cuts:
        verdict.not_checked.append(
            "cuts of documents: the merged outputs were cut in different ways"
        )
    if not coverage.knows_filler:
        verdict.not_checked.append(
            "filler: the shards have neither document_ids nor segment_lengths"
        )


def _rates(coverage: Coverage) -> list[dict[str, object]]:
    """Shares of the documents of each source that begin with BOS and end with EOS.

    None if the build added none. Counted are documents whose start, or end, is in a pack.
    """
    if not coverage.knows_documents:
        return []
    counts, policy = coverage.by_source, coverage.policy
    return [
        {
            "source": name,
            "documents": int(counts["documents"][number]),
            "bos": _share(policy.bos, counts["bos"][number], counts["begun"][number]),
            "eos": _share(policy.eos, counts["eos"][number], counts["ended"][number]),
        }
        for number, name in enumerate(coverage.sources.names)
    ]


def _share(end: int | None, part: int, total: int) -> float | None:
    return float(part / total) if end is not None and total else None
