"""Closing table of a build: report.json in words."""

from collections.abc import Iterable, Mapping

from packprep.config.grammar.known_columns import not_read
from packprep.packing.account import Dropped, Sums
from packprep.packing.figures import FIGURES
from packprep.schemas.report import MixedSource, Report, ReportPhase
from packprep.support.clock import START
from packprep.support.errors import brief

# Fields of messages in words; any other is a key of a row, shown in quotes.
_FIELDS = {"content": "content", "reasoning": "reasoning", "tool_calls": "tool calls"}
_FIELDS |= {"name": "name", "tool_name": "names of tools"}
_MOST_FIELDS = 6  # in a sentence


def table(report: Report) -> list[tuple[str, str]]:
    """Rows of the closing table: those of the account, and of the run that wrote the shards."""
    seconds = report["seconds"]
    work = {name: spent for name, spent in seconds.items() if name not in (START, "total")}
    parts = ", ".join(f"{name} {spent:.1f}" for name, spent in work.items())
    started = f" after a start of {seconds[START]:.1f} s" if START in seconds else ""
    memory = f"peak memory {report['peak_memory_bytes'] / 1e6:,.0f} MB"
    return [
        *account(report),
        ("bytes", f"{report['bytes']:,} in {report['shards']:,} shards"),
        ("seconds", f"{seconds['total']:.1f} ({parts})"),
        ("tokens/s", f"{report['tokens_per_second']:,.0f}{started}; {memory}"),
        ("sha256", report["sha256"]),
    ]


def account(report: Report) -> list[tuple[str, str]]:
    """Rows on the documents, tokens and packs of an output: a name, and the figure as text."""
    documents, tokens = report["documents"], report["tokens"]
    rows = [
        (
            "documents",
            f"{documents['in']:,}" + _parts({"empty": documents["empty"]} | documents["skipped"]),
        )
    ]
    rows += _turn_rows(report) if "turns" in report else []
    rows.append(
        (
            "tokens in",
            f"{tokens['tokens_in']:,}"
            + _parts({"BOS": tokens["bos_added"], "EOS": tokens["eos_added"]}),
        )
    )
    if mix := report.get("mix"):
        repeated = {
            key: sum(source["repeated"][key] for source in mix["sources"])
            for key in ("documents", "tokens")
        }
        rows.append(
            (
                "repeated",
                f"{repeated['tokens']:,} of these, in {repeated['documents']:,} copies of "
                "documents",
            )
        )
    rows.append(("tokens packed", f"{tokens['tokens_packed']:,}"))
    if shared := tokens.get("shared", 0):
        written = tokens["tokens_packed"] - tokens["filler"]
        rows.append(
            (
                "shared",
                f"{shared:,} tokens of rows not written again; "
                f"{(written + shared) / written:.2f} tokens of rows per token",
            )
        )
    if (apart := report.get("groups_apart")) and apart["groups"]:
        rows.append(
            (
                "groups apart",
                f"{apart['groups']:,}, whose {apart['rows']:,} rows are in several windows",
            )
        )
    counted = {
        "overlap": tokens["overlap"],
        "continuation BOS": tokens["continuation_bos"],
        "filler": tokens["filler"],
        "truncated": tokens["truncated"],
    }
    rows += [(name, f"{count:,}") for name, count in counted.items() if count]
    for reason, count in tokens["dropped"].items():
        dropped = documents["dropped"].get(reason)
        rows.append(
            (
                f"dropped, {reason}",
                f"{count:,}" + (f" in {dropped:,} documents" if dropped else ""),
            )
        )
    if documents["cut"]:
        rows.append(
            (
                "text cut",
                f"{documents['cut_characters']:,} characters of {documents['cut']:,} documents",
            )
        )
    if (left_out := report.get("left_out")) and left_out["documents"]:
        rows.append(
            (
                "left out",
                f"{left_out['characters']:,} characters ({left_out['tokens']:,} tokens) by the "
                f"template, in {left_out['documents']:,} documents",
            )
        )
    rows.append(("tokens lost", f"{report['tokens_lost']:,} ({report['tokens_lost_share']:.3%})"))
    if tokens["dropped"].get(Dropped.NOT_DRAWN):
        drawn = Sums.of_ledger(tokens).drawn
        rows[-1] = (
            "tokens lost",
            f"{drawn.tokens_lost:,} ({drawn.tokens_lost_share:.3%}) of those drawn",
        )
    rows += [_mixed(source) for source in mix["sources"]] if mix else []
    for number, phase in enumerate(report.get("phases", []), 1):
        rows += _phase_rows(number, phase)
    splits = (
        {name: counts["packs"] for name, counts in report["splits"].items()}
        if len(report["splits"]) > 1
        else {}
    )
    rows.append(("packs", f"{report['packs']:,}" + _parts(splits)))
    rows += figure_lines(report)
    if epochs := report.get("epochs"):
        least, most = (
            {key: choose(epoch[key] for epoch in epochs) for key in ("utilization", "bias")}
            for choose in (min, max)
        )
        rows.append(
            (
                "epochs",
                f"{len(epochs)}, added up above; each has all documents, utilization "
                f"{least['utilization']:.3%} to {most['utilization']:.3%}, bias "
                f"{least['bias']:.2f} to {most['bias']:.2f}",
            )
        )
    spread = report["documents_per_pack"]
    rows.append(
        (
            "documents per pack",
            f"p50 {spread['p50']:,}, p95 {spread['p95']:,}, max {spread['max']:,}",
        )
    )
    return rows


def figure_lines(report: Report) -> list[tuple[str, str]]:
    """Lines of the figures that a report has: label, and the figure as text."""
    return [
        (row.caption, row.text.format_map(report))
        for row in FIGURES
        if row.caption and row.name in report
    ]


def _turn_rows(report: Report) -> list[tuple[str, str]]:
    """Rows of the closing table about documents of turns."""
    turns, skipped = report["turns"], sum(report["documents"]["skipped"].values())
    whole = turns["rows"] - turns["split_rows"] - skipped
    kinds = {
        "with a document per turn" if "left_out" in report else "with several documents": turns[
            "split_rows"
        ],
        "whole": whole,
    }
    rows = [("rows", f"{turns['rows']:,}" + _parts(kinds))]
    notes = {
        "whole rows in which only text of no message changes": turns["same_text_rows"],
        "rows without a turn of the assistant": turns["without_turn"],
        "turns trained from their own text on": turns["at_text"],
        "earlier turns left out by --turns each:N": turns["earlier"],
    }
    rows += [("", f"{count:,} {words}") for words, count in notes.items() if count]
    if turns["behind_rows"]:
        rows.append(
            (
                "behind last turn",
                f"{turns['behind_characters']:,} characters in {turns['behind_rows']:,} rows",
            )
        )
    return rows


def left_out_sentence(report: Report) -> str | None:
    """Warning for text that the template or renderer does not write; None if it writes all."""
    left_out = report.get("left_out")
    if left_out is None or not left_out["documents"]:
        return None
    return (
        f"the chat template or renderer leaves out {left_out['characters']:,} characters of "
        f"{_fields(left_out['fields'])} in {left_out['documents']:,} documents, first at "
        f"{report['left_out_example']}: a model is not trained on it; to train it, "
        f"{_left_out_advice(report)}"
    )


def _fields(names: Iterable[str]) -> str:
    """Names of fields as a list of words."""
    shown = [_FIELDS.get(name, brief(name)) for name in names]
    if len(shown) > _MOST_FIELDS:
        shown[_MOST_FIELDS - 1 :] = [f"{len(shown) - _MOST_FIELDS + 1} other keys"]
    return " and ".join(", ".join(shown).rsplit(", ", 1))


def not_read_sentence(report: Report) -> str:
    """The line about columns and keys that are not read; empty if all are."""
    unread = report.get("not_read", {})
    return not_read(unread.get("columns", ()), unread.get("keys", {}).items())


def _left_out_advice(report: Report) -> str:
    """What to do about text that is left out, by its causes."""
    another = (
        "choose a template or renderer that writes it, or move it to a message or key that is "
        "written"
    )
    all_of_it = report["left_out"]["characters"]
    if "turns" in report:
        return f"raise N of --turns each:N, or {another}" if report["turns"]["earlier"] else another
    in_turns = report.get("left_out_in_turns", 0)
    if in_turns == all_of_it:
        return "build with --turns auto, or choose a template or renderer that writes it"
    if in_turns:
        return f"build with --turns auto for {in_turns:,} of them, in earlier turns; else {another}"
    return another


def _mixed(source: MixedSource) -> tuple[str, str]:
    """Row of the closing table for one source of a mix."""
    shares = f"{source['share']:.3%} of tokens, asked {source['asked_share']:.3%}"
    return (
        f"mix, {source['name']}",
        f"{shares}; {source['trained_tokens']:,} tokens, {source['epochs']:.3f} epochs",
    )


def _phase_rows(number: int, phase: ReportPhase) -> list[tuple[str, str]]:
    """Rows of the closing table for one phase."""
    tokens = phase["tokens"]["tokens_packed"]
    rows = [
        (
            f"phase {number}",
            f"{tokens:,} tokens in {phase['packs']:,} packs of {phase['max_length']:,}, "
            f"{phase['utilization']:.3%} full",
        )
    ]
    if len(phase["sources"]) > 1:
        rows += [
            ("", f"{source['share']:.3%} {source['name']}, asked {source['asked_share']:.3%}")
            for source in phase["sources"]
        ]
    return rows


def _parts(counts: Mapping[str, int]) -> str:
    parts = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f" ({', '.join(parts)})" if parts else ""
