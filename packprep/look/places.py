"""What a place holds: an output, a report.json, a token store, or a build that is not finished."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..plan.account import Sums
from ..schemas.files import MANIFEST, Files, FormatError, files_at, is_url
from ..schemas.manifest import Output, open_output
from ..schemas.tokens import mapped_documents
from ..support.errors import InputError, listed
from ..support.records import read_record
from ..tokens.store import FACTS, Entry, entries_of, read_entry
from ..write.output import JOB, SUFFIX
from ..write.shards import WindowFile
from .closing import parse_report, table
from .figures import short_names
from .findings import Facts, Finding, facts_of, findings
from .measure import Counts

Rows = list[tuple[str, str]]
_NAMED = 4  # sources that are named
_SPREAD = {"median": 0.5, "95%": 0.95, "longest": 1.0}  # of lengths


@dataclass(frozen=True, kw_only=True)
class Place:
    """Something that has numbers. rows: caption and text of its table. values: all, as JSON values.

    facts: what findings are made of, None of a store and of a build that is not finished. output:
    None of these, and of a report.json. found: findings.
    """

    name: str
    rows: Rows
    values: Mapping[str, Any]
    facts: Facts | None = None
    output: Output | None = None
    found: Sequence[Finding] = ()


def look(name: str) -> Place:
    """The numbers of a place. Raises InputError or FormatError if it has none."""
    if is_url(name) and files_at(name).size(MANIFEST) is None:
        return _store(name, entries_of(name))
    path = Path(name).resolve()
    staging = path if path.name.endswith(SUFFIX) else path.parent / f"{path.name}{SUFFIX}"
    if path.is_file():
        report = parse_report(Files(path.parent).read(path.name), name)
        return _of_report(name, Facts(report, {}, {}), None)
    if staging.is_dir() and not (path / MANIFEST).exists():
        return _unfinished(name, staging)
    if path.is_dir() and not (path / MANIFEST).exists():
        try:
            return _store(name, entries_of(str(path)))
        except InputError:
            raise InputError(
                f"{name} has no {MANIFEST}; expected an output, finished or not, or a token store"
            ) from None
    output = open_output(name)
    return _of_report(name, facts_of(output), output)


def _of_report(name: str, facts: Facts, output: Output | None) -> Place:
    kind = "report" if output is None else "output"
    try:
        rows, found = list(table(facts.report, facts.tokenizer)), findings(facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{name} is not a report of packprep: it lacks {error}") from None
    values = {"place": name, "kind": kind, "options": dict(facts.options), **facts.report}
    values["findings"] = [finding._asdict() for finding in found]
    return Place(name=name, rows=rows, values=values, facts=facts, output=output, found=found)


def _store(name: str, places: Sequence[Files]) -> Place:
    rows, entries = Rows(), list[dict[str, Any]]()
    for place in places:
        entry, lengths = read_entry(place), Counts()
        for file in entry.files:
            documents = mapped_documents(place.local(file.name, file.digest), 0, file.rows)
            lengths.add(documents.length[documents.length > 0])
        spread = {caption: lengths.quantile(share) for caption, share in _SPREAD.items()}
        counts, names = _counts(entry), short_names(entry.facts["names"])
        entries.append({**counts, "lengths": spread, "sources": entry.facts["names"]})
        rows += [
            ("tokens of", listed(names, _NAMED)),
            ("entry", entry.key),
            ("splits", f"{counts['splits_done']:,} of {counts['splits']:,} done"),
            ("documents", f"{counts['documents']:,}"),
            ("tokens", f"{counts['tokens']:,}"),
            ("lengths", ", ".join(f"{caption} {count:,}" for caption, count in spread.items())),
            ("size", f"{counts['bytes'] / 1e6:,.1f} MB"),
        ]
    values = {"place": name, "kind": "store", "entries": entries}
    return Place(name=name, rows=rows, values=values)


def _counts(entry: Entry) -> dict[str, Any]:
    sums = {
        each: sum(getattr(file, each) for file in entry.files)
        for each in ("documents", "tokens", "bytes")
    }
    done = {file.split for file in entry.files if file.last}
    splits = {"splits": entry.facts["splits"], "splits_done": len(done)}
    return {"entry": entry.key, "complete": entry.complete, **splits, **sums}


def _unfinished(name: str, staging: Path) -> Place:
    """How far a build is, from the receipts of its tasks."""
    names = list[str]()
    with suppress(OSError, ValueError, KeyError):  # while it reads its sources, it has no job yet
        names = json.loads((staging / JOB).read_bytes())["entries"]
    tokenized = [_counts(read_entry(e)) for e in map(files_at, names) if e.size(FACTS) is not None]
    receipts = Files(staging / "receipts")
    windows = [read_record(receipts, each, WindowFile) for each in receipts.list()]
    accounts = (each for window in windows if window for each in window.account.values())
    sums, tokens = sum(accounts, start=Sums()), sum(each["tokens"] for each in tokenized)
    ago = 0
    with suppress(OSError):  # it may end just now; a folder has the time of its last file
        places = map(Path, (str(staging), f"{staging}/shards", *names))
        ago = round(time.time() - max(each.stat().st_mtime for each in places if each.exists()))
    clock = f"{ago // 3600}:{ago // 60 % 60:02d}:{ago % 60:02d}"
    rows = [("state", f"not finished; it wrote a file {clock} ago")]
    for counts in tokenized:
        done, of = counts["splits_done"], counts["splits"]
        words = f"{done:,} of {of:,} splits ({done / max(of, 1):.0%})"
        text = f"{words}, {counts['documents']:,} documents, {counts['tokens']:,} tokens"
        rows.append(("tokenized", text))
    if windows:
        share = f" ({sums.tokens_packed / max(tokens, 1):.0%} of those tokenized)"
        text = f"{sums.packs:,} packs of {sums.tokens_packed:,} tokens{share}"
        rows.append(("packed", text))
    packed = {"windows": len(windows), "packs": sums.packs, "tokens": sums.tokens_packed}
    values = {"place": name, "kind": "unfinished", "seconds_since_last_file": ago}
    values |= {"tokenized": tokenized, "packed": packed}
    return Place(name=name, rows=rows, values=values)
