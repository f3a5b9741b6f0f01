"""The closing table of an output: what became of every token, a row a fact."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..plan.types import Dropped
from ..schemas.files import FormatError
from ..schemas.manifest import Manifest, Output
from .figures import FIGURES, Report

NAME, VERSION = "report.json", 2


def read_report(output: Output) -> dict[str, Any]:
    """The report of an output. Raises FormatError if it is missing, or not what was signed."""
    content = output.files.read(NAME)
    signed = {file.path: file.sha256 for file in output.manifest.files}
    if hashlib.sha256(content).hexdigest() != signed.get(NAME):
        raise FormatError(
            f"{output.files}/{NAME} has another sha256 than the manifest; restore it or build again"
        )
    return parse_report(content, f"{output.files}/{NAME}")


def parse_report(content: bytes, where: str) -> dict[str, Any]:
    """The report in these bytes. Raises FormatError if it is none, or of another version."""
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or "report_version" not in report:
        raise FormatError(f"{where} is no report; expected the {NAME} of an output")
    if (version := report["report_version"]) != VERSION:
        raise FormatError(
            f"{where} has report version {version!r}, expected {VERSION}; build again"
        )
    return report


def tokenizer_of(manifest: Manifest) -> Mapping[str, Any]:
    """Facts of the tokenizer of an output, which all stores that it was packed from share."""
    tokens = manifest.data["inputs"]["tokens"]
    facts: Mapping[str, Any] = tokens.get("stores", [tokens])[0]["tokenizer"]
    return facts


def table(report: Report, tokenizer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of caption and text. tokenizer: its facts, {} if they are not known."""
    tokens, documents = report["tokens"], report["documents"]
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in documents["skipped"].items())
    yield "documents", f"{documents['in']:,}" + (f" (skipped: {skipped})" if skipped else "")
    if documents["empty"]:
        yield "without tokens", f"{documents['empty']:,} of them"
    yield "tokens", f"{tokens['tokens_in']:,}"
    for end in ("bos", "eos"):
        if end in tokenizer:
            token = tokenizer[end]
            yield end.upper(), "none" if token is None else f"{token[0]!r} ({token[1]})"
    for split, counts in report["splits"].items():
        name = "packs" if len(report["splits"]) == 1 else f"packs of {split}"
        yield name, f"{counts['packs']:,} of at most {report['max_length']:,} tokens"
    lost, undrawn = lost_tokens(report)
    if undrawn:
        yield "not drawn", f"{undrawn:,} tokens"
    for source in report.get("mix", {}).get("sources", ()):
        share = "" if source["share"] is None else f" for {source['share']:.1%} asked"
        text = f"{source['trained_tokens']:,} tokens trained{share}, {source['passes']:.2f} passes"
        yield f"of {Path(source['name']).name}", text
    if lost:
        share = f"{report['tokens_lost']:,} ({report['tokens_lost_share']:.3%})"
        yield "tokens lost", share + ": " + ", ".join(f"{n:,} {r}" for r, n in lost.items())
    for row in FIGURES:
        if row.text and row.name in report:
            yield row.caption or row.name, row.text.format(**report)
    yield (
        "speed",
        f"{report['tokens_per_second']:,.0f} tokens/s, {report['seconds']['total']:.1f} s",
    )


def lost_tokens(report: Report) -> tuple[dict[str, int], int]:
    """Tokens lost by reason, truncated first; and those that were not drawn, which are not lost."""
    lost = {"truncated": report["tokens"]["truncated"], **report["tokens"]["dropped"]}
    undrawn = lost.pop(Dropped.NOT_DRAWN, 0)
    return {reason: count for reason, count in lost.items() if count}, undrawn
