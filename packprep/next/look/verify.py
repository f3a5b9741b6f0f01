"""Verify an output: digests, invariants, each document once, and the account."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..schemas.columns import FILLER
from ..schemas.errors import FormatError
from ..schemas.files import MANIFEST
from ..schemas.packs import Output, check_file, open_output, packs
from ..schemas.validate import Finding, findings
from ..schemas.views import list_view


def verify(place: str | Path) -> list[Finding]:
    """All kinds of findings in an output; empty if it is sound."""
    try:
        output = open_output(place)
    except FormatError as error:
        return [Finding(kind="manifest", what=str(error))]
    return list(_findings(output))


def _findings(output: Output) -> Iterator[Finding]:
    listed = {file.path for file in output.manifest.all_files} | {MANIFEST}
    for name in output.files.list():
        if name not in listed:
            yield Finding(kind="surplus file", what=f"{output.name}/{name} is not in the manifest")
    damaged = set()
    for file in output.manifest.all_files:
        try:
            check_file(output, file)
        except FormatError as error:
            damaged.add(file.split)
            yield Finding(kind="damaged file", what=str(error))
    pieces: list[tuple[Any, ...]] = []
    for split, counts in output.manifest.splits.items():
        if split in damaged:
            continue
        found = dict.fromkeys(("packs", "segments", "tokens"), 0)
        kinds = set()
        try:
            for part in packs(output, split, check=False):
                where = part.shard.path
                for finding in findings(part.batch, output.manifest.layout, where, part.first):
                    if finding.kind not in kinds:
                        kinds.add(finding.kind)
                        yield finding
                tokens = list_view(part.batch, _stored(output, "tokens"), where)
                found["packs"] += len(part.batch)
                found["tokens"] += len(tokens.flat)
                pieces.append(_segments(output, part.batch, where))
                found["segments"] += len(pieces[-1][0])
        except FormatError as error:
            yield Finding(kind="damaged file", what=str(error))
            continue
        for key, count in found.items():
            if count != counts[key]:
                what = f"{split} has {count:,} {key}; the manifest has {counts[key]:,}"
                yield Finding(kind="account", what=what)
    yield from _coverage(output, pieces)
    yield from _report(output)


def _stored(output: Output, standard: str) -> str:
    """Name of a standard column in the files."""
    return next(c.name for c in output.manifest.columns if c.standard == standard)


def _segments(output: Output, batch: Any, where: str) -> tuple[Any, ...]:
    """Document, part, first token and end of each segment of a batch, where columns say them."""
    names = {column.standard: column.name for column in output.manifest.columns}
    values = {
        name: list_view(batch, names[name], where).flat
        for name in ("document_ids", "document_starts", "turn_ids", "pair_sides", "segment_lengths")
        if name in names
    }
    if "seq_lengths" in names:
        lengths = list_view(batch, names["seq_lengths"], where).flat
    else:
        view = list_view(batch, names["cu_seqlens"], where)
        steps = np.diff(view.flat)
        inside = np.ones(len(steps), np.bool_)
        inside[(view.offsets[1:-1] - view.offsets[0]) - 1] = False
        lengths = steps[inside]
    none = np.full(len(lengths), FILLER)
    return (
        values.get("document_ids", none),
        values.get("turn_ids", values.get("pair_sides", none)),
        values.get("document_starts", none),
        values.get("segment_lengths", lengths),
    )


def _coverage(output: Output, pieces: list[tuple[Any, ...]]) -> Iterator[Finding]:
    """Each document must be there once: pieces begin at 0 and no two begin at one place."""
    names = {column.standard for column in output.manifest.columns}
    if not pieces or not {"document_ids", "document_starts"} <= names:
        return
    ids, parts, starts, _ = (np.concatenate(each) for each in zip(*pieces, strict=True))
    real = ids != FILLER
    rows = sum(source["rows"] for source in output.manifest.data["sources"])
    if (ids[real] >= rows).any():
        worst = int(ids.max())
        yield Finding(
            kind="document", what=f"document {worst:,} is there; rows are 0 to {rows - 1:,}"
        )
    keys = np.stack([ids[real], parts[real].astype(np.int64), starts[real].astype(np.int64)])
    unique, counts = np.unique(keys, axis=1, return_counts=True)
    if (counts > 1).any():
        first = unique[:, np.argmax(counts > 1)].tolist()
        what = f"document {first[0]:,} has two segments that begin at its token {first[2]:,}"
        yield Finding(kind="document twice", what=what, count=int((counts > 1).sum()))


def _report(output: Output) -> Iterator[Finding]:
    """report.json must have the numbers of the manifest."""
    try:
        report = json.loads(output.files.read("report.json"))
        ledger = {key: report["tokens"][key] for key in output.manifest.data["ledger"]}
        splits = {name: dict(counts) for name, counts in report["splits"].items()}
    except (FormatError, ValueError, KeyError, TypeError) as error:
        yield Finding(kind="report", what=f"{output.name}/report.json cannot be read: {error}")
        return
    if ledger != output.manifest.data["ledger"]:
        yield Finding(kind="report", what="report.json has another ledger than the manifest")
    if splits != output.manifest.splits:
        yield Finding(kind="report", what="report.json has other splits than the manifest")
