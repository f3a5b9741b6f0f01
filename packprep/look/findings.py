"""Findings: what is wrong or can be better in an output, with its cause and its cure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ..chat.types import THOUGHT_KEYS
from ..plan.types import Dropped
from ..schemas.manifest import Output
from ..support.errors import listed
from .closing import lost_tokens, read_report, tokenizer_of
from .figures import Report, as_text, filler_of, values
from .measure import Measured

State = Literal["bad", "note", "good"]
_LISTED = 12  # columns that are named


class Finding(NamedTuple):
    """One finding. text: what was found, and its cause. cure: what to do."""

    state: State
    text: str
    cure: str = ""

    @property
    def sentence(self) -> str:
        """The finding in a line."""
        return f"{self.text}; {self.cure}" if self.cure else self.text


class Facts(NamedTuple):
    """Facts that findings are made of. options: those that decide bytes, {} if they are not known.

    tokenizer: its facts. measured: counts from the shards, None if they were not read. pairs: True
    if its rows are pairs.
    """

    report: Report
    options: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    measured: Measured | None = None
    pairs: bool = False


def facts_of(output: Output) -> Facts:
    """Facts of an output. Raises FormatError for a report that is not what was signed."""
    manifest = output.manifest
    options, pairs = manifest.data["inputs"]["options"], "pair_sides" in manifest.columns
    return Facts(read_report(output), options, tokenizer_of(manifest), pairs=pairs)


def findings(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    made = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(made, key=lambda finding: ("bad", "note", "good").index(finding.state))


def _lost(facts: Facts) -> Iterator[Finding]:
    report, options = facts.report, {**facts.options, "max_length": facts.report["max_length"]}
    lost, undrawn = lost_tokens(report)
    words = {each.value: (each.place, each.cure) for each in Dropped} if facts.options else {}
    cure = "raise --max-length" + ("" if facts.pairs else ", or choose --overflow split")
    words["truncated"] = ("cut off documents longer than a pack", cure)
    for reason, count in lost.items():
        share = count / max(report["tokens"]["tokens_in"] - undrawn, 1)
        place, cure = words.get(reason, (reason, ""))
        text = f"{count:,} tokens ({share:.2%}) are lost: {place.format(**options)}"
        yield Finding("bad" if share >= 0.01 else "note", text, cure)
    if not lost:
        yield Finding("good", "no token is lost: every token that was drawn is in a pack")


def _fill(facts: Facts) -> Iterator[Finding]:
    full = facts.report["utilization"]
    filled = f"packs are filled to {as_text('utilization', full)}"
    if full >= 0.95:
        yield Finding("good", filled)
    else:
        cause, cure = cause_of_room(facts)
        yield Finding("bad" if full < 0.8 else "note", f"{filled} only: {cause}", cure)


def cause_of_room(facts: Facts) -> tuple[str, str]:
    """Cause and cure of packs that are not full."""
    report, options = facts.report, facts.options
    strategy, multiple = options.get("strategy", "best_fit"), options.get("pad_to_multiple")
    best = "optimal" if strategy == "best_fit" else "best_fit"
    many = f"{strategy} makes {report['gap_share']:.1%} more packs than are needed"
    filler = filler_of(report)
    empty = (1 - report["utilization"]) * report["packs"]
    few = f"few documents fit together into {report['max_length']:,} tokens"
    may_split = "overflow" in options and not facts.pairs
    causes = (
        (report["packs"] == 1, "all documents fit into one pack", "lower --max-length"),
        ("max_segments" in options, "--max-segments holds packs small", "raise or leave it out"),
        ("group" in options, "documents of two groups share no pack", "join small groups"),
        (report["gap_share"] > 0.02, many, f"choose --strategy {best}"),
        (filler > empty / 2, f"{filler:,} packs are filler of --multiple", "choose a smaller one"),
        (multiple, f"segments are padded to a multiple of {multiple}", "lower --pad-to-multiple"),
        (may_split, few, "choose --overflow split"),
        (True, few, "compare lengths with packprep plan"),
    )
    return next((cause, cure) for applies, cause, cure in causes if applies)


def _rows(facts: Facts) -> Iterator[Finding]:
    report = facts.report
    if skipped := report["documents"]["skipped"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        text = f"rows were skipped: {reasons.replace('_', ' ')}"
        yield Finding("note", text, "--on-error stop names file and row")
    if names := [*report.get("not_read", {}).get("columns", ())]:
        columns = f"column{'s' * (len(names) > 1)} {listed(names, _LISTED)}"
        yield Finding("note", f"not read: {columns}")
    if (lost := report.get("left_out", {})).get("documents"):
        fields = ", ".join(
            f"{size['characters']:,} of {name}" for name, size in lost["fields"].items()
        )
        cure = "another template (--chat-template) may write them"
        if {*THOUGHT_KEYS} & {*lost["fields"]} and not facts.options.get("turns"):
            cure = "--turns auto trains the thoughts of earlier turns"
        yield Finding(
            "note",
            f"the chat template leaves out {lost['characters']:,} characters of messages in "
            f"{lost['documents']:,} rows ({fields}): a model is not trained on them",
            cure,
        )


def _ends(facts: Facts) -> Iterator[Finding]:
    for end, verb in (("bos", "begin"), ("eos", "end")):
        rate = facts.report[f"{end}_rate"]
        if facts.tokenizer.get(end) is not None and rate < 1:
            text = f"{1 - rate:.2%} of the documents do not {verb} with {end.upper()}"
            yield Finding("bad", text, f"look at them with packprep show, and at --{end}")


def _labels(facts: Facts) -> Iterator[Finding]:
    share = values(facts.report).get("trained_share")
    if share is None:
        return
    cure = "look at labels with packprep show; --train-on and --turns say what is trained"
    state: State = "good" if share >= 0.1 else "note" if share else "bad"
    text = f"{share:.2%} of the tokens have a label and are trained"
    yield Finding(state, text, "" if state == "good" else cure)


def _mix(facts: Facts) -> Iterator[Finding]:
    sources = facts.report.get("mix", {}).get("sources", ())
    asked, packed = facts.options.get("max_tokens", 0), facts.report["tokens"]["tokens_packed"]
    if packed < asked and all(each["share"] is None and each["passes"] >= 1 for each in sources):
        text = f"{packed:,} tokens are in packs, of {asked:,} of --max-tokens"
        yield Finding("note", text, "the sources have no more")
    for source in sources:
        if source["passes"] > 4:
            text = f"{source['name']} is used {source['passes']:.1f} times"
            yield Finding("note", text, "lower its weight or set max_epochs: repeats teach little")


def _lengths(facts: Facts) -> Iterator[Finding]:
    report, measured = facts.report, facts.measured
    if report["straggler_ranks"] > 1 and report["straggler"] > 1.1:
        ranks = f"{report['straggler_ranks']} ranks take {report['straggler']:.2f} times the mean"
        cure = f"--order balanced:{report['straggler_ranks']} makes steps even"
        yield Finding("note", f"steps of {ranks}: the slowest pack holds the others up", cure)
    if measured is None:
        return
    cut = measured.continued / max(measured.segments, 1)
    if cut > 0.2:
        text = f"{cut:.0%} of the segments continue a document"
        wrapped = facts.options.get("strategy") == "wrapped"
        why, cure = (
            ("wrapped cuts where packs end", "--strategy best_fit cuts long documents only")
            if wrapped
            else ("many documents are longer than a pack", "raise --max-length")
        )
        yield Finding("note", f"{text}: {why}", cure)
    if filler := measured.fill.below(1):
        text = f"{filler:,} packs hold only padding, for --multiple"
        yield Finding("note", text, "leave out :fill to drop packs in their place")
    least = max(1, report["max_length"] // 64)
    if small := measured.fill.below(least) - filler:
        text = f"{small:,} packs have fewer than {least:,} tokens"
        yield Finding("note", text, f"--min-pack-tokens {least} drops such packs")


_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *(_lost, _fill, _ends, _labels, _rows, _mix, _lengths),
)
"""Rules, each of which yields findings; a new kind of finding is one more."""
