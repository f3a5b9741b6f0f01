"""Verify an output: digests, invariants, each document once, and the account."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..schemas.columns import FILLER
from ..schemas.files import MANIFEST, FormatError
from ..schemas.manifest import COUNTS, Output, Stores, check_file, open_output, packs, token_store
from ..schemas.validate import Finding, findings
from ..schemas.views import ListView, list_view, segments_of

_CACHED = 1 << 32  # bytes of a URL that are on this machine at a time
_OF_THE_HUB = (".gitattributes", "README.md")  # its repositories add them


def verify(place: str | Path, store: Stores = ()) -> list[Finding]:
    """All kinds of findings in an output; empty if it is sound. store: see `open_output`.

    Every byte of a URL is fetched.
    """
    with tempfile.TemporaryDirectory(prefix="packprep-") as cache:
        try:
            output = open_output(place, store, cache_dir=cache, cache_size=_CACHED)
        except FormatError as error:
            return [Finding(kind="manifest", what=str(error))]
        return list(_findings(output))


def _findings(output: Output) -> Iterator[Finding]:
    listed = {file.path for file in output.manifest.files} | {MANIFEST}
    for name in output.files.list():
        if name not in listed and name not in _OF_THE_HUB:
            yield Finding(kind="surplus file", what=f"{output.files}/{name} is not in the manifest")
    damaged = set[str | None]()
    for file in output.manifest.files:
        try:
            check_file(output, file)
        except FormatError as error:
            damaged.add(file.split)
            yield Finding(kind="damaged file", what=str(error))
    for finding in _tokens(output):
        damaged |= {*output.manifest.splits}
        yield finding
    pieces: list[tuple[Any, ...]] = []
    for split in sorted(output.manifest.splits.keys() - damaged):
        yield from _of_split(output, split, pieces)
    yield from _coverage(output, pieces)
    yield from _report(output)


def _of_split(output: Output, split: str, pieces: list[tuple[Any, ...]]) -> Iterator[Finding]:
    """Findings of each kind once, and counts that are not those of the manifest.

    pieces: gets those of the split.
    """
    layout, found, kinds = output.manifest.layout, dict.fromkeys(COUNTS, 0), set()
    try:
        for part in packs(output, split, check=False):
            where = part.shard.path
            for finding in findings(part.batch, layout, where, part.first):
                if finding.kind not in kinds:
                    kinds.add(finding.kind)
                    yield finding
            views = {c.standard: list_view(part.batch, c.name, where) for c in layout.columns}
            segments = segments_of(views, where, part.first)
            pieces.append(_pieces(views, len(segments.starts)))
            found["packs"] += len(part.batch)
            found["segments"] += len(segments.starts)
            found["tokens"] += int(segments.tokens[-1])
    except FormatError as error:
        yield Finding(kind="damaged file", what=str(error))
        return
    for key, count in found.items():
        if count != (said := output.manifest.splits[split][key]):
            what = f"{split} has {count:,} {key}; the manifest has {said:,}"
            yield Finding(kind="account", what=what)


def _tokens(output: Output) -> Iterator[Finding]:
    """The token files of a plan must be there and intact."""
    try:
        store = token_store(output)
    except FormatError as error:
        yield Finding(kind="damaged file", what=str(error))
        return
    if store is None:
        return
    for file in store.files:
        try:
            store.read(file)
        except FormatError as error:
            yield Finding(kind="damaged file", what=str(error))


def _pieces(views: Mapping[str, ListView], count: int) -> tuple[Any, ...]:
    """Document, part and first token of each of so many segments, where columns say them."""
    values, none = {name: view.flat for name, view in views.items()}, np.full(count, FILLER)
    parts = values.get("turn_ids", values.get("pair_sides", none))
    return values.get("document_ids", none), parts, values.get("document_starts", none)


def _coverage(output: Output, pieces: list[tuple[Any, ...]]) -> Iterator[Finding]:
    """Each document must be there once: pieces begin at 0 and no two begin at one place."""
    names = output.manifest.columns.keys()
    if not pieces or not {"document_ids", "document_starts"} <= names:
        return
    ids, parts, starts = (np.concatenate(each) for each in zip(*pieces, strict=True))
    real = ids != FILLER
    rows = sum(source["rows"] for source in output.manifest.data["sources"])
    if (ids[real] >= rows).any():
        what = f"document {ids.max():,} is there; rows are 0 to {rows - 1:,}"
        yield Finding(kind="document", what=what)
    keys = np.stack([ids[real], parts[real].astype(np.int64), starts[real].astype(np.int64)])
    unique, counts = np.unique(keys, axis=1, return_counts=True)
    sources = output.manifest.data["sources"]
    passes = max([1, *(-(-of["drawn"] // max(of["rows_of_pass"], 1)) for of in sources)])
    if (often := counts > passes).any():
        first = unique[:, np.argmax(often)].tolist()
        what = f"document {first[0]:,} has more segments that begin at its token {first[2]:,} than "
        what += f"the {passes:,} times that a source is used"
        yield Finding(kind="document twice", what=what, count=int(often.sum()))


def _report(output: Output) -> Iterator[Finding]:
    """report.json must have the numbers of the manifest."""
    try:
        report = json.loads(output.files.read("report.json"))
        ledger = {key: report["tokens"][key] for key in output.manifest.data["ledger"]}
        splits = {name: dict(counts) for name, counts in report["splits"].items()}
    except (FormatError, ValueError, KeyError, TypeError) as error:
        yield Finding(kind="report", what=f"{output.files}/report.json cannot be read: {error}")
        return
    if ledger != output.manifest.data["ledger"]:
        yield Finding(kind="report", what="report.json has another ledger than the manifest")
    if splits != output.manifest.splits:
        yield Finding(kind="report", what="report.json has other splits than the manifest")
