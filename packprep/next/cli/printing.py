"""The closing table of a command that made an output."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..plan.account import BATCH
from ..schemas.manifest import Output

_FIGURES = {
    "utilization": ("utilization", "{utilization:.3%}"),
    "loss_utilization": (
        "tokens trained",
        "{loss_tokens:,} ({loss_utilization:.3%} of all packs)",
    ),
    "bound": ("lower bound", "{bound:,} packs; gap {gap:,} ({gap_share:.3%})"),
    "bias": ("bias", "{bias:.2f} (1: equal lengths, 0: random, <0: long with short)"),
    "straggler": ("straggler", "{straggler:.2f}x at {straggler_ranks} ranks"),
    "padding_of_batch": (
        "padding of a batch",
        f"{{padding_of_batch:.3%}}, if {BATCH} documents were padded to their longest",
    ),
}
"""Figures of the report in the table: caption and text of each."""


def print_output(output: Output, share: float | None = None) -> None:
    """Print where an output is and what became of every token. share: of the text in a dry run."""
    report = json.loads(output.files.read("report.json"))
    rows, name = list(_rows(output, report)), str(output.files)
    if share is not None:
        name = f"dry run of the first 16 MB of each source, {share:.1%} of the text"
        tokens, packs = report["tokens"]["tokens_packed"] / share, report["packs"] / share
        size = report["bytes"] / share / 1e6
        whole = f"about {tokens:,.0f} tokens in {packs:,.0f} packs, {size:,.1f} MB"
        rows.append(("the whole build", whole))
    width = max(len(caption) for caption, _ in rows)
    print(f"\n{name}")
    for caption, text in rows:
        print(f"  {caption:<{width}}  {text}")
    if names := [*report.get("not_read", {}).get("columns", ())]:
        more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
        listed = ", ".join(names[:12])
        print(f"not read: column{'s' * (len(names) > 1)} {listed}{more}", file=sys.stderr)
    if (lost := report.get("left_out", {})).get("documents"):
        fields = ", ".join(
            f"{size['characters']:,} of {name}" for name, size in lost["fields"].items()
        )
        print(
            f"the chat template leaves out {lost['characters']:,} characters of messages in "
            f"{lost['documents']:,} rows ({fields}): a model is not trained on them; --turns auto "
            "trains the thoughts of earlier turns, another template (--chat-template) the rest",
            file=sys.stderr,
        )


def _rows(output: Output, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    data, tokens, documents = output.manifest.data, report["tokens"], report["documents"]
    yield "documents", f"{documents['in']:,}" + _list(documents["skipped"], "skipped")
    yield "tokens", f"{tokens['tokens_in']:,}"
    ends = data["inputs"]["tokens"].get("tokenizer", {})
    for end in ("bos", "eos"):
        if end in ends:
            token = ends[end]
            yield end.upper(), "none" if token is None else f"{token[0]!r} ({token[1]})"
    for split, counts in output.manifest.splits.items():
        name = "packs" if len(output.manifest.splits) == 1 else f"packs of {split}"
        yield name, f"{counts['packs']:,} of at most {output.manifest.max_length:,} tokens"
    lost = {"truncated": tokens["truncated"], **tokens["dropped"]}
    if undrawn := lost.pop("not_drawn", 0):
        yield "not drawn", f"{undrawn:,} tokens"
    for source in report.get("mix", {}).get("sources", ()):
        share = "" if source["share"] is None else f" for {source['share']:.1%} asked"
        text = f"{source['trained_tokens']:,} tokens trained{share}, {source['passes']:.2f} passes"
        yield f"of {Path(source['name']).name}", text
    lost = {reason: count for reason, count in lost.items() if count}
    if lost:
        share = f"{report['tokens_lost']:,} ({report['tokens_lost_share']:.3%})"
        yield "tokens lost", share + ": " + ", ".join(f"{n:,} {r}" for r, n in lost.items())
    for name, (caption, text) in _FIGURES.items():
        if name in report:
            yield caption, text.format(**report)
    yield (
        "speed",
        f"{report['tokens_per_second']:,.0f} tokens/s, {report['seconds']['total']:.1f} s",
    )


def _list(counts: dict[str, int], what: str) -> str:
    if not counts:
        return ""
    return f" ({what}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + ")"
